"""Events, in the legacy core group and in events.k8s.io: the same objects in two spellings, stored apart."""

from typing import Any

from machinery.apiserver.kinds.core import OPEN, TEXT
from machinery.apiserver.resource import Column, Group, Resource, Row
from machinery.apiserver.storage import Document
from machinery.apiserver.tables import age_of

_TIME: dict[str, Any] = {"type": "string", "format": "date-time", "nullable": True}
_MICRO_TIME: dict[str, Any] = {"type": "string", "format": "micro-time", "nullable": True}
_COUNT: dict[str, Any] = {"type": "integer", "format": "int32"}
_ABOUT = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
_SHARED: dict[str, Any] = {
    "action": TEXT,
    "eventTime": _MICRO_TIME,
    "reason": TEXT,
    "related": {**OPEN, "nullable": True},
    "reportingInstance": TEXT,
    "series": {
        "type": "object",
        "nullable": True,
        "properties": {"count": _COUNT, "lastObservedTime": _MICRO_TIME},
    },
    "type": TEXT,
}


def _last_seen(row: Row) -> str:
    document = row.document
    series = document.get("series") or {}
    spelled = ("lastTimestamp", "deprecatedLastTimestamp", "eventTime")
    moments = [series.get("lastObservedTime"), *(document.get(name) for name in spelled)]
    return age_of(next((moment for moment in moments if moment), document["metadata"].get("creationTimestamp")), row.now)


def _about(row: Row) -> str:
    about = row.document.get("involvedObject") or row.document.get("regarding") or {}
    return f"{about.get('kind', '').lower()}/{about.get('name', '')}"


def _first_seen(row: Row) -> str:
    spelled = ("firstTimestamp", "deprecatedFirstTimestamp", "eventTime")
    return age_of(next((row.document[name] for name in spelled if row.document.get(name)), None), row.now)


def _subobject(row: Row) -> str:
    about = row.document.get("involvedObject") or row.document.get("regarding") or {}
    return str(about.get("fieldPath", ""))


def _source(row: Row) -> str:
    document = row.document
    source = document.get("source") or document.get("deprecatedSource") or {}
    reporting = document.get("reportingComponent") or document.get("reportingController") or ""
    component, host = source.get("component") or reporting, source.get("host") or document.get("reportingInstance")
    return f"{component}, {host}" if host else component


def _count(row: Row) -> int:
    series = row.document.get("series") or {}
    return series.get("count") or row.document.get("count") or row.document.get("deprecatedCount") or 1


def _selectable(document: Document) -> dict[str, str]:
    about = document.get("involvedObject") or document.get("regarding") or {}
    fields = {f"{word}.{name}": str(about.get(name, "")) for word in ("involvedObject", "regarding") for name in _ABOUT}
    component = (document.get("source") or {}).get("component") or document.get("reportingComponent", "")
    own = {name: str(document.get(name, "")) for name in ("reason", "reportingComponent", "reportingController", "type")}
    return {**fields, **own, "source": component}


_COLUMNS = (
    Column("Last Seen", _last_seen, description="Time this event was last observed"),
    Column("Type", lambda row: row.document.get("type", "")),
    Column("Reason", lambda row: row.document.get("reason", "")),
    Column("Object", _about),
    Column("Subobject", _subobject, priority=1),
    Column("Source", _source, priority=1, description="The component reporting this event"),
    Column("Message", lambda row: (row.document.get("message") or row.document.get("note") or "").strip()),
    Column("First Seen", _first_seen, priority=1, description="Time this event was first observed"),
    Column("Count", _count, type="integer", priority=1, description="How often this event was observed"),
    Column("Name", lambda row: row.document["metadata"]["name"], format="name", priority=1),
)

EVENT = Resource(
    group="",
    version="v1",
    name="events",
    kind="Event",
    short_names=("ev",),
    namespaced=True,
    custom=False,
    unconditional_update=True,
    schema={
        "description": "Event is a report of an event somewhere in the cluster.",
        "type": "object",
        "required": ["involvedObject"],
        "properties": {
            **_SHARED,
            "count": _COUNT,
            "firstTimestamp": _TIME,
            "involvedObject": OPEN,
            "lastTimestamp": _TIME,
            "message": TEXT,
            "reportingComponent": TEXT,
            "source": OPEN,
        },
    },
    selectable=_selectable,
    selectable_names=(*(f"involvedObject.{name}" for name in _ABOUT), "reason", "reportingComponent", "source", "type"),
    columns=_COLUMNS,
)

EVENTS_V1 = Resource(
    group="events.k8s.io",
    version="v1",
    name="events",
    kind="Event",
    short_names=("ev",),
    namespaced=True,
    custom=False,
    unconditional_update=True,
    schema={
        "description": "Event is a report of an event somewhere in the cluster.",
        "type": "object",
        "properties": {
            **_SHARED,
            "deprecatedCount": _COUNT,
            "deprecatedFirstTimestamp": _TIME,
            "deprecatedLastTimestamp": _TIME,
            "deprecatedSource": OPEN,
            "note": TEXT,
            "regarding": OPEN,
            "reportingController": TEXT,
        },
    },
    selectable=_selectable,
    selectable_names=(*(f"regarding.{name}" for name in _ABOUT), "reason", "reportingController", "type"),
    columns=_COLUMNS,
)

EVENTS = Group("events.k8s.io", (EVENTS_V1,))
