"""The charts as Helm sees them: linted, rendered, and every object held against the Kubernetes schemas, strictly."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml
from pydantic import BaseModel

from hub import process as hub_process
from hub import settings as hub_settings
from hub.ending import stop_times_of
from hub.settings import Settings as HubSettings
from machinery import product
from spoke import settings as spoke_settings
from spoke.settings import Settings as SpokeSettings
from tests.charts.rendering import (
    BARE,
    CHARTS,
    FULL,
    MATRIX,
    ROOT,
    VALUES,
    environment,
    of_kind,
    only,
    plain,
    pod_spec,
    pods_of,
    render,
)
from tests.charts.restricted import violations
from tests.charts.schemas import validate
from tests.charts.written import generated

KUBERNETES = ["1.27", "1.37"]
"""The oldest that the charts take, and the newest there is."""


@pytest.mark.parametrize("chart", ["hub", "spoke"])
def test_chart_has_no_lint_finding(chart: str) -> None:
    report = helm_python.lint(CHARTS / chart, VALUES[chart], strict=True, namespace="fleet")
    # 1 is "icon is recommended"; everything above it is a finding.
    assert [message for message in report["messages"] if message["severity"] > 1] == []
    assert report["errors"] == []


RULES = """groups:
  - name: more
    rules:
      - alert: Gone
        expr: up == 0
        annotations:
          summary: "{{ $labels.instance }} is gone"
