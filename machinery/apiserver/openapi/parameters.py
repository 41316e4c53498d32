"""Query and path parameters of the verbs, as the server supports them."""

from collections.abc import Mapping
from typing import Any


def _query(name: str, description: str, kind: str = "string", choices: tuple[str, ...] = ()) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": kind, "uniqueItems": True}
    if choices:
        schema["enum"] = list(choices)
    return {"name": name, "in": "query", "description": description, "schema": schema}


def _flag(name: str, description: str) -> dict[str, Any]:
    return _query(name, description, "boolean")


def _number(name: str, description: str) -> dict[str, Any]:
    return _query(name, description, "integer")


_ALL: Mapping[str, dict[str, Any]] = {
    each["name"]: each
    for each in (
        _flag("allowWatchBookmarks", "Whether a watch may also send BOOKMARK events."),
        _query("continue", "The token of the page before, for the next page."),
        _query("dryRun", "All: nothing is stored, the answer is as if it were.", choices=("All",)),
        _query("fieldManager", "The name under which the fields that this request sets are owned; at most 128 characters."),
        _query("fieldSelector", "Chooses objects by their selectable fields, such as metadata.name=NAME."),
        _query(
            "fieldValidation",
            "What becomes of fields that the schema does not know: Strict refuses them, Warn drops and names them, Ignore "
            "drops them.",
            choices=("Ignore", "Warn", "Strict"),
        ),
        _query("at", "As it was then: a time such as 2026-11-01T12:00Z, a time ago such as -2h, or a revision."),
        _flag("force", "Whether an apply patch takes over fields that others own."),
        _number("gracePeriodSeconds", "How long the object may take to go. No kind of this server uses it."),
        _query("includeObject", "What the rows of a table carry.", choices=("None", "Metadata", "Object")),
        _query("labelSelector", "Chooses objects by their labels, such as env=prod,tier in (a,b),!legacy."),
        _number("limit", "How many objects a page has at most; more are told by metadata.continue."),
        _flag("orphanDependents", "Deprecated: use propagationPolicy."),
        _query("pretty", "If true, the answer is printed for people."),
        _query("propagationPolicy", "What becomes of dependents.", choices=("Orphan", "Background", "Foreground")),
        _query("resourceVersion", "How new the answer must be, or from where a watch begins."),
        _query("resourceVersionMatch", "How resourceVersion is meant.", choices=("Exact", "NotOlderThan")),
        _flag(
            "sendInitialEvents",
            "Whether a watch begins with what is there, ended by a bookmark; needs resourceVersionMatch=NotOlderThan.",
        ),
        _query("timeout", "How long the request may take at most, such as 30s."),
        _number("timeoutSeconds", "How long a watch stays open."),
        _query("where", "Chooses objects by a condition, where the kind has words for it, such as version < 1.30."),
        _flag("watch", "Whether to answer with changes, one JSON line each, in place of a list."),
    )
}
_LIST = (
    *("allowWatchBookmarks", "at", "continue", "fieldSelector", "includeObject", "labelSelector", "limit", "resourceVersion"),
    *("resourceVersionMatch", "sendInitialEvents", "timeoutSeconds", "watch", "where"),
)
_WRITE = ("dryRun", "fieldManager", "fieldValidation")
_DELETE = ("dryRun", "gracePeriodSeconds", "orphanDependents", "propagationPolicy")
_BY_VERB: Mapping[str, tuple[str, ...]] = {
    "get": ("at", "includeObject", "resourceVersion"),
    "list": _LIST,
    "create": _WRITE,
    "update": _WRITE,
    "patch": (*_WRITE, "force"),
    "delete": _DELETE,
    "deletecollection": tuple(
        sorted({*_LIST, *_DELETE} - {"allowWatchBookmarks", "at", "includeObject", "sendInitialEvents", "watch"})
    ),
}


def of_verb(verb: str) -> list[dict[str, Any]]:
    """Query parameters of an operation, without references, because kubectl looks for their names and resolves none."""
    return [_ALL[name] for name in _BY_VERB.get(verb, ())]


def of_path(kind: str, *, named: bool, namespaced: bool) -> list[dict[str, Any]]:
    """Parameters of all operations of a path."""
    found = []
    if named:
        found.append(_in_path("name", f"name of the {kind}"))
    if namespaced:
        found.append(_in_path("namespace", "object name and auth scope, such as for teams and projects"))
    return [*found, _ALL["pretty"], _ALL["timeout"]]


def _in_path(name: str, description: str) -> dict[str, Any]:
    schema = {"type": "string", "uniqueItems": True}
    return {"name": name, "in": "path", "description": description, "required": True, "schema": schema}
