"""What each chart takes under `settings`, from the program's settings themselves: all that the chart does not set by itself."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from hub.settings import Settings as HubSettings
from spoke.settings import Settings as SpokeSettings

CHARTS = Path(__file__).parents[2] / "charts"


@dataclass(frozen=True, slots=True)
class Program:
    """What a chart runs. `apart`: settings that have no place in a chart's file, or that the pod says."""

    settings: type[BaseModel]
    apart: frozenset[str]
    duration: str


PROGRAMS: Mapping[str, Program] = {
    "hub": Program(
        HubSettings,
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
    return {"type": "object", "additionalProperties": False, "properties": dict(sorted(_properties(chart)))}


def _properties(chart: str) -> Iterator[tuple[str, dict[str, Any]]]:
    program, own = PROGRAMS[chart], own_of_the_chart(chart)
    for name, field in program.settings.model_fields.items():
        if name not in own:
            described = {"description": field.description} if field.description else {}
            yield name, {**_form(field.annotation, program.duration), **described}


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
