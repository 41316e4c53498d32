"""The hub's chart: what each of its values makes of the objects, and which values it refuses, in which words."""

from typing import Any
from unittest.mock import sentinel

import helm_python
import pytest
import yaml

from hub import settings as hub_settings
from hub.apiserver.groups import groups_of
from hub.settings import Settings
from machinery.product import GROUP_SUFFIX
from tests.charts.rendering import (
    BARE,
    CHARTS,
    FULL,
    MATRIX,
    VALUES,
    environment,
    of_kind,
    only,
    plain,
    pod_spec,
    render,
)
from tests.charts.settings_schema import own_of_the_chart, settings_schema

LEAST = VALUES["hub"]
SERVED_BY_KUBERNETES = {"", "certificates.k8s.io", "coordination.k8s.io", "events.k8s.io", "rbac.authorization.k8s.io"}
OF_OTHERS = {"multicluster.x-k8s.io"}
"""ClusterProfiles: a cluster that knows them has their CRD."""


def container(documents: list[dict[str, Any]]) -> dict[str, Any]:
    [found] = pod_spec(documents)["containers"]
    assert isinstance(found, dict)
    return found


def granted(documents: list[dict[str, Any]], name: str) -> list[tuple[list[str], list[str], Any]]:
    [role] = [each for each in documents if each["kind"] in ("Role", "ClusterRole") and each["metadata"]["name"] == name]
    return [(rule["resources"], rule["verbs"], rule.get("resourceNames")) for rule in role["rules"]]


def test_the_admin_kubeconfig_is_put_into_a_secret_which_the_hub_may_write_and_no_other() -> None:
    documents = render("hub", LEAST)
    secret = only(documents, "Secret")
    assert "data" not in secret
    assert "stringData" not in secret
    name = secret["metadata"]["name"]
    assert granted(documents, "muster-muster-hub-admin") == [(["secrets"], ["get", "update"], [name])]
    settings = hub_settings.load({}, None, plain(environment(documents)))
    assert settings.admin_kubeconfig_secret == f"fleet/{name}"
    assert pod_spec(documents)["automountServiceAccountToken"] is True
    other = render("hub", LEAST | {"adminKubeconfig": {"secret": "first-operator"}})
    assert only(other, "Secret")["metadata"]["name"] == "first-operator"
    assert of_kind(render("hub", BARE), "Secret") == []


def test_a_database_url_becomes_a_secret_and_stands_nowhere_else() -> None:
    documents = render("hub", MATRIX["hub"]["database by url"])
    [secret] = [each for each in of_kind(documents, "Secret") if "stringData" in each]
    assert secret["stringData"] == {"url": "postgresql+psycopg://hub:secret@db/hub"}
    assert environment(documents)["HUB_DATABASE_URL"] == {"secretKeyRef": {"name": secret["metadata"]["name"], "key": "url"}}
    assert "hub:secret" not in yaml.safe_dump([each for each in documents if each is not secret])


def test_another_url_or_setting_starts_the_pods_anew() -> None:
    def notes(values: dict[str, Any]) -> Any:
        return only(render("hub", LEAST | values), "StatefulSet")["spec"]["template"]["metadata"]["annotations"]

    one, two = ({"database": {"url": f"postgresql://hub@{host}/hub"}} for host in ("a", "b"))
    assert notes(one) != notes(two)
    assert notes({"settings": {"login_rate": 5}}) != notes({"settings": {"login_rate": 6}})


def test_settings_reach_the_hub_in_a_file_and_those_of_the_chart_are_not_among_them() -> None:
    documents = render("hub", MATRIX["hub"]["settings"])
    file = only(documents, "ConfigMap")["data"]["hub.yaml"]
    [argument] = [each for each in container(documents)["args"] if each.startswith("--config=")]
    [mount] = [each for each in container(documents)["volumeMounts"] if argument.startswith(f"--config={each['mountPath']}/")]
    [volume] = [each for each in pod_spec(documents)["volumes"] if each["name"] == mount["name"]]
    assert volume["configMap"]["name"] == only(documents, "ConfigMap")["metadata"]["name"]
    settings = hub_settings.load({**yaml.safe_load(file)}, None, plain(environment(documents)))
    assert settings.agent_lifetime.total_seconds() == 240 * 3600
    assert settings.join_labels == ("region",)
    assert settings.brake_share == 0.5
    assert set(settings_schema("hub")["properties"]) == set(Settings.model_fields) - own_of_the_chart("hub")