"""
CASES = [(chart, name) for chart in MATRIX for name in MATRIX[chart]]


@pytest.mark.parametrize("kubernetes", KUBERNETES)
@pytest.mark.parametrize(("chart", "values"), CASES)
def test_every_rendered_object_is_valid(chart: str, values: str, kubernetes: str) -> None:
    documents = render(chart, MATRIX[chart][values])
    assert documents
    for document in documents:
        validate(document, kubernetes)


@pytest.mark.parametrize(("chart", "values"), CASES)
def test_pods_pass_the_restricted_security_standard(chart: str, values: str) -> None:
    for pod in pods_of(render(chart, MATRIX[chart][values])):
        assert violations(pod) == []


@pytest.mark.parametrize("chart", ["hub", "spoke"])
def test_probes_ask_for_life_and_readiness_where_they_are_served(chart: str) -> None:
    [container] = pod_spec(render(chart, VALUES[chart]))["containers"]
    ports = {port["name"] for port in container["ports"]}
    assert container["livenessProbe"]["httpGet"]["path"] == "/livez"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert container["livenessProbe"]["httpGet"]["port"] in ports
    assert container["readinessProbe"]["httpGet"]["port"] in ports


@pytest.mark.parametrize("chart", ["hub", "spoke"])
def test_selectors_find_the_pods_and_everything_is_part_of_the_product(chart: str) -> None:
    documents = render(chart, VALUES[chart])
    [workload] = [document for document in documents if document["kind"] in {"Deployment", "StatefulSet"}]
    labels = workload["spec"]["template"]["metadata"]["labels"]
    assert workload["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert {document["metadata"]["labels"]["app.kubernetes.io/part-of"] for document in documents} == {product.PART_OF}
    if chart == "hub":
        assert only(documents, "Service")["spec"]["selector"].items() <= labels.items()


def test_service_of_the_hub_has_both_doors() -> None:
    documents = render("hub", VALUES["hub"])
    [container] = pod_spec(documents)["containers"]
    named = {port["name"]: port["containerPort"] for port in container["ports"]}
    served = {port["targetPort"]: port["port"] for port in only(documents, "Service")["spec"]["ports"]}
    assert named == served == {"grpc": 8443, "https": 6443}


@pytest.mark.parametrize(("chart", "settings"), [("hub", HubSettings), ("spoke", SpokeSettings)])
def test_every_variable_is_a_setting_of_the_program(chart: str, settings: type[BaseModel]) -> None:
    known = {f"{chart.upper()}_{name.upper()}" for name in settings.model_fields} | {"POD_NAME", "POD_NAMESPACE"}
    assert set(environment(render(chart, FULL[chart]))) <= known


def test_programs_take_the_values_of_their_variables() -> None:
    hub = hub_settings.load({}, None, plain(environment(render("hub", FULL["hub"]))))
    assert hub.auto_approve == ("edge-*", "*")
    assert str(hub.grpc_advertised) == "hub.example.com:8443"
    spoke = spoke_settings.load({}, plain(environment(render("spoke", FULL["spoke"]))), None)
    assert spoke.spoke_external_server_urls == ("https://one.example.com:6443", "https://two.example.com:6443")
    assert spoke.health_listen == "0.0.0.0:8000"


@pytest.mark.parametrize(
    "shutdown", [{}, {"delaySeconds": 0}, {"delaySeconds": 90, "graceSeconds": 120, "sendRetryAfter": False}]
)
def test_the_pod_of_the_hub_is_given_the_time_that_a_stop_may_take(shutdown: dict[str, Any]) -> None:
    documents = render("hub", VALUES["hub"] | {"shutdown": shutdown})
    settings = hub_settings.load({}, None, plain(environment(documents)))
    pod = next(document for document in documents if document["kind"] == "StatefulSet")["spec"]["template"]["spec"]
    assert settings.shutdown_send_retry_after is shutdown.get("sendRetryAfter", True)
    assert settings.shutdown_delay.total_seconds() == shutdown.get("delaySeconds", 5)
    longest = stop_times_of(settings).longest + hub_process.CLOSED_WITHIN
    assert pod["terminationGracePeriodSeconds"] > longest.total_seconds()


def test_a_hub_that_keeps_its_ca_in_a_secret_may_read_and_write_that_one_alone() -> None:
    documents = render("hub", BARE | {"ca": {"keyPlace": "secret"}})
    [role] = [document for document in documents if document["kind"] == "Role"]
    of_secrets = [(rule["verbs"], rule.get("resourceNames")) for rule in role["rules"] if rule["resources"] == ["secrets"]]
    assert of_secrets == [(["create"], None), (["get", "update"], ["muster-muster-hub-ca"])]
    [workload] = [document for document in documents if document["kind"] == "StatefulSet"]
    pod = workload["spec"]["template"]["spec"]
    environment = {each["name"]: each.get("value") for each in pod["containers"][0]["env"]}
    assert environment["HUB_CA_KEY_PLACE"] == "secret"
    assert environment["HUB_CA_KEY_SECRET"].endswith("/muster-muster-hub-ca")
    assert pod["automountServiceAccountToken"] is True
    assert not [document for document in render("hub", BARE) if document["kind"] == "Role"]


def test_a_hub_whose_lock_is_a_lease_may_what_that_takes_and_nothing_more() -> None:
    documents = render("hub", BARE | {"election": {"lock": "kubernetes"}})
    pod, variables = pod_spec(documents), environment(documents)
    assert pod["automountServiceAccountToken"] is True
    assert {"POD_NAME", "POD_NAMESPACE"} <= set(variables)
    settings = hub_settings.load({}, None, plain(variables))
    assert settings.leader_elect_resource_lock == "kubernetes"
    name = settings.leader_elect_resource_name
    granted = {
        (group, resource, verb, named)
        for rule in only(documents, "Role")["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for named in rule.get("resourceNames", ["*"])
    }
    workload = only(documents, "StatefulSet")["metadata"]["name"]
    leases = "coordination.k8s.io", "leases"
    assert granted == {
        (*leases, "create", "*"),
        (*leases, "get", name),
        (*leases, "update", name),
        ("", "pods", "get", "*"),
        ("apps", "statefulsets", "get", workload),
    }
    binding = only(documents, "RoleBinding")
    assert binding["roleRef"]["name"] == only(documents, "Role")["metadata"]["name"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": pod["serviceAccountName"], "namespace": "fleet"}]


def test_a_hub_that_asks_the_cluster_for_nothing_has_no_token_and_no_rights() -> None:
    documents = render("hub", BARE)
    assert pod_spec(documents)["automountServiceAccountToken"] is False
    assert {document["kind"] for document in documents}.isdisjoint({"Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"})
    settings = hub_settings.load({}, None, plain(environment(documents)))
    assert (settings.leader_elect_resource_lock, settings.leader_elect_resource_name) == ("database", None)


def test_hub_advertises_what_the_values_say() -> None:
    variables = environment(render("hub", VALUES["hub"]))
    assert variables["HUB_GRPC_ADVERTISED"] == "hub.example.com:8443"
    assert variables["HUB_HTTPS_ADVERTISED"] == "hub.example.com:6443"


def test_replicas_share_a_database_and_keys_and_are_called_as_their_pods() -> None:
    documents = render("hub", FULL["hub"])
    assert only(documents, "StatefulSet")["spec"]["replicas"] == 3
    assert only(documents, "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1
    variables = environment(documents)
    assert variables["POD_NAME"] == {"fieldRef": {"fieldPath": "metadata.name"}}
    [container] = pod_spec(documents)["containers"]
    [mount] = [mount for mount in container["volumeMounts"] if mount["mountPath"] == variables["HUB_KEYS_DIR"]]
    [volume] = [volume for volume in pod_spec(documents)["volumes"] if volume["name"] == mount["name"]]
    assert mount["readOnly"]
    assert volume["secret"]["secretName"] == "hub-keys"
    assert "HUB_KEYS_DIR" not in environment(render("hub", VALUES["hub"]))


@pytest.mark.parametrize("lacking", ["database", "keys"])
def test_replicas_without_what_they_share_are_refused(lacking: str) -> None:
    values = {name: value for name, value in FULL["hub"].items() if name != lacking}
    with pytest.raises(Exception, match="more than one share a PostgreSQL database"):
        render("hub", values)


def test_database_url_comes_from_a_secret_and_never_from_values() -> None:
    assert "HUB_DATABASE_URL" not in environment(render("hub", VALUES["hub"]))
    url = environment(render("hub", FULL["hub"]))["HUB_DATABASE_URL"]
    assert url == {"secretKeyRef": {"name": "hub-database", "key": "url"}}


@pytest.mark.parametrize(
    ("chart", "values", "named"),
    [
        ("hub", {}, "advertise"),
        ("hub", {"advertise": {"grpc": "hub.example.com", "https": "hub.example.com:6443"}}, "grpc"),
        ("hub", VALUES["hub"] | {"defaultLeaseDuration": "sixty"}, "defaultLeaseDuration"),
        ("hub", VALUES["hub"] | {"autoAprove": ["*"]}, "autoAprove"),
        ("spoke", {"clusterName": "Not_A_Name"}, "clusterName"),
        ("spoke", {"externalServerURLs": ["http://plain.example.com"]}, "externalServerURLs"),
    ],
)
def test_bad_values_are_refused_by_name(chart: str, values: dict[str, Any], named: str) -> None:
    with helm_python.Chart.load(CHARTS / chart) as loaded, pytest.raises(helm_python.HelmError, match=named):
        loaded.validate_schema(values)


def _granted(documents: list[dict[str, Any]], kind: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for document in of_kind(documents, kind):
        for rule in document["rules"]:
            for each in rule["resources"]:
                found.setdefault(each, set()).update(rule["verbs"])
    return found


def test_several_processes_of_an_agent_share_a_lease_that_they_may_watch_and_write() -> None:
    documents = render(
        "spoke", VALUES["spoke"] | {"replicas": 2, "leaderElection": {"resourceName": "edge", "retryPeriod": "1s"}}
    )
    deployment = only(documents, "Deployment")["spec"]
    assert deployment["replicas"] == 2
    assert deployment["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}
    leases = [
        (rule["verbs"], rule.get("resourceNames")) for rule in only(documents, "Role")["rules"] if "leases" in rule["resources"]
    ]
    assert leases == [(["create"], None), (["get", "list", "watch", "update", "delete"], ["edge"])]
    variables = environment(documents)
    assert variables["POD_NAME"] == {"fieldRef": {"fieldPath": "metadata.name"}}
    settings = spoke_settings.load({"bootstrap_kubeconfig": "b"}, plain(variables), None)
    assert (settings.leader_elect, settings.leader_elect_resource_name) == (True, "edge")
    assert settings.election_timings.retry.total_seconds() == 1


def test_further_hubs_and_another_cluster_come_from_secrets() -> None:
    documents = render("spoke", FULL["spoke"])
    spoke = spoke_settings.load({}, plain(environment(documents)), None)
    assert spoke.bootstrap_kubeconfig_secret == ("west", "north")
    mounted = {mount["mountPath"]: mount["name"] for mount in pod_spec(documents)["containers"][0]["volumeMounts"]}
    volumes = {volume["name"]: volume.get("secret", {}).get("secretName") for volume in pod_spec(documents)["volumes"]}
    assert volumes[mounted["/spoke/bootstrap"]] == "east"
    assert spoke.spoke_kubeconfig == Path("/spoke/config/kubeconfig")
    assert volumes[mounted["/spoke/config"]] == "managed"
    alone = environment(render("spoke", VALUES["spoke"]))
    assert not {"SPOKE_BOOTSTRAP_KUBECONFIG_SECRET", "SPOKE_SPOKE_KUBECONFIG"} & set(alone)


def test_without_an_election_an_update_ends_the_old_process_first_and_there_is_one() -> None:
    off = VALUES["spoke"] | {"leaderElection": {"enabled": False}}
    documents = render("spoke", off)
    assert only(documents, "Deployment")["spec"]["strategy"] == {"type": "Recreate"}
    assert spoke_settings.load({"bootstrap_kubeconfig": "b"}, plain(environment(documents)), None).leader_elect is False
    with pytest.raises(Exception, match=r"which needs leaderElection\.enabled"):
        render("spoke", off | {"replicas": 2})


@pytest.mark.parametrize(("chart", "values"), CASES)
def test_bindings_name_the_account_that_the_pod_uses_and_roles_that_are_there(chart: str, values: str) -> None:
    documents = render(chart, MATRIX[chart][values])
    [account] = {each["metadata"]["name"] for each in of_kind(documents, "ServiceAccount")} - {"muster-muster-hub-cert"}
    assert {pod.get("serviceAccountName", account) for pod in pods_of(documents)} <= {account}
    roles = {(each["kind"], each["metadata"]["name"]) for each in documents if each["kind"] in ("Role", "ClusterRole")}
    kubernetes = {("ClusterRole", "system:auth-delegator"), ("Role", "extension-apiserver-authentication-reader")}
    bound = set()
    for binding in (*of_kind(documents, "ClusterRoleBinding"), *of_kind(documents, "RoleBinding")):
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": "fleet"}]
        bound.add((binding["roleRef"]["kind"], binding["roleRef"]["name"]))
    assert bound - kubernetes == roles


@pytest.mark.parametrize("chart", ["hub", "spoke"])
def test_notes_render(chart: str) -> None:
    with helm_python.Chart.load(CHARTS / chart) as loaded:
        rendered = loaded.render(FULL[chart], name="muster", namespace="fleet")
    [notes] = [text for path, text in rendered.items() if path.endswith("NOTES.txt")]
    assert "fleet" in notes
    assert "{{ " not in notes
    assert "<no value>" not in notes


@pytest.mark.parametrize("chart", ["hub", "spoke"])
def test_names_fit_a_label_for_the_longest_release_name(chart: str) -> None:
    for document in render(chart, VALUES[chart], name="a" * 53):
        if "namespace" not in document["metadata"]:  # roles of the whole cluster, which may have any name
            continue
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", document["metadata"]["name"])


@pytest.mark.parametrize("chart", ["hub", "spoke"])
def test_chart_bears_the_products_version(chart: str) -> None:
    described = yaml.safe_load((CHARTS / chart / "Chart.yaml").read_text())
    project = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert project
    assert described["name"] == f"{product.NAME}-{chart}"
    assert described["version"] == described["appVersion"] == project[1]


@pytest.mark.parametrize("chart", ["hub", "spoke"])
def test_every_value_is_described_by_the_schema(chart: str) -> None:
    values = yaml.safe_load((CHARTS / chart / "values.yaml").read_text())
    schema = json.loads((CHARTS / chart / "values.schema.json").read_text())
    assert set(values) <= set(schema["properties"])


@pytest.mark.parametrize("path", [path for path, _ in generated()], ids=lambda path: f"{path.parent.name}-{path.name}")
def test_what_is_generated_is_as_it_was_generated_last(path: Any) -> None:
    assert path.read_text() == dict(generated())[path], "run `make charts`, and commit what it writes"


@pytest.mark.parametrize("chart", ["hub", "spoke"])
def test_rules_and_dashboards_are_those_of_the_charts_folders_word_by_word(chart: str, tmp_path: Path) -> None:
    copied = shutil.copytree(CHARTS / chart, tmp_path / chart)
    for folder, name, text in (("rules", "more.yaml", RULES), ("dashboards", "more.json", '{"title": "{{ name }}"}')):
        (copied / folder).mkdir(exist_ok=True)
        (copied / folder / name).write_text(text)
    with helm_python.Chart.load(copied) as loaded:
        rendered = loaded.render(MATRIX[chart]["seen"], name="muster", namespace="fleet")
    [text] = [text for path, text in rendered.items() if path.endswith("monitoring.yaml")]
    documents = [document for document in yaml.safe_load_all(text) if document]
    rules = {
        each["metadata"]["name"].removeprefix(f"muster-muster-{chart}-"): each["spec"]
        for each in of_kind(documents, "PrometheusRule")
    }
    shown = {name: text for each in of_kind(documents, "ConfigMap") for name, text in each["data"].items()}
    assert rules == {path.stem: yaml.safe_load(path.read_text()) for path in (copied / "rules").iterdir()}
    assert {name: json.loads(text) for name, text in shown.items()} == {
        path.name: json.loads(path.read_text()) for path in (copied / "dashboards").iterdir()
    }
    assert {each["metadata"]["labels"]["grafana_dashboard"] for each in of_kind(documents, "ConfigMap")} == {"1"}
    assert of_kind(render(chart, VALUES[chart]), "ConfigMap") == of_kind(render(chart, VALUES[chart]), "PrometheusRule") == []
