"""The agent's chart: what each of its values makes of the objects, and which values it refuses, in which words."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import yaml

from spoke import settings as spoke_settings
from spoke.__main__ import STOP_WITHIN
from spoke.settings import LEASE, SpokeSettings
from tests.charts.rendering import (
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

LEAST = VALUES["spoke"]


def settings_of(values: dict[str, Any], file: dict[str, Any] | None = None) -> SpokeSettings:
    return spoke_settings.load(file or {}, plain(environment(render("spoke", values))), None)


def resources(documents: list[dict[str, Any]], kind: str) -> set[str]:
    return {each for role in of_kind(documents, kind) for rule in role["rules"] for each in rule["resources"]}


def test_one_agent_has_a_lease_of_its_own_and_time_to_end() -> None:
    assert pod_spec(render("spoke", LEAST))["terminationGracePeriodSeconds"] >= 2 * STOP_WITHIN
    [rule] = [
        each
        for each in only(render("spoke", LEAST), "Role")["rules"]
        if "leases" in each["resources"] and each.get("resourceNames")
    ]
    assert rule["resourceNames"] == [settings_of(LEAST).leader_elect_resource_name] == [LEASE]

    off = VALUES["spoke"] | {"leaderElection": {"enabled": False}}
    documents = render("spoke", off)
    assert not [each for each in only(documents, "Role")["rules"] if "leases" in each["resources"]]
    assert only(documents, "Deployment")["spec"]["strategy"] == {"type": "Recreate"}
    assert settings_of(off).leader_elect is False


def test_several_processes_of_an_agent_share_a_lease_keep_apart_and_are_not_evicted_at_once() -> None:
    values = LEAST | {"replicas": 2, "leaderElection": {"resourceName": "edge", "retryPeriod": "1s"}}
    documents = render("spoke", values)
    deployment = only(documents, "Deployment")["spec"]
    assert deployment["replicas"] == 2
    assert deployment["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}
    rules = [rule for rule in only(documents, "Role")["rules"] if "leases" in rule["resources"]]
    assert [(rule["verbs"], rule.get("resourceNames")) for rule in rules] == [
        (["create"], None),
        (["get", "list", "watch", "update", "delete"], ["edge"]),
    ]
    assert environment(documents)["POD_NAME"] == {"fieldRef": {"fieldPath": "metadata.name"}}
    settings = settings_of(values)
    assert (settings.leader_elect, settings.leader_elect_resource_name) == (True, "edge")
    assert settings.election_timings.retry.total_seconds() == 1
    labels = deployment["template"]["metadata"]["labels"]
    [term] = pod_spec(documents)["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert term["podAffinityTerm"]["labelSelector"]["matchLabels"].items() <= labels.items()
    assert only(documents, "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1


def test_bootstrap_kubeconfigs_and_another_cluster_come_from_secrets() -> None:
    documents, settings = render("spoke", FULL["spoke"]), settings_of(FULL["spoke"])
    assert settings.spoke_external_server_urls == ("https://one.example.com:6443", "https://two.example.com:6443")
    assert settings.health_listen == "0.0.0.0:8000"
    assert settings.bootstrap_kubeconfig_secret == ("west", "north")
    mounted = {mount["mountPath"]: mount["name"] for mount in pod_spec(documents)["containers"][0]["volumeMounts"]}
    volumes = {volume["name"]: volume.get("secret", {}).get("secretName") for volume in pod_spec(documents)["volumes"]}
    assert volumes[mounted["/spoke/bootstrap"]] == "east"
    assert settings.spoke_kubeconfig == Path("/spoke/config/kubeconfig")
    assert volumes[mounted["/spoke/config"]] == "managed"

    least = render("spoke", LEAST)
    assert not {"SPOKE_BOOTSTRAP_KUBECONFIG_SECRET", "SPOKE_SPOKE_KUBECONFIG"} & set(environment(least))
    assert of_kind(least, "Secret") == []
    documents = render("spoke", MATRIX["spoke"]["with its bootstrap"])
    secret = only(documents, "Secret")
    assert set(secret["stringData"]) == {"kubeconfig"}
    [volume] = [each for each in pod_spec(documents)["volumes"] if each["name"] == "bootstrap"]
    assert volume["secret"]["secretName"] == secret["metadata"]["name"]


def test_rights_for_add_ons_are_a_role_of_their_own_and_go_with_them() -> None:
    with_them, without = render("spoke", LEAST), render("spoke", MATRIX["spoke"]["without add-ons"])
    names = {each["metadata"]["name"] for each in of_kind(with_them, "ClusterRole")}
    assert names == {"muster-muster-spoke-fleet", "muster-muster-spoke-fleet-addons"}
    assert "secrets" not in resources(with_them, "ClusterRole"), "not in every namespace"
    places = {each["metadata"]["namespace"] for each in of_kind(with_them, "Role") if "addons" in each["metadata"]["name"]}
    assert (
        places
        == {"open-cluster-management-agent-addon"}
        == {each["metadata"]["name"] for each in of_kind(with_them, "Namespace")}
    )
    assert resources(without, "ClusterRole") == {"nodes", "namespaces", "clusterclaims", "clusterproperties"}
    assert resources(without, "Role") == resources(with_them, "Role") == {"secrets", "leases", "events", "namespaces"}


def test_a_hosted_agent_has_no_rights_over_the_cluster_that_it_runs_in_but_for_add_ons() -> None:
    documents = render("spoke", MATRIX["spoke"]["hosted"])
    [role] = of_kind(documents, "ClusterRole")
    assert role["metadata"]["name"].endswith("-addons")
    assert settings_of(MATRIX["spoke"]["hosted"]).attestation_service_account == "fleet/muster-muster-spoke"
    assert "attestation" not in str([each["metadata"]["name"] for each in documents])


def test_rights_of_a_hosted_agent_are_those_that_it_has_when_it_runs_there_and_nothing_runs() -> None:
    over_there = render("spoke", MATRIX["spoke"]["rights of a hosted one"])
    assert {each["kind"] for each in over_there} == {
        *("Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
    }
    assert pods_of(over_there) == []
    usual = render("spoke", MATRIX["spoke"]["attested"])
    assert [each["rules"] for each in of_kind(over_there, "ClusterRole")] == [
        each["rules"] for each in of_kind(usual, "ClusterRole")
    ]
    [_, token] = of_kind(over_there, "Role")
    assert token["rules"] == [
        {
            "apiGroups": [""],
            "resources": ["serviceaccounts/token"],
            "resourceNames": [only(over_there, "ServiceAccount")["metadata"]["name"]],
            "verbs": ["create"],
        }
    ]


def test_settings_reach_the_agent_in_a_file() -> None:
    documents = render("spoke", MATRIX["spoke"]["settings"])
    file = yaml.safe_load(only(documents, "ConfigMap")["data"]["spoke.yaml"])
    settings = settings_of(MATRIX["spoke"]["settings"], file)
    assert settings.cluster_healthcheck_period == timedelta(minutes=5)
    assert settings.cluster_labels == {"region": "eu"}
    for pod in pods_of(documents):
        [container] = pod["containers"]
        [argument] = [each for each in container["args"] if each.startswith("--config=")]
        [mount] = [each for each in container["volumeMounts"] if argument.startswith(f"--config={each['mountPath']}/")]
        assert mount["name"] in {each["name"] for each in pod["volumes"]}


def test_metrics_are_scraped_where_they_are_told_and_the_policy_lets_that_in() -> None:
    documents = render("spoke", MATRIX["spoke"]["seen"])
    monitor = only(documents, "PodMonitor")
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    ports = {port["name"] for port in pod_spec(documents)["containers"][0]["ports"]}
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    assert (endpoint["path"], endpoint["port"]) == ("/metrics", "health")
    policy = only(render("spoke", MATRIX["spoke"]["closed"]), "NetworkPolicy")
    assert {each["port"] for rule in policy["spec"]["ingress"] for each in rule["ports"]} == ports


def test_the_test_walks_the_path_with_the_agents_own_settings_and_account() -> None:
    for values in MATRIX["spoke"].values():
        for pod in of_kind(documents := render("spoke", values), "Pod"):
            [container] = pod["spec"]["containers"]
            assert container["args"][0] == "doctor"
            assert pod["spec"]["serviceAccountName"] == pod_spec(documents)["serviceAccountName"]
            own = {each["name"]: each for each in container["env"]}
            told = {each["name"]: each for each in pod_spec(documents)["containers"][0]["env"]}
            assert own.items() <= told.items()
            assert set(told) - set(own) <= {"SPOKE_HUB_KUBECONFIG_DIR", "SPOKE_HEALTH_LISTEN", "POD_NAME"} | {
                name for name in told if name.startswith("SPOKE_LEADER_ELECT")
            }


def test_wrong_values_are_refused_with_their_place_or_the_reason() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"clusterName": "Not_A_Name"}, r"at '/clusterName'"),
        ({"bootstrap": {"existingSecret": ""}}, r"at '/bootstrap/existingSecret': minLength: got 0, want 1"),
        ({"bootstrap": {"furtherSecrets": "west"}}, r"at '/bootstrap/furtherSecrets': got string, want array"),
        ({"registrationDriver": "awsirsa"}, r"at '/registrationDriver': value must be one of 'auto', 'grpc', 'csr'"),
        ({"hosted": {"kubeconfig": "x"}}, r"at '/hosted': additional properties 'kubeconfig' not allowed"),
        ({"settings": {"cluster_label": {}}}, r"at '/settings': additional properties 'cluster_label' not allowed"),
        ({"settings": {"rejoin": "yes"}}, r"at '/settings/rejoin': got string, want boolean"),
        ({"externalServerURLs": ["http://plain.example.com"]}, r"at '/externalServerURLs/0'"),
        ({"leaderElection": {"leaseDuration": "15"}}, r"at '/leaderElection/leaseDuration'"),
        ({"securityContext": {"runAsUser": 0}}, r"at '/securityContext/runAsUser': minimum: got 0, want 1"),
        ({"strategy": {"type": "Rolling"}}, r"at '/strategy/type': value must be one of"),
        ({"hosted": {"kubeconfigSecret": "x", "rightsOnly": True}}, "one of them in one release"),
        ({"leaderElection": {"enabled": False}, "replicas": 2}, r"which needs leaderElection\.enabled"),
    ]
    flaws = refusal_flaws("spoke", wrong)
    assert not flaws, "\n".join(flaws)
