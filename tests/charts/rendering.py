"""The charts as the Helm library renders them, and what is looked for in what comes out."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import helm_python
import yaml

ROOT = Path(__file__).parents[2]
CHARTS = ROOT / "charts"
_TABLES: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "values.yaml").read_text())
VALUES: dict[str, dict[str, Any]] = _TABLES["least"]
FULL: dict[str, dict[str, Any]] = _TABLES["full"]
BARE: dict[str, Any] = VALUES["hub"] | {"adminKubeconfig": {"enabled": False}}
"""A hub that asks the cluster that it runs in for nothing."""
MATRIX: dict[str, dict[str, dict[str, Any]]] = {
    chart: {"full": FULL[chart], **{name: VALUES[chart] | values for name, values in beside.items()}}
    for chart, beside in _TABLES["beside"].items()
}
MATRIX["spoke"]["rights of a hosted one"] = {"hosted": {"rightsOnly": True}, "attestation": {"enabled": True}}
"""Each feature by itself, and all that go together."""


def render(chart: str, values: dict[str, Any], name: str = "muster") -> list[dict[str, Any]]:
    """Every object, those of hooks too. Raises HelmError for what the schema or a template refuses."""
    return list(json.loads(_rendered(chart, json.dumps(values), name)))


@cache
def _rendered(chart: str, values: str, name: str) -> str:
    with helm_python.Chart.load(CHARTS / chart) as loaded:
        loaded.validate_schema(json.loads(values))
        rendered = loaded.render(json.loads(values), name=name, namespace="fleet")
    texts = [text for path, text in sorted(rendered.items()) if path.endswith(".yaml")]
    return json.dumps([each for text in texts for each in yaml.load_all(text, Loader=yaml.CSafeLoader) if each])


def refusal_flaws(chart: str) -> list[str]:
    """Wrong values, beside the least ones, that are rendered or refused without the pattern."""
    flaws = []
    for wrong in _TABLES["wrong"][chart]:
        try:
            render(chart, VALUES[chart] | wrong["values"])
        except helm_python.HelmError as error:
            if not re.search(wrong["says"], str(error)):
                flaws.append(f"{wrong}: {error}")
        else:
            flaws.append(f"{wrong} is not refused")
    return flaws


def of_kind(documents: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [document for document in documents if document["kind"] == kind]


def only(documents: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    """The one of that kind, but for what is in the namespaces of add-ons."""
    [found] = [each for each in of_kind(documents, kind) if not each["metadata"]["name"].endswith("-addons")]
    return found


def pod_spec(documents: list[dict[str, Any]]) -> dict[str, Any]:
    [workload] = [document for document in documents if document["kind"] in {"Deployment", "StatefulSet"}]
    return dict(workload["spec"]["template"]["spec"])


def pods_of(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The spec of every pod that comes of it, those of hooks too."""
    jobs = [each["spec"]["jobTemplate"] for each in documents if each["kind"] == "CronJob"]
    specs = [each["spec"] for each in [*documents, *jobs] if "spec" in each]
    pods = [spec["template"]["spec"] for spec in specs if "template" in spec]
    return [*pods, *(document["spec"] for document in documents if document["kind"] == "Pod")]


def environment(documents: list[dict[str, Any]]) -> dict[str, Any]:
    [container] = pod_spec(documents)["containers"]
    return {variable["name"]: variable.get("value", variable.get("valueFrom")) for variable in container["env"]}


def plain(variables: dict[str, Any]) -> dict[str, str]:
    """Those whose value stands in the manifest."""
    return {name: value for name, value in variables.items() if isinstance(value, str)}
