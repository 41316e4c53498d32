"""What the hub's chart takes under `settings`, from the settings themselves: all that the chart does not set by itself."""

import re
from collections.abc import Iterator
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from hub.settings import ENVIRONMENT_PREFIX, Settings

TEMPLATE = Path(__file__).parents[2] / "charts" / "hub" / "templates" / "statefulset.yaml"
NEVER = frozenset({"database_url", "replica_name", "leader_elect_resource_namespace", "kube_cert_agent_namespace"})
"""Not in a file, or the pod's to say."""
DURATION = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h|d))+$"


def own_of_the_chart() -> frozenset[str]:
    """Settings that the chart has values of its own for."""
    named = re.findall(rf"- name: {ENVIRONMENT_PREFIX}([A-Z_]+)$", TEMPLATE.read_text(), re.MULTILINE)
    return frozenset(name.lower() for name in named) | NEVER


def settings_schema() -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": dict(sorted(_properties()))}


def _properties() -> Iterator[tuple[str, dict[str, Any]]]:
    for name, field in Settings.model_fields.items():
        if name not in own_of_the_chart():
            yield name, {**_form(field.annotation), "description": field.description}


def _form(annotation: Any) -> dict[str, Any]:
    """As a settings file has it."""
    if get_origin(annotation) in (Union, UnionType):
        [annotation] = [each for each in get_args(annotation) if each is not type(None)]
    if get_origin(annotation) is Literal:
        return {"enum": list(get_args(annotation))}
    if get_origin(annotation) is tuple:
        return {"type": "array", "items": {"type": "string", "minLength": 1}}
    if isinstance(annotation, type) and issubclass(annotation, StrEnum):
        return {"enum": [each.value for each in annotation]}
    known: dict[Any, dict[str, Any]] = {
        bool: {"type": "boolean"},
        int: {"type": "integer", "minimum": 0},
        float: {"type": "number", "minimum": 0},
        timedelta: {"type": "string", "pattern": DURATION},
    }
    return known.get(annotation, {"type": "string"})