def test_the_start_may_take_as_long_as_the_hub_gives_itself() -> None:
    documents = render("hub", LEAST | {"startTimeoutSeconds": 300})
    settings = hub_settings.load({}, None, plain(environment(documents)))
    probe = container(documents)["startupProbe"]
    assert settings.start_timeout.total_seconds() == 300
    assert probe["periodSeconds"] * probe["failureThreshold"] >= 2 * 300


def test_names_of_the_serving_certificate_are_the_services_and_those_that_are_added() -> None:
    settings = hub_settings.load({}, None, plain(environment(render("hub", LEAST | {"servingNames": ["10.0.0.7", "hub"]}))))
    assert settings.serving_names == ("muster-muster-hub.fleet.svc", "10.0.0.7", "hub")


def test_a_serving_certificate_of_ones_own_is_mounted_where_the_hub_reads_it() -> None:
    documents = render("hub", MATRIX["hub"]["own serving certificate"])
    settings = hub_settings.load({}, None, plain(environment(documents)))
    [mount] = [each for each in container(documents)["volumeMounts"] if each["name"] == "serving"]
    for file in (settings.serving_cert_file, settings.serving_key_file, settings.serving_ca_file):
        assert file is not None
        assert str(file.parent) == mount["mountPath"]


def test_replicas_are_kept_apart_where_it_can_be_unless_told_otherwise() -> None:
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


def test_a_service_is_reached_as_its_type_has_it() -> None:
    balanced = only(render("hub", MATRIX["hub"]["load balancer"]), "Service")["spec"]
    assert balanced["type"] == "LoadBalancer"
    assert balanced["externalTrafficPolicy"] == "Local"
    assert balanced["loadBalancerSourceRanges"] == ["10.0.0.0/8"]
    assert [port["nodePort"] for port in balanced["ports"]] == [30443, 30444]
    inside = only(render("hub", LEAST | {"service": {"nodePorts": {"grpc": 30443}}}), "Service")["spec"]
    assert not [port for port in inside["ports"] if "nodePort" in port]


def test_an_ingress_passes_tls_through_to_each_door_by_its_name() -> None:
    documents = render("hub", MATRIX["hub"]["ingress"])
    ingress = only(documents, "Ingress")
    routes = {rule["host"]: rule["http"]["paths"][0]["backend"]["service"]["port"]["name"] for rule in ingress["spec"]["rules"]}
    assert routes == {"agents.example.com": "grpc", "api.example.com": "https"}
    assert ingress["metadata"]["annotations"]["nginx.ingress.kubernetes.io/ssl-passthrough"] == "true"
    assert ingress["spec"]["tls"] == [{"hosts": ["agents.example.com", "api.example.com"]}]


def test_a_gateway_of_the_hubs_own_listens_where_it_is_advertised_and_ends_no_tls() -> None:
    documents = render("hub", MATRIX["hub"]["gateway of its own"])
    gateway = only(documents, "Gateway")
    listeners = {each["name"]: each for each in gateway["spec"]["listeners"]}
    assert {name: (each["hostname"], each["port"]) for name, each in listeners.items()} == {
        "grpc": ("hub.example.com", 8443),
        "https": ("hub.example.com", 6443),
    }
    assert {(each["protocol"], each["tls"]["mode"]) for each in listeners.values()} == {("TLS", "Passthrough")}
    for route in of_kind(documents, "TLSRoute"):
        [parent] = route["spec"]["parentRefs"]
        assert parent["name"] == gateway["metadata"]["name"]
        assert parent["sectionName"] in listeners


