"""Kinds declared in YAML, as in a CustomResourceDefinition: names, verbs, table columns and schema. Code adds the functions."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from machinery.apiserver.resource import AGE, DEFAULT_VERBS, STATUS, Column, Resource, ServedVersion, TableRow
from machinery.meta import bounded_yaml
from machinery.meta.objects import Document
from machinery.meta.timestamps import age_of

Schema = dict[str, Any]
Cell = Callable[[TableRow], Any]

TEXT: Schema = {"type": "string"}
OPEN: Schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


class KindManifests:
    """The kinds that some YAML files declare, by `plural.group`.

    An entry has `kind`, `version` and `schema`. Optional fields, with the defaults of Resource: `shortNames`, `categories`,
    `namespaced`, `verbs`, `status` (the subresource), `generations`, `selectable`, `columns`, and `versions` (other than the
    stored version). `$ref` in a schema inserts another entry; fields next to `$ref` replace fields of that entry.
    """

    def __init__(self, *files: Path) -> None:
        self._entries: dict[str, Any] = {}
        for file in files:
            self._entries |= bounded_yaml.load(file.read_bytes())

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def resource(self, name: str, cells: Mapping[str, Cell] | None = None, **parts: Any) -> Resource:
        """Return the Resource of `name` (`plural.group`). `cells`: for columns without a path; `parts`: fields of Resource."""
        entry = self._entries[name]
        plural, _, group = name.partition(".")
        declared = {
            "group": group,
            "version": entry["version"],
            "name": plural,
            "kind": entry["kind"],
            "short_names": tuple(entry.get("shortNames", ())),
            "categories": tuple(entry.get("categories", ())),
            "namespaced": entry.get("namespaced", False),
            "verbs": tuple(entry.get("verbs", DEFAULT_VERBS)),
            "schema": self.schema(name),
            "subresources": (STATUS,) if entry.get("status") else (),
            "columns": _columns(entry, cells or {}),
            "selectable_names": tuple(entry.get("selectable", ())),
            "counts_generations": entry.get("generations", False),
        }
        return Resource(**declared | parts)

    def schema(self, name: str) -> Schema:
        """Return the schema of the entry `name`: a kind (`plural.group`) in its stored version, or an entry for `$ref`."""
        entry = self._entries[name]
        schema: Schema = self._resolved(entry.get("schema", entry))
        return schema

    def version(
        self, name: str, version: str, from_stored: Callable[[Document], Document], to_stored: Callable[[Document], Document]
    ) -> ServedVersion:
        entry = self._entries[name]["versions"][version]
        return ServedVersion(version, self._resolved(entry["schema"]), from_stored, to_stored, _columns(entry, {}))

    def _resolved(self, part: Any) -> Any:
        if isinstance(part, list):
            return [self._resolved(each) for each in part]
        if not isinstance(part, dict):
            return part
        own = {name: self._resolved(value) for name, value in part.items() if name != "$ref"}
        return {**self._resolved(self._entries[part["$ref"]]), **own} if "$ref" in part else own


def _columns(entry: Mapping[str, Any], cells: Mapping[str, Cell]) -> tuple[Column, ...] | None:
    columns = entry.get("columns")
    return None if columns is None else tuple(AGE if each == "Age" else _column(each, cells) for each in columns)


def _column(entry: Mapping[str, Any], cells: Mapping[str, Cell]) -> Column:
    name, about = entry["name"], entry.get("description", "")
    match entry:
        case {"path": path}:
            cell = _value_cell(path, entry.get("absent"))
        case {"list": path}:
            cell = _list_cell(path, entry.get("separator", ","))
        case {"age": path}:
            cell = _age_cell(path, entry.get("absent", "<unknown>"))
        case {"condition": kind}:
            cell = condition_cell(kind)
            about = about or crd_path(f'.status.conditions[?(@.type=="{kind}")].status')
        case _:
            cell = cells[name]
    return Column(name, cell, entry.get("type", "string"), entry.get("format", ""), about, entry.get("priority", 0))


def value_at(document: Document, *path: str) -> Any:
    """Return the value at the path; None if a part of the path is missing."""
    found: Any = document
    for step in path:
        found = found.get(step) if isinstance(found, Mapping) else None
    return found


def _value_cell(path: str, absent: Any) -> Cell:
    steps = path.split(".")
    return lambda row: absent if (value := value_at(row.document, *steps)) is None else value


def _list_cell(path: str, separator: str) -> Cell:
    steps = path.split(".")
    return lambda row: separator.join(map(str, value_at(row.document, *steps) or ()))


def _age_cell(path: str, absent: str) -> Cell:
    steps = path.split(".")
    return lambda row: age_of(moment, row.now) if (moment := value_at(row.document, *steps)) else absent


def condition_cell(kind: str, part: str = "status") -> Cell:
    """Return the function of a table cell: `part` of the condition of type `kind`; None if the object has no such condition."""
    return lambda row: next(
        (each.get(part) for each in value_at(row.document, "status", "conditions") or () if each.get("type") == kind), None
    )


def crd_path(path: str) -> str:
    """Return Kubernetes' description of a CustomResourceDefinition's table column. `path`: JSONPath of the column."""
    return f"Custom resource definition column (in JSONPath format): {path}"


def record(description: str = "", needed: tuple[str, ...] = (), /, **properties: Schema) -> Schema:
    """Return the schema of an object with the fields `properties`. The fields whose names are in `needed` are required."""
    described = {"description": description} if description else {}
    required = {"required": list(needed)} if needed else {}
    return {"type": "object", **described, **required, "properties": properties}


def listing(items: Schema, *keys: str, kind: str = "") -> Schema:
    """Return the schema of a list of `items`. `keys`: keys of a list of type `map`. `kind`: another x-kubernetes-list-type."""
    typed: Schema = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)} if keys else {}
    return {"type": "array", "items": items, **typed, **({"x-kubernetes-list-type": kind} if kind else {})}


KUBERNETES = KindManifests(Path(__file__).with_name("kinds.yaml"))
builtin = partial(KUBERNETES.resource, custom=False, unconditional_update=True)
