"""Events of the core group and of events.k8s.io: the same objects in two forms. The core form is stored."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from machinery.apiserver.kinds.declaration import builtin
from machinery.apiserver.resource import ApiGroup, TableRow
from machinery.apiserver.storages.conversion import Conversion
from machinery.errors import Cause, invalid_value, not_supported, required, too_long
from machinery.meta.objects import Document
from machinery.meta.timestamps import age_of

_ABOUT = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")


def _about(document: Document) -> Mapping[str, Any]:
    return document.get("involvedObject") or document.get("regarding") or {}


def _last_seen(row: TableRow) -> str:
    document = row.document
    series = document.get("series") or {}
    spelled = ("lastTimestamp", "deprecatedLastTimestamp", "eventTime")
    moments = [series.get("lastObservedTime"), *(document.get(name) for name in spelled)]
    return age_of(next((moment for moment in moments if moment), document["metadata"].get("creationTimestamp")), row.now)


def _first_seen(row: TableRow) -> str:
    spelled = ("firstTimestamp", "deprecatedFirstTimestamp", "eventTime")
    return age_of(next((row.document[name] for name in spelled if row.document.get(name)), None), row.now)


def _object(row: TableRow) -> str:
    about = _about(row.document)
    return f"{str(about.get('kind') or '').lower()}/{about.get('name', '')}"


def _source(row: TableRow) -> str:
    document = row.document
    source = document.get("source") or document.get("deprecatedSource") or {}
    reporting = document.get("reportingComponent") or document.get("reportingController") or ""
    component, host = source.get("component") or reporting, source.get("host") or document.get("reportingInstance")
    return f"{component}, {host}" if host else component


def _count(row: TableRow) -> int:
    series = row.document.get("series") or {}
    return series.get("count") or row.document.get("count") or row.document.get("deprecatedCount") or 1


def _selectable(document: Document) -> dict[str, str]:
    about = _about(document)
    fields = {f"{word}.{name}": str(about.get(name, "")) for word in ("involvedObject", "regarding") for name in _ABOUT}
    component = (document.get("source") or {}).get("component") or document.get("reportingComponent", "")
    own = {name: str(document.get(name, "")) for name in ("reason", "reportingComponent", "reportingController", "type")}
    return {**fields, **own, "source": component}


def _violations(new: Document, _old: Document | None) -> list[Cause]:
    """Check that an Event is in the namespace of its object. For a cluster-scoped object any namespace is valid."""
    about = (new.get("involvedObject") or {}).get("namespace")
    if not about or about == new["metadata"].get("namespace"):
        return []
    return [invalid_value("involvedObject.namespace", about, "does not match event.namespace")]


def _new_violations(new: Document, old: Document | None) -> list[Cause]:
    """The stricter validation of new Events in events.k8s.io."""
    if old is not None:
        return []
    needed = ("eventTime", "reportingController", "reportingInstance", "action", "reason")
    causes = [required(name) for name in needed if not new.get(name)]
    causes += [too_long(name, most) for name, most in _LONGEST if len(str(new.get(name) or "")) > most]
    if new.get("type") not in _TYPES:
        causes.append(not_supported("type", new.get("type", ""), _TYPES))
    return causes


_TYPES = ("Normal", "Warning")
_LONGEST = (("reason", 128), ("action", 128), ("reportingInstance", 128), ("note", 1024))

_event = partial(
    builtin,
    cells={
        "Last Seen": _last_seen,
        "Object": _object,
        "Subobject": lambda row: str(_about(row.document).get("fieldPath", "")),
        "Source": _source,
        "Message": lambda row: (row.document.get("message") or row.document.get("note") or "").strip(),
        "First Seen": _first_seen,
        "Count": _count,
    },
    selectable=_selectable,
)
EVENT = _event(
    "events",
    validate=_violations,
    selectable_names=(*(f"involvedObject.{name}" for name in _ABOUT), "reason", "reportingComponent", "source", "type"),
)
EVENTS_V1 = _event(
    "events.events.k8s.io",
    validate=_new_violations,
    selectable_names=(*(f"regarding.{name}" for name in _ABOUT), "reason", "reportingController", "type"),
)
EVENTS = ApiGroup("events.k8s.io", (EVENTS_V1,))

_RENAMED = (
    ("count", "deprecatedCount"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("involvedObject", "regarding"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("message", "note"),
    ("reportingComponent", "reportingController"),
    ("source", "deprecatedSource"),
)
"""Fields whose names differ in core/v1 and events.k8s.io/v1."""


def _renamed(names: Mapping[str, str], api_version: str) -> Callable[[Document], Document]:
    def convert(document: Document) -> Document:
        return {**{names.get(name, name): value for name, value in document.items()}, "apiVersion": api_version}

    return convert


CONVERSION = Conversion(
    stored_as=EVENT.key,
    shown=_renamed(dict(_RENAMED), EVENTS_V1.api_version()),
    stored=_renamed({new: old for old, new in _RENAMED}, EVENT.api_version()),
    fields={"reportingController": "reportingComponent", **{f"regarding.{name}": f"involvedObject.{name}" for name in _ABOUT}},
)
"""Converts stored core/v1 Events to events.k8s.io/v1 and back, without loss."""
