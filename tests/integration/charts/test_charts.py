"""Both charts as Helm renders them: lint, Kubernetes schemas, pod security, accounts, labels, and what is generated."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python
import jsonschema
import pytest
import yaml
from kubernetes_validate.utils import ValidationError
from pydantic import BaseModel

from hub.extensions.settings import Settings
from machinery import product
from spoke.settings import SpokeSettings
from tests.charts.rendering import CHARTS, FULL, MATRIX, ROOT, VALUES, environment, of_kind, only, pod_spec, pods_of, render
from tests.charts.schemas import validate, violations
from tests.charts.written import generated, own_of_the_chart, settings_schema

KUBERNETES = ["1.27", "1.37"]
"""The oldest that the charts take, and the newest there is."""
SETTINGS: dict[str, type[BaseModel]] = {"hub": Settings, "spoke": SpokeSettings}
ROLES_OF_KUBERNETES = {("ClusterRole", "system:auth-delegator"), ("Role", "extension-apiserver-authentication-reader")}
RULES = """groups:
  - name: more
    rules:
      - alert: Gone
        expr: up == 0
        annotations:
          summary: "{{ $labels.instance }} is gone"
"""


def flaws_of(documents: list[dict[str, Any]]) -> Iterator[str]:
    """Objects that Kubernetes refuses, pods that are not restricted, bindings of other accounts or roles."""
    for document in documents:
        for kubernetes in KUBERNETES:
            try:
                validate(document, kubernetes)
            except (jsonschema.ValidationError, ValidationError) as error:
                yield f"{document['kind']} in Kubernetes {kubernetes}: {error}"
    for pod in pods_of(documents):
        yield from violations(pod)
    [account] = {each["metadata"]["name"] for each in of_kind(documents, "ServiceAccount")} - {"muster-muster-hub-cert"}
    if not {pod.get("serviceAccountName", account) for pod in pods_of(documents)} <= {account}:
        yield "a pod has another account"
    bindings = [*of_kind(documents, "ClusterRoleBinding"), *of_kind(documents, "RoleBinding")]
    if any(each["subjects"] != [{"kind": "ServiceAccount", "name": account, "namespace": "fleet"}] for each in bindings):
        yield "a binding names another account"
    roles = {(each["kind"], each["metadata"]["name"]) for each in documents if each["kind"] in ("Role", "ClusterRole")}
    if {(each["roleRef"]["kind"], each["roleRef"]["name"]) for each in bindings} - ROLES_OF_KUBERNETES != roles:
        yield "roles and bindings do not match"
    if not documents or {each["metadata"]["labels"]["app.kubernetes.io/part-of"] for each in documents} != {product.PART_OF}:
        yield "an object is not part of the product"


def test_rendered_objects_are_valid_restricted_and_bound_to_their_account() -> None:
    flaws = [
        f"{chart}, {name}: {flaw}"
        for chart, matrix in MATRIX.items()
        for name, values in matrix.items()
        for flaw in flaws_of(render(chart, values))
    ]
    assert not flaws, "\n".join(flaws)


@pytest.mark.parametrize("chart", MATRIX)
def test_chart_is_linted_described_and_as_generated(chart: str) -> None:
    report = helm_python.lint(CHARTS / chart, VALUES[chart], strict=True, namespace="fleet")
    # 1 is "icon is recommended"; everything above it is a finding.
    assert [message for message in report["messages"] if message["severity"] > 1] == []
    assert report["errors"] == []

    described = yaml.safe_load((CHARTS / chart / "Chart.yaml").read_text())
    project = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert project
    assert described["name"] == f"{product.NAME}-{chart}"
    assert described["version"] == described["appVersion"] == project[1]
    schema = json.loads((CHARTS / chart / "values.schema.json").read_text())
    assert set(yaml.safe_load((CHARTS / chart / "values.yaml").read_text())) <= set(schema["properties"])
    stale = [str(path.relative_to(ROOT)) for path, content in generated() if path.read_text() != content]
    assert stale == [], "run `make charts`, and commit what it writes"

    with helm_python.Chart.load(CHARTS / chart) as loaded:
        rendered = loaded.render(FULL[chart], name="muster", namespace="fleet")
    [notes] = [text for path, text in rendered.items() if path.endswith("NOTES.txt")]
    assert "fleet" in notes
    assert "{{ " not in notes
    assert "<no value>" not in notes


@pytest.mark.parametrize("chart", MATRIX)
def test_workload_has_probes_selectors_names_and_known_settings(chart: str) -> None:
    documents = render(chart, VALUES[chart])
    [container] = pod_spec(documents)["containers"]
    ports = {port["name"] for port in container["ports"]}
    for probe, path in (("livenessProbe", "/livez"), ("readinessProbe", "/readyz")):
        assert container[probe]["httpGet"]["path"] == path
        assert container[probe]["httpGet"]["port"] in ports

    [workload] = [document for document in documents if document["kind"] in {"Deployment", "StatefulSet"}]
    labels = workload["spec"]["template"]["metadata"]["labels"]
    assert workload["spec"]["selector"]["matchLabels"].items() <= labels.items()
    if chart == "hub":
        assert only(documents, "Service")["spec"]["selector"].items() <= labels.items()

    longest = render(chart, VALUES[chart], name="a" * 53)
    names = [each["metadata"]["name"] for each in longest if "namespace" in each["metadata"] and "Role" not in each["kind"]]
    assert [name for name in names if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name)] == []

    fields = set(SETTINGS[chart].model_fields)
    known = {f"{chart.upper()}_{name.upper()}" for name in fields} | {"POD_NAME", "POD_NAMESPACE"}
    assert set(environment(render(chart, FULL[chart]))) <= known
    assert set(settings_schema(chart)["properties"]) == fields - own_of_the_chart(chart)


@pytest.mark.parametrize("chart", MATRIX)
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
    shown = {name: json.loads(text) for each in of_kind(documents, "ConfigMap") for name, text in each["data"].items()}
    assert rules == {path.stem: yaml.safe_load(path.read_text()) for path in (copied / "rules").iterdir()}
    assert shown == {path.name: json.loads(path.read_text()) for path in (copied / "dashboards").iterdir()}
    assert {each["metadata"]["labels"]["grafana_dashboard"] for each in of_kind(documents, "ConfigMap")} == {"1"}
    least = render(chart, VALUES[chart])
    assert of_kind(least, "ConfigMap") == of_kind(least, "PrometheusRule") == []
