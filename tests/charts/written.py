"""What is generated of the charts: the table in each README, the program's settings in its schema, `hubctl join`'s manifests.

`python -m tests.charts` writes them; a test says when that was forgotten.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python
import yaml

from hub.cli import joining
from tests.charts.settings_schema import settings_schema
from tests.charts.values_table import table

CHARTS = Path(__file__).parents[2] / "charts"
HELMS = ("helm.sh/chart", "app.kubernetes.io/managed-by")
ORDER = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "Deployment")
BEGIN, END = "<!-- values: begin, written by `make charts` -->\n", "<!-- values: end -->\n"


def generated() -> Iterator[tuple[Path, str]]:
    """Files, each as it ought to be."""
    for chart in ("hub", "spoke"):
        readme = CHARTS / chart / "README.md"
        head, _, rest = readme.read_text().partition(BEGIN)
        _, _, tail = rest.partition(END)
        yield readme, head + BEGIN + table((CHARTS / chart / "values.yaml").read_text()) + END + tail
        path = CHARTS / chart / "values.schema.json"
        schema = json.loads(path.read_text())
        schema["properties"]["settings"] = settings_schema(chart)
        yield path, json.dumps(schema, indent=2) + "\n"
    yield joining.MANIFESTS, agent_manifests()


def agent_manifests() -> str:
    """What `hubctl join` has of the agent's chart: as Helm renders it, without the labels by which Helm knows its own."""
    repository, _, tag = joining.IMAGE.partition(":")
    with helm_python.Chart.load(CHARTS / "spoke") as chart:
        values = {"image": {"repository": repository, "tag": tag}}
        rendered = chart.render(values, name="muster-spoke", namespace=joining.NAMESPACE)
    texts = [text for path, text in sorted(rendered.items()) if path.endswith(".yaml")]
    found = [document for text in texts for document in yaml.safe_load_all(text) if document]
    own = [document for document in found if "helm.sh/hook" not in document["metadata"].get("annotations", {})]
    written = (yaml.safe_dump(_without_helm(document)) for document in sorted(own, key=lambda each: ORDER.index(each["kind"])))
    return "# charts/spoke as Helm renders it, written by `make charts`; see joining.py.\n" + "---\n".join(written)


def _without_helm(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_helm(each) for each in value]
    if isinstance(value, dict):
        return {name: _without_helm(each) for name, each in value.items() if name not in HELMS}
    return value


def write() -> None:
    for path, content in generated():
        path.write_text(content)
