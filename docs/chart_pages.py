"""Generates the tables of values in the READMEs of the charts, their settings schema, and the manifests of `hubctl join`."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import helm_python
import yaml
from pydantic import BaseModel

from hub.extensions.settings import Settings
from hubctl.commands.clusters import join as joining
from spoke.settings import SpokeSettings

CHARTS = Path(__file__).parents[1] / "charts"
HELMS = ("helm.sh/chart", "helm.sh/resource-policy", "app.kubernetes.io/managed-by")
ORDER = ("Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "Deployment")
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
    return "# charts/spoke as Helm renders it, written by `make charts`; see join.py.\n" + "---\n".join(written)


def _without_helm(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_helm(each) for each in value]
    if isinstance(value, dict):
        return {name: _without_helm(each) for name, each in value.items() if name not in HELMS}
    return value


def write() -> None:
    for path, content in generated():
        path.write_text(content)


@dataclass(frozen=True, slots=True)
class Program:
    """What a chart runs. `apart`: settings that have no place in a chart's file, or that the pod says."""

    settings: type[BaseModel]
    apart: frozenset[str]
    duration: str


PROGRAMS: Mapping[str, Program] = {
    "hub": Program(
        Settings,
        frozenset({"database_url", "replica_name", "leader_elect_resource_namespace", "kube_cert_agent_namespace"}),
        r"^([0-9]+(\.[0-9]+)?(ms|s|m|h|d))+$",
    ),
    "spoke": Program(SpokeSettings, frozenset({"kubeconfig", "proxy_url"}), r"^[0-9]+(\.[0-9]+)?(ms|s|m|h)$"),
}


def own_of_the_chart(chart: str) -> frozenset[str]:
    """Settings that the chart has values of its own for, and those that are no file's."""
    templates = (path.read_text() for path in sorted((CHARTS / chart / "templates").glob("*")) if path.is_file())
    named = re.findall(rf"- name: {chart.upper()}_([A-Z_]+)$", "\n".join(templates), re.MULTILINE)
    return frozenset(name.lower() for name in named) | PROGRAMS[chart].apart


def settings_schema(chart: str) -> dict[str, Any]:
    program, own = PROGRAMS[chart], own_of_the_chart(chart)
    properties = {}
    for name, field in sorted(program.settings.model_fields.items()):
        if name not in own:
            described = {"description": " ".join(field.description.split())} if field.description else {}
            properties[name] = {**_form(field.annotation, program.duration), **described}
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _form(annotation: Any, duration: str) -> dict[str, Any]:
    """As a settings file has it."""
    arguments = [each for each in get_args(annotation) if each is not type(None)]
    origin = get_origin(annotation)
    if origin is Annotated or origin in (Union, UnionType):
        return _form(arguments[0], duration)
    if isinstance(annotation, type) and issubclass(annotation, StrEnum):
        return {"enum": [each.value for each in annotation]}
    known: dict[Any, dict[str, Any]] = {
        Literal: {"enum": arguments},
        tuple: {"type": "array", "items": {"type": "string", "minLength": 1}},
        dict: {"type": "object", "additionalProperties": {"type": "string"}},
        bool: {"type": "boolean"},
        int: {"type": "integer", "minimum": 0},
        float: {"type": "number", "minimum": 0},
        timedelta: {"type": "string", "pattern": duration},
    }
    return known.get(origin or annotation, {"type": "string"})


_KEY = re.compile(r"^( *)([A-Za-z][\w.-]*):(.*)$")
_WIDEST = 60


def table(text: str) -> str:
    """A row for each value, in the order of the file, with the comment above it; an example, which is indented, is code.

    What stands below an example or a list is part of it.
    """
    whole = yaml.safe_load(text)
    rows = ["| value | default | what it is |", "|---|---|---|"]
    comment: list[str] = []
    above: list[tuple[int, str, Any]] = []
    for line in text.splitlines():
        if line.strip().startswith("#"):
            told = line.strip().removeprefix("#").removeprefix(" ")
            comment.append(f"`{told.strip()}`" if told.startswith("  ") else told)
            continue
        if found := _KEY.match(line):
            above = [each for each in above if each[0] < len(found[1])]
            around = above[-1][2] if above else whole
            if isinstance(around, dict) and found[2] in around:
                above.append((len(found[1]), found[2], value := around[found[2]]))
                default = "" if isinstance(value, dict) and value else f"`{json.dumps(value)}`"
                meaning = " ".join(comment).replace("|", "\\|")
                if default or meaning:
                    shown = default if len(default) <= _WIDEST else "see values.yaml"
                    rows.append(f"| `{'.'.join(name for _, name, _ in above)}` | {shown} | {meaning} |")
        comment = []
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    write()
