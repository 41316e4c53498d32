"""Both charts: what each value makes of the objects, and which values are refused, in which words."""

from collections.abc import Iterator
from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import Any
from unittest.mock import sentinel

import helm_python
import pytest
import yaml

from hub import process as hub_process
from hub.composition.context import stop_times_of
from hub.extensions.kube_cert_agent.deployment import AgentDeploymentShape
from hub.extensions.settings import Settings, load
from hub.https_door.groups import groups_of
from hub.replica.installation import Addresses
from hub.replica.serving_certificate import LOCAL
from machinery.apiserver.access import Attributes
from machinery.product import GROUP_SUFFIX
from spoke import settings as spoke_settings
from spoke.__main__ import STOP_WITHIN
from spoke.cli.commands import Permission, needed_permissions
from spoke.settings import LEASE, SpokeSettings
from tests.charts.rendering import (
    BARE,
    FULL,
    MATRIX,
    VALUES,
    environment,
    of_kind,
    only,
    plain,
    pod_spec,
    pods_of,
    refusal_flaws,
    render,
)
from tests.charts.rights import Right, rights_of
from tests.checks import check_refusal, present

LEAST, LEAST_SPOKE = VALUES["hub"], VALUES["spoke"]
SIGN_IN = {"console": "on", "consoleSignIn": {"url": "https://people.example.com", "authenticator": "corp", "tlsSecret": "tls"}}
SERVED_BY_KUBERNETES = {
    *("", "apiextensions.k8s.io", "certificates.k8s.io", "coordination.k8s.io", "events.k8s.io"),
    "rbac.authorization.k8s.io",
}
OF_OTHERS = {"multicluster.x-k8s.io"}  # ClusterProfiles: a cluster that knows them has their CRD


def settings_of(documents: list[dict[str, Any]], file: dict[str, Any] | None = None) -> Settings:
    return load(file or {}, None, plain(environment(documents)))


def container(documents: list[dict[str, Any]]) -> dict[str, Any]:
    [found] = pod_spec(documents)["containers"]
    assert isinstance(found, dict)
    return found