def test_routes_lead_to_the_services_ports() -> None:
    documents = render("hub", MATRIX["hub"]["gateway of others"])
    service = only(documents, "Service")
    ports = {port["name"]: port["port"] for port in service["spec"]["ports"]}
    led = {
        route["spec"]["hostnames"][0]: (route["apiVersion"], backend["name"], backend["port"])
        for route in of_kind(documents, "TLSRoute")
        for backend in route["spec"]["rules"][0]["backendRefs"]
    }
    version, name = "gateway.networking.k8s.io/v1alpha2", service["metadata"]["name"]
    assert led == {"agents.example.com": (version, name, ports["grpc"]), "api.example.com": (version, name, ports["https"])}
    assert of_kind(documents, "Gateway") == []


def test_a_network_policy_lets_in_to_the_doors_alone() -> None:
    documents = render("hub", MATRIX["hub"]["closed"])
    policy = only(documents, "NetworkPolicy")["spec"]
    labels = only(documents, "StatefulSet")["spec"]["template"]["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    [rule] = policy["ingress"]
    assert {port["port"] for port in rule["ports"]} == {port["name"] for port in container(documents)["ports"]}
    assert rule["from"] == [{"ipBlock": {"cidr": "10.0.0.0/8"}}]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert [port["port"] for port in policy["egress"][0]["ports"]] == [53, 53]
    open_one = only(render("hub", LEAST | {"networkPolicy": {"enabled": True}}), "NetworkPolicy")["spec"]
    assert open_one["policyTypes"] == ["Ingress"]
    assert "from" not in open_one["ingress"][0]


def test_metrics_are_scraped_by_a_service_that_no_load_balancer_opens() -> None:
    documents = render("hub", MATRIX["hub"]["seen"] | {"service": {"type": "LoadBalancer"}})
    settings = hub_settings.load({}, None, plain(environment(documents)))
    ports = {port["name"]: port["containerPort"] for port in container(documents)["ports"]}
    assert settings.metrics_listen is not None
    assert ports["metrics"] == settings.metrics_listen.port
    assert settings.metrics_per_cluster
    doors, scraped = sorted(of_kind(documents, "Service"), key=lambda each: str(each["spec"]["type"]), reverse=True)
    assert [port["name"] for port in doors["spec"]["ports"]] == ["grpc", "https"]
    assert (scraped["spec"]["clusterIP"], [port["targetPort"] for port in scraped["spec"]["ports"]]) == ("None", ["metrics"])
    monitor = only(documents, "ServiceMonitor")
    wanted = monitor["spec"]["selector"]["matchLabels"]
    assert wanted.items() <= scraped["metadata"]["labels"].items()
    assert not wanted.items() <= doors["metadata"]["labels"].items()
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    policy = only(documents, "NetworkPolicy")["spec"]["ingress"]
    assert [[port["port"] for port in rule["ports"]] for rule in policy] == [["grpc", "https"], ["metrics"]]
    off = render("hub", LEAST)
    assert "HUB_METRICS_LISTEN" not in environment(off)
    assert len(of_kind(off, "Service")) == 1


def test_every_group_version_of_the_hubs_own_is_registered_and_no_other() -> None:
    served = {
        (group.name, version)
        for group in groups_of(sentinel.store, GROUP_SUFFIX, sentinel.c, sentinel.l, sentinel.e)
        if group.name not in SERVED_BY_KUBERNETES | OF_OTHERS
        for resource in group.resources
        for version in (resource.version, *(each.name for each in resource.versions))
    }
    documents = render("hub", MATRIX["hub"]["aggregated"])
    registered = of_kind(documents, "APIService")
    assert {(each["spec"]["group"], each["spec"]["version"]) for each in registered} == served
    names = {each["metadata"]["name"] for each in registered}
    assert names == {f"{version}.{group}" for group, version in served}
    writable = granted(documents, "muster-muster-hub-fleet")
    assert writable[0] == (["apiservices"], ["list"], None)
    assert writable[1][:2] == (["apiservices"], ["get", "update"])
    assert set(writable[1][2]) == names


def test_the_cluster_reaches_the_hub_by_a_name_that_its_certificate_bears() -> None:
    documents = render("hub", MATRIX["hub"]["aggregated"])
    settings = hub_settings.load({}, None, plain(environment(documents)))
    service = only(documents, "Service")
    for registered in of_kind(documents, "APIService"):
        asked = registered["spec"]["service"]
        assert (asked["namespace"], asked["name"]) == ("fleet", service["metadata"]["name"])
        assert asked["port"] in {port["port"] for port in service["spec"]["ports"] if port["name"] == "https"}
        assert f"{asked['name']}.{asked['namespace']}.svc" in settings.serving_names
        assert settings.aggregation_service == f"{asked['namespace']}/{asked['name']}"
    other = render("hub", MATRIX["hub"]["aggregated"] | {"settings": {"api_group_suffix": "fleet.example.com"}})
    groups = {each["spec"]["group"] for each in of_kind(other, "APIService")}
    assert groups == {f"{name}.fleet.example.com" for name in ("addon", "cluster", "hub", "login")}


def test_the_pod_of_the_test_is_no_hub_to_the_service() -> None:
    documents = render("hub", LEAST)
    pod = only(documents, "Pod")
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    for document in documents:
        selector = document.get("spec", {}).get("selector", {})
        assert not selector or not selector.get("matchLabels", selector).items() <= pod["metadata"]["labels"].items()


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"advertise": {}}, r"at '/advertise': missing properties 'grpc', 'https'"),
        ({"advertise": {"grpc": "hub.example.com:8443"}}, r"missing property 'https'"),
        ({"advertise": {"grpc": "hub", "https": "hub:1"}}, r"at '/advertise/grpc': 'hub' does not match pattern"),
        ({"service": {"type": "Loadbalancer"}}, r"at '/service/type': value must be one of 'ClusterIP', 'NodePort'"),
        ({"replicas": 0}, r"at '/replicas': minimum: got 0, want 1"),
        ({"replicas": "3"}, r"at '/replicas': got string, want integer"),
        ({"settings": {"agent_lifetme": "1h"}}, r"at '/settings': additional properties 'agent_lifetme' not allowed"),
        ({"settings": {"log_level": "debug"}}, r"additional properties 'log_level' not allowed"),
        ({"settings": {"agent_lifetime": "long"}}, r"at '/settings/agent_lifetime': 'long' does not match"),
        ({"antiAffinity": "yes"}, r"at '/antiAffinity': value must be one of 'soft', 'hard', 'none'"),
        ({"database": {"url": "mysql://db/hub"}}, r"at '/database/url'"),
        ({"image": {"digest": "latest"}}, r"at '/image/digest'"),
        ({"securityContext": {"runAsUser": 0}}, r"at '/securityContext/runAsUser': minimum: got 0, want 1"),
        ({"gateway": {"enabled": True, "parentRefs": [{"nam": "x"}]}}, r"at '/gateway/parentRefs/0'"),
        ({"persistence": {"size": "big"}}, r"at '/persistence/size'"),
    ],
)
def test_the_schema_refuses_with_the_place_and_what_is_wanted(values: dict[str, Any], word: str) -> None:
    with helm_python.Chart.load(CHARTS / "hub") as loaded, pytest.raises(helm_python.HelmError, match=word):
        loaded.validate_schema(LEAST | values)


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"replicas": 2}, "more than one share a PostgreSQL database"),
        ({"persistence": {"enabled": False}}, "loses the hub with its pod"),
        ({"database": {"url": "postgresql://db/hub", "existingSecret": "db"}}, "existingSecret or url, not both"),
        ({"advertise": {"grpc": "hub.example.com:443", "https": "hub.example.com:443"}}, "are two doors"),
        ({"ingress": {"enabled": True}}, "need different hosts"),
        ({"metrics": {"serviceMonitor": {"enabled": True}}}, r"nothing to scrape without metrics\.enabled"),
        ({"gateway": {"enabled": True}}, "parentRefs .* or className"),
        ({"gateway": {"enabled": True, "className": "x", "parentRefs": [{"name": "y"}]}}, "parentRefs .* or className"),
        ({"gateway": {"enabled": True, "parentRefs": [{"name": "y"}]}}, "need different hosts"),
        (
            {"advertise": {"grpc": "10.0.0.7:443", "https": "hub.example.com:443"}, "ingress": {"enabled": True}},
            r"advertise\.grpc needs a DNS name, not the address 10\.0\.0\.7",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_with_the_reason(values: dict[str, Any], word: str) -> None:
    with pytest.raises(helm_python.HelmError, match=word):
        render("hub", LEAST | values)