def mounted(documents: list[dict[str, Any]], path: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The mount at a path, and its volume."""
    [mount] = [mount for mount in container(documents)["volumeMounts"] if mount["mountPath"] == path]
    [volume] = [volume for volume in pod_spec(documents)["volumes"] if volume["name"] == mount["name"]]
    return mount, volume


def granted(documents: list[dict[str, Any]], name: str) -> list[tuple[list[str], list[str], Any]]:
    [role] = [each for each in documents if each["kind"] in ("Role", "ClusterRole") and each["metadata"]["name"] == name]
    return [(rule["resources"], rule["verbs"], rule.get("resourceNames")) for rule in role["rules"]]


def test_a_hub_has_the_rights_and_secrets_that_its_values_take_and_no_others() -> None:
    documents = render("hub", BARE)
    assert pod_spec(documents)["automountServiceAccountToken"] is False
    kinds = [document["kind"] for document in documents]
    assert not [kind for kind in kinds if "Role" in kind or kind == "Secret"]
    assert kinds.count("ServiceAccount") == 1
    assert not [name for name in environment(documents) if "KUBE" in name]
    settings = settings_of(documents)
    assert (settings.leader_elect_resource_lock, settings.leader_elect_resource_name) == ("database", None)

    documents = render("hub", LEAST)
    secret = only(documents, "Secret")
    assert not {"data", "stringData"} & set(secret)
    name = secret["metadata"]["name"]
    assert granted(documents, "muster-muster-hub-admin") == [(["secrets"], ["get", "update"], [name])]
    assert settings_of(documents).admin_kubeconfig_secret == f"fleet/{name}"
    assert pod_spec(documents)["automountServiceAccountToken"] is True
    other = render("hub", LEAST | {"adminKubeconfig": {"secret": "first-operator"}})
    assert only(other, "Secret")["metadata"]["name"] == "first-operator"

    documents = render("hub", BARE | {"ca": {"keyPlace": "secret"}})
    rights = granted(documents, only(documents, "Role")["metadata"]["name"])
    of_secrets = [(verbs, names) for resources, verbs, names in rights if resources == ["secrets"]]
    assert of_secrets == [(["create"], None), (["get", "update"], ["muster-muster-hub-ca"])]
    variables = environment(documents)
    assert (variables["HUB_CA_KEY_PLACE"], variables["HUB_CA_KEY_SECRET"]) == ("secret", "fleet/muster-muster-hub-ca")
    assert pod_spec(documents)["automountServiceAccountToken"] is True


def test_a_hub_whose_lock_is_a_lease_may_what_that_takes_and_nothing_more() -> None:
    documents = render("hub", BARE | {"election": {"lock": "kubernetes"}})
    settings, set_ = settings_of(documents), only(documents, "StatefulSet")["metadata"]["name"]
    assert pod_spec(documents)["automountServiceAccountToken"] is True
    assert {"POD_NAME", "POD_NAMESPACE"} <= set(environment(documents))
    assert settings.leader_elect_resource_lock == "kubernetes"
    leases = [(["leases"], ["create"], None), (["leases"], ["get", "update"], [settings.leader_elect_resource_name])]
    owners = [(["pods"], ["get"], None), (["statefulsets"], ["get"], [set_])]
    assert granted(documents, only(documents, "Role")["metadata"]["name"]) == [*leases, *owners]


def test_a_database_url_stands_in_a_secret_and_nowhere_else() -> None:
    documents = render("hub", MATRIX["hub"]["database by url"])
    [secret] = [each for each in of_kind(documents, "Secret") if "stringData" in each]
    assert secret["stringData"] == {"url": "postgresql+psycopg://hub:secret@db/hub"}
    assert environment(documents)["HUB_DATABASE_URL"] == {"secretKeyRef": {"name": secret["metadata"]["name"], "key": "url"}}
    assert "hub:secret" not in yaml.safe_dump([each for each in documents if each is not secret])
    url = environment(render("hub", FULL["hub"]))["HUB_DATABASE_URL"]
    assert url == {"secretKeyRef": {"name": "hub-database", "key": "url"}}
    assert "HUB_DATABASE_URL" not in environment(render("hub", LEAST))


def test_replicas_share_a_database_and_keys_and_are_called_as_their_pods() -> None:
    documents = render("hub", FULL["hub"])
    assert only(documents, "StatefulSet")["spec"]["replicas"] == 3
    assert only(documents, "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1
    variables = environment(documents)
    assert variables["POD_NAME"] == {"fieldRef": {"fieldPath": "metadata.name"}}
    mount, volume = mounted(documents, variables["HUB_KEYS_DIR"])
    assert mount["readOnly"]
    assert volume["secret"]["secretName"] == "hub-keys"
    assert "HUB_KEYS_DIR" not in environment(render("hub", LEAST))
    for lacking in ("database", "keys"):
        values = {name: value for name, value in FULL["hub"].items() if name != lacking}
        check_refusal(helm_python.HelmError, render, "hub", values, match="more than one share a PostgreSQL database")


def test_another_url_or_setting_starts_the_pods_anew() -> None:
    def notes(values: dict[str, Any]) -> Any:
        return only(render("hub", LEAST | values), "StatefulSet")["spec"]["template"]["metadata"]["annotations"]

    one, two = ({"database": {"url": f"postgresql://hub@{host}/hub"}} for host in ("a", "b"))
    assert notes(one) != notes(two)
    assert notes({"settings": {"login_rate": 5}}) != notes({"settings": {"login_rate": 6}})


def test_values_and_settings_reach_the_hub() -> None:
    documents = render("hub", MATRIX["hub"]["settings"])
    file = only(documents, "ConfigMap")
    [argument] = [each for each in container(documents)["args"] if each.startswith("--config=")]
    _, volume = mounted(documents, argument.removeprefix("--config=").rpartition("/")[0])
    assert volume["configMap"]["name"] == file["metadata"]["name"]
    settings = settings_of(documents, yaml.safe_load(file["data"]["hub.yaml"]))
    assert (settings.agent_lifetime.total_seconds(), settings.brake_share) == (240 * 3600, 0.5)
    assert settings.join_labels == ("region",)

    full = settings_of(render("hub", FULL["hub"]))
    assert (full.auto_approve, str(full.grpc_advertised)) == (("edge-*", "*"), "hub.example.com:8443")
    variables = environment(render("hub", LEAST))
    assert variables["HUB_GRPC_ADVERTISED"] == "hub.example.com:8443"
    assert variables["HUB_HTTPS_ADVERTISED"] == "hub.example.com:6443"


def test_pod_is_given_the_time_that_a_start_and_a_stop_may_take() -> None:
    documents = render("hub", LEAST | {"startTimeoutSeconds": 300})
    probe = container(documents)["startupProbe"]
    assert settings_of(documents).start_timeout.total_seconds() == 300
    assert probe["periodSeconds"] * probe["failureThreshold"] >= 2 * 300
    slow: dict[str, Any] = {"delaySeconds": 90, "graceSeconds": 120, "sendRetryAfter": False}
    for shutdown in ({}, {"delaySeconds": 0}, slow):
        documents = render("hub", LEAST | {"shutdown": shutdown})
        settings = settings_of(documents)
        assert settings.shutdown_send_retry_after is shutdown.get("sendRetryAfter", True)
        assert settings.shutdown_delay.total_seconds() == shutdown.get("delaySeconds", 5)
        longest = stop_times_of(settings).longest + hub_process.CLOSED_WITHIN
        assert pod_spec(documents)["terminationGracePeriodSeconds"] > longest.total_seconds()


def test_the_serving_certificate_has_the_services_name_or_is_mounted() -> None:
    settings = settings_of(render("hub", LEAST | {"servingNames": ["10.0.0.7", "hub"]}))
    assert settings.serving_names == ("muster-muster-hub.fleet.svc", "10.0.0.7", "hub")
    documents = render("hub", MATRIX["hub"]["own serving certificate"])
    settings = settings_of(documents)
    assert {*Addresses.of(settings).dns_names} - {*LOCAL} == {"hub.example.com"}, "as a public CA signs it"
    assert "check_hostname = False" in only(documents, "Pod")["spec"]["containers"][0]["args"][0]
    [mount] = [each for each in container(documents)["volumeMounts"] if each["name"] == "serving"]
    for file in (settings.serving_cert_file, settings.serving_key_file, settings.serving_ca_file):
        assert str(present(file).parent) == mount["mountPath"]


def test_replicas_are_kept_apart_where_it_can_be_unless_set_otherwise() -> None:
    def affinity(**values: Any) -> Any:
        return pod_spec(render("hub", FULL["hub"] | {"affinity": {}} | values)).get("affinity")

    soft = affinity()["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    hard = affinity(antiAffinity="hard")["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    labels = only(render("hub", FULL["hub"]), "StatefulSet")["spec"]["template"]["metadata"]["labels"]
    for term in (soft[0]["podAffinityTerm"], hard[0]):
        assert term["topologyKey"] == "kubernetes.io/hostname"
        assert term["labelSelector"]["matchLabels"].items() <= labels.items()
    assert affinity(antiAffinity="none") is None
    assert "affinity" not in pod_spec(render("hub", LEAST))
    own: dict[str, Any] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []}}
    assert affinity(affinity=own) == own


def test_a_service_has_both_doors_and_is_reached_as_its_type_has_it() -> None:
    documents = render("hub", LEAST)
    named = {port["name"]: port["containerPort"] for port in container(documents)["ports"]}
    served = {port["targetPort"]: port["port"] for port in only(documents, "Service")["spec"]["ports"]}
    assert named == served == {"grpc": 8443, "https": 6443}
    balanced = only(render("hub", MATRIX["hub"]["load balancer"]), "Service")["spec"]
    assert (balanced["type"], balanced["externalTrafficPolicy"]) == ("LoadBalancer", "Local")
    assert balanced["loadBalancerSourceRanges"] == ["10.0.0.0/8"]
    assert [port["nodePort"] for port in balanced["ports"]] == [30443, 30444]
    inside = only(render("hub", LEAST | {"service": {"nodePorts": {"grpc": 30443}}}), "Service")["spec"]
    assert not [port for port in inside["ports"] if "nodePort" in port]
    opened = render("hub", LEAST | {"ocmGrpc": {"enabled": True}, "networkPolicy": {"enabled": True}})
    assert [port["targetPort"] for port in only(opened, "Service")["spec"]["ports"]] == ["grpc", "https", "ocm-grpc"]
    ports = {port["name"]: port["containerPort"] for port in container(opened)["ports"]}
    assert ports["ocm-grpc"] == present(settings_of(opened).ocm_grpc_listen).port
    assert {"port": "ocm-grpc", "protocol": "TCP"} in only(opened, "NetworkPolicy")["spec"]["ingress"][0]["ports"]


def test_an_ingress_passes_tls_through_to_each_door_by_its_name() -> None:
    ingress = only(render("hub", MATRIX["hub"]["ingress"] | SIGN_IN), "Ingress")
    routes = {rule["host"]: rule["http"]["paths"][0]["backend"]["service"]["port"]["name"] for rule in ingress["spec"]["rules"]}
    assert routes == {"agents.example.com": "grpc", "api.example.com": "https", "people.example.com": "console"}
    assert ingress["metadata"]["annotations"]["nginx.ingress.kubernetes.io/ssl-passthrough"] == "true"
    assert [sorted(each["hosts"]) for each in ingress["spec"]["tls"]] == [sorted(routes)]


def test_gateways_listen_where_the_hub_is_advertised_and_routes_lead_to_its_ports() -> None:
    documents = render("hub", MATRIX["hub"]["gateway of its own"] | SIGN_IN)
    gateway = only(documents, "Gateway")
    listeners = {each["name"]: each for each in gateway["spec"]["listeners"]}
    assert {name: (each["hostname"], each["port"]) for name, each in listeners.items()} == {
        "grpc": ("hub.example.com", 8443),
        "https": ("hub.example.com", 6443),
        "console": ("people.example.com", 443),
    }
    assert {(each["protocol"], each["tls"]["mode"]) for each in listeners.values()} == {("TLS", "Passthrough")}
    for route in of_kind(documents, "TLSRoute"):
        [parent] = route["spec"]["parentRefs"]
        assert parent["name"] == gateway["metadata"]["name"]
        assert parent["sectionName"] in listeners

    documents = render("hub", MATRIX["hub"]["gateway of others"] | SIGN_IN)
    assert of_kind(documents, "Gateway") == []
    service = only(documents, "Service")
    ports = {port["name"]: port["port"] for port in service["spec"]["ports"]}
    led = {
        route["spec"]["hostnames"][0]: (route["apiVersion"], backend["name"], backend["port"])
        for route in of_kind(documents, "TLSRoute")
        for backend in route["spec"]["rules"][0]["backendRefs"]
    }
    version, name = "gateway.networking.k8s.io/v1alpha2", service["metadata"]["name"]
    doors = {"agents.example.com": "grpc", "api.example.com": "https", "people.example.com": "console"}
    assert led == {host: (version, name, ports[door]) for host, door in doors.items()}


def test_a_network_policy_lets_in_to_the_doors_alone() -> None:
    documents = render("hub", MATRIX["hub"]["closed"])
    policy = only(documents, "NetworkPolicy")["spec"]
    labels = only(documents, "StatefulSet")["spec"]["template"]["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    [rule] = policy["ingress"]
    assert {port["port"] for port in rule["ports"]} == {port["name"] for port in container(documents)["ports"]}
    settings, files = settings_of(documents), ("console_cert_file", "console_key_file", "console_client_secret_file")
    ports = {port["name"]: port["containerPort"] for port in container(documents)["ports"]}
    assert (ports["console"], settings.console_scopes) == (settings.console_listen.port, ("email",))
    secrets = [mounted(documents, str(getattr(settings, file).parent))[1]["secret"]["secretName"] for file in files]
    assert (secrets, rule["from"]) == (["console-tls", "console-tls", "console-client"], [{"ipBlock": {"cidr": "10.0.0.0/8"}}])
    assert (policy["policyTypes"], [port["port"] for port in policy["egress"][0]["ports"]]) == (["Ingress", "Egress"], [53, 53])
    open_one = only(render("hub", LEAST | {"networkPolicy": {"enabled": True}}), "NetworkPolicy")["spec"]
    assert open_one["policyTypes"] == ["Ingress"]
    assert "from" not in open_one["ingress"][0]


def test_metrics_are_scraped_by_a_service_that_no_load_balancer_opens() -> None:
    documents = render("hub", MATRIX["hub"]["seen"] | {"service": {"type": "LoadBalancer"}})
    settings = settings_of(documents)
    ports = {port["name"]: port["containerPort"] for port in container(documents)["ports"]}
    assert ports["metrics"] == present(settings.metrics_listen).port
    assert settings.metrics_per_cluster
    doors, scraped = sorted(of_kind(documents, "Service"), key=lambda each: str(each["spec"]["type"]), reverse=True)
    assert [port["name"] for port in doors["spec"]["ports"]] == ["grpc", "https"]
    assert (scraped["spec"]["clusterIP"], [port["targetPort"] for port in scraped["spec"]["ports"]]) == ("None", ["metrics"])
    monitor = only(documents, "ServiceMonitor")
    wanted = monitor["spec"]["selector"]["matchLabels"]
    assert wanted.items() <= scraped["metadata"]["labels"].items()
    assert not wanted.items() <= doors["metadata"]["labels"].items()
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    assert monitor["spec"]["endpoints"][0]["relabelings"] == [{"targetLabel": "hub", "replacement": "muster"}]
    policy = only(documents, "NetworkPolicy")["spec"]["ingress"]
    assert [[port["port"] for port in rule["ports"]] for rule in policy] == [["grpc", "https"], ["metrics"]]
    off = render("hub", LEAST)
    assert "HUB_METRICS_LISTEN" not in environment(off)
    assert len(of_kind(off, "Service")) == 1


def test_every_group_version_of_the_hubs_own_is_registered_and_no_other() -> None:
    for profiles, left_out in ((False, SERVED_BY_KUBERNETES | OF_OTHERS), (True, SERVED_BY_KUBERNETES)):
        served = {
            (group.name, version)
            for group in groups_of(sentinel.store, GROUP_SUFFIX, sentinel.c, sentinel.l, sentinel.e)
            if group.name not in left_out
            for resource in group.resources
            for version in (resource.version, *(each.name for each in resource.versions))
        }
        documents = render("hub", MATRIX["hub"]["aggregated"] | {"aggregation": {"enabled": True, "clusterProfiles": profiles}})
        registered = of_kind(documents, "APIService")
        assert {(each["spec"]["group"], each["spec"]["version"]) for each in registered} == served
        names = {each["metadata"]["name"] for each in registered}
        assert names == {f"{version}.{group}" for group, version in served}
        writable = granted(documents, "muster-muster-hub-fleet")
        assert writable[0] == (["apiservices"], ["list"], None)
        assert (writable[1][:2], set(writable[1][2])) == ((["apiservices"], ["get", "update"]), names)


def test_the_cluster_reaches_the_hub_by_a_name_that_its_certificate_bears() -> None:
    documents = render("hub", MATRIX["hub"]["aggregated"])
    settings, service = settings_of(documents), only(documents, "Service")
    for registered in of_kind(documents, "APIService"):
        asked = registered["spec"]["service"]
        assert (asked["namespace"], asked["name"]) == ("fleet", service["metadata"]["name"])
        assert asked["port"] in {port["port"] for port in service["spec"]["ports"] if port["name"] == "https"}
        assert f"{asked['name']}.{asked['namespace']}.svc" in settings.serving_names
        assert settings.aggregation_service == f"{asked['namespace']}/{asked['name']}"
    other = render("hub", MATRIX["hub"]["aggregated"] | {"settings": {"api_group_suffix": "fleet.example.com"}})
    groups = {each["spec"]["group"] for each in of_kind(other, "APIService")}
    assert groups == {f"{name}.fleet.example.com" for name in ("addon", "cluster", "hub", "login")}


def test_services_and_sets_select_the_pods_of_hubs_alone() -> None:
    documents = render("hub", BARE | {"kubernetesCA": {"enabled": True}})
    pod = only(documents, "Pod")
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    labels = dict(each.split("=") for each in environment(documents)["HUB_KUBE_CERT_AGENT_LABELS"].split(","))
    for document in documents:
        selector = document.get("spec", {}).get("selector", {})
        for other in (pod["metadata"]["labels"], AgentDeploymentShape("fleet", "agent", "i", "s", labels).pod_labels):
            assert not selector or not selector.get("matchLabels", selector).items() <= other.items(), document["kind"]


@pytest.mark.parametrize("chart", ["hub", "spoke"])
def test_wrong_values_are_refused_with_their_place_or_the_reason(chart: str) -> None:
    flaws = refusal_flaws(chart)
    assert not flaws, "\n".join(flaws)


def spoke_settings_of(values: dict[str, Any], file: dict[str, Any] | None = None) -> SpokeSettings:
    return spoke_settings.load(file or {}, plain(environment(render("spoke", values))), None)


def resources(documents: list[dict[str, Any]], kind: str) -> set[str]:
    return {each for role in of_kind(documents, kind) for rule in role["rules"] for each in rule["resources"]}


def lease_rules(documents: list[dict[str, Any]]) -> list[tuple[list[str], Any]]:
    rules = [rule for rule in only(documents, "Role")["rules"] if "leases" in rule["resources"]]
    return [(rule["verbs"], rule.get("resourceNames")) for rule in rules]


def test_one_agent_has_a_lease_of_its_own_and_time_to_end() -> None:
    assert pod_spec(render("spoke", LEAST_SPOKE))["terminationGracePeriodSeconds"] >= 2 * STOP_WITHIN
    [_, (_, names)] = lease_rules(render("spoke", LEAST_SPOKE))
    assert names == [spoke_settings_of(LEAST_SPOKE).leader_elect_resource_name] == [LEASE]
    off = VALUES["spoke"] | {"leaderElection": {"enabled": False}}
    documents = render("spoke", off)
    assert (lease_rules(documents), only(documents, "Deployment")["spec"]["strategy"]) == ([], {"type": "Recreate"})
    assert spoke_settings_of(off).leader_elect is False


def test_several_processes_of_an_agent_share_a_lease_keep_apart_and_are_not_evicted_at_once() -> None:
    values = LEAST_SPOKE | {"replicas": 2, "leaderElection": {"resourceName": "edge", "retryPeriod": "1s"}}
    documents = render("spoke", values)
    deployment = only(documents, "Deployment")["spec"]
    assert deployment["replicas"] == 2
    assert deployment["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}
    assert lease_rules(documents) == [(["create"], None), (["get", "list", "watch", "update", "delete"], ["edge"])]
    assert environment(documents)["POD_NAME"] == {"fieldRef": {"fieldPath": "metadata.name"}}
    settings = spoke_settings_of(values)
    assert (settings.leader_elect, settings.leader_elect_resource_name) == (True, "edge")
    assert settings.election_timings.retry.total_seconds() == 1
    labels = deployment["template"]["metadata"]["labels"]
    [term] = pod_spec(documents)["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert term["podAffinityTerm"]["labelSelector"]["matchLabels"].items() <= labels.items()
    assert only(documents, "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1


def test_bootstrap_kubeconfigs_and_another_cluster_come_from_secrets() -> None:
    documents, settings = render("spoke", FULL["spoke"]), spoke_settings_of(FULL["spoke"])
    assert settings.spoke_external_server_urls == ("https://one.example.com:6443", "https://two.example.com:6443")
    assert (settings.health_listen, settings.bootstrap_kubeconfig_secret) == (":8000", ("west", "north"))
    assert settings.spoke_kubeconfig == Path("/spoke/config/kubeconfig")
    volumes = [mounted(documents, path)[1] for path in ("/spoke/bootstrap", "/spoke/config")]
    assert [volume["secret"]["secretName"] for volume in volumes] == ["east", "managed"]

    least = render("spoke", LEAST_SPOKE)
    assert not {"SPOKE_BOOTSTRAP_KUBECONFIG_SECRET", "SPOKE_SPOKE_KUBECONFIG"} & set(environment(least))
    assert of_kind(least, "Secret") == []
    documents = render("spoke", MATRIX["spoke"]["with its bootstrap"])
    secret = only(documents, "Secret")
    assert set(secret["stringData"]) == {"kubeconfig"}
    assert mounted(documents, "/spoke/bootstrap")[1]["secret"]["secretName"] == secret["metadata"]["name"]


def test_rights_for_add_ons_are_a_role_of_their_own_and_go_with_them() -> None:
    with_them, without = render("spoke", LEAST_SPOKE), render("spoke", MATRIX["spoke"]["without add-ons"])
    names = {each["metadata"]["name"] for each in of_kind(with_them, "ClusterRole")}
    assert names == {"muster-muster-spoke-fleet", "muster-muster-spoke-fleet-addons"}
    assert "secrets" not in resources(with_them, "ClusterRole"), "not in every namespace"
    places = {each["metadata"]["namespace"] for each in of_kind(with_them, "Role") if "addons" in each["metadata"]["name"]}
    namespaces = {each["metadata"]["name"] for each in of_kind(with_them, "Namespace")}
    assert places == {"open-cluster-management-agent-addon"} == namespaces
    assert resources(without, "ClusterRole") == {"nodes", "namespaces", "clusterclaims", "clusterproperties"}
    assert resources(without, "Role") == resources(with_them, "Role") == {"secrets", "leases", "events", "namespaces"}


def test_a_hosted_agent_has_no_rights_over_the_cluster_that_it_runs_in_but_for_add_ons() -> None:
    documents = render("spoke", MATRIX["spoke"]["hosted"])
    [role] = of_kind(documents, "ClusterRole")
    assert role["metadata"]["name"].endswith("-addons")
    assert spoke_settings_of(MATRIX["spoke"]["hosted"]).attestation_service_account == "fleet/muster-muster-spoke"
    assert "attestation" not in str([each["metadata"]["name"] for each in documents])


def test_rights_of_a_hosted_agent_are_those_that_it_has_when_it_runs_there_and_nothing_runs() -> None:
    over_there = render("spoke", MATRIX["spoke"]["rights of a hosted one"])
    roles = {"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}
    assert ({each["kind"] for each in over_there}, pods_of(over_there)) == ({"Namespace", "ServiceAccount"} | roles, [])
    usual = render("spoke", MATRIX["spoke"]["attested"])
    rules, usual_rules = ([each["rules"] for each in of_kind(one, "ClusterRole")] for one in (over_there, usual))
    assert rules == usual_rules
    [_, token] = of_kind(over_there, "Role")
    account = only(over_there, "ServiceAccount")["metadata"]["name"]
    assert granted(over_there, token["metadata"]["name"]) == [(["serviceaccounts/token"], ["create"], [account])]


def test_settings_reach_the_agent_in_a_file() -> None:
    documents = render("spoke", MATRIX["spoke"]["settings"])
    file = yaml.safe_load(only(documents, "ConfigMap")["data"]["spoke.yaml"])
    settings = spoke_settings_of(MATRIX["spoke"]["settings"], file)
    assert (settings.cluster_healthcheck_period, settings.cluster_labels) == (timedelta(minutes=5), {"region": "eu"})
    for pod in pods_of(documents):
        [container] = pod["containers"]
        [argument] = [each for each in container["args"] if each.startswith("--config=")]
        [mount] = [each for each in container["volumeMounts"] if argument.startswith(f"--config={each['mountPath']}/")]
        assert mount["name"] in {each["name"] for each in pod["volumes"]}


def test_metrics_are_scraped_where_they_are_configured_and_the_policy_lets_that_in() -> None:
    documents = render("spoke", MATRIX["spoke"]["seen"])
    monitor = only(documents, "PodMonitor")
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    ports = {port["name"] for port in pod_spec(documents)["containers"][0]["ports"]}
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    assert (endpoint["path"], endpoint["port"]) == ("/metrics", "health")
    policy = only(render("spoke", MATRIX["spoke"]["closed"]), "NetworkPolicy")
    assert {each["port"] for rule in policy["spec"]["ingress"] for each in rule["ports"]} == ports


def allowed(rights: list[Right], needed: Permission) -> Iterator[bool]:
    resource, _, subresource = needed.resource.partition("/")
    for verb in needed.verbs:
        asked = Attributes(verb, "", needed.group, "v1", resource, subresource, needed.namespace, needed.name)
        yield any(right.allows(asked) for right in rights)


def test_the_test_walks_the_path_with_the_agents_own_settings_and_account() -> None:
    for name, values in MATRIX["spoke"].items():
        for pod in of_kind(documents := render("spoke", values), "Pod"):
            [container] = pod["spec"]["containers"]
            assert container["args"][0] == "doctor"
            assert pod["spec"]["serviceAccountName"] == pod_spec(documents)["serviceAccountName"]
            own = {each["name"]: each for each in container["env"]}
            settings = spoke_settings.load({}, {each: one["value"] for each, one in own.items() if "value" in one}, None)
            over_there = values | {"hosted": {"rightsOnly": True}} if settings.spoke_kubeconfig else values
            rights = rights_of([*documents, *render("spoke", over_there)], "fleet")
            needed = chain(*needed_permissions(settings.model_copy(update={"component_namespace": "fleet"})))
            assert [each for each in needed if not all(allowed(rights, each))] == [], name
            variables = {each["name"]: each for each in pod_spec(documents)["containers"][0]["env"]}
            assert own.items() <= variables.items()
            timings = {f"SPOKE_LEADER_ELECT_{each}" for each in ("LEASE_DURATION", "RENEW_DEADLINE", "RETRY_PERIOD")}
            assert set(variables) - set(own) == {"SPOKE_HUB_KUBECONFIG_DIR", "SPOKE_HEALTH_LISTEN", "POD_NAME"} | timings
