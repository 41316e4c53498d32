"""Event, in its core form: what `kubectl describe` shows at the end."""

from hollow.kinds.cells import OPEN, part
from machinery.apiserver.resource import Column, Resource, Row
from machinery.apiserver.storage import Document
from machinery.apiserver.tables import age_of

_INVOLVED = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
_FIELDS = (*(f"involvedObject.{name}" for name in _INVOLVED), "reason", "reportingComponent", "source", "type")


def _fields(document: Document) -> dict[str, str]:
    values = {field: str(part(document, *field.split(".")) or "") for field in _FIELDS}
    component = part(document, "source", "component") or document.get("reportingComponent")
    return {**values, "source": str(component or "")}


def _last_seen(row: Row) -> str:
    event = row.document
    moment = part(event, "series", "lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    return age_of(moment, row.now)


def _first_seen(row: Row) -> str:
    moment = row.document.get("firstTimestamp") or row.document.get("eventTime")
    return age_of(moment, row.now)


def _object(row: Row) -> str:
    involved = part(row.document, "involvedObject") or {}
    return f"{str(involved.get('kind') or '').lower()}/{involved.get('name') or ''}"


def _source(row: Row) -> str:
    source = part(row.document, "source") or {}
    component = source.get("component") or row.document.get("reportingComponent") or ""
    host = source.get("host") or row.document.get("reportingInstance")
    return f"{component}, {host}" if host else str(component)


def _count(row: Row) -> int:
    return int(part(row.document, "series", "count") or row.document.get("count") or 1)


EVENT = Resource(
    group="",
    version="v1",
    name="events",
    kind="Event",
    short_names=("ev",),
    namespaced=True,
    schema=OPEN,
    columns=(
        Column("Last Seen", _last_seen, description="The time at which the most recent occurrence of this event was recorded."),
        Column("Type", lambda row: str(row.document.get("type") or ""), description="Type of this event."),
        Column("Reason", lambda row: str(row.document.get("reason") or ""), description="Why it happened."),
        Column("Object", _object, description="The object that this event is about."),
        Column(
            "Subobject",
            lambda row: str(part(row.document, "involvedObject", "fieldPath") or ""),
            priority=1,
            description="The piece of the object.",
        ),
        Column("Source", _source, priority=1, description="The component reporting this event."),
        Column(
            "Message",
            lambda row: str(row.document.get("message") or "").strip(),
            description="A human-readable description of the status of this operation.",
        ),
        Column("First Seen", _first_seen, priority=1, description="The time at which the event was first recorded."),
        Column("Count", _count, priority=1, description="The number of times this event has occurred."),
        Column("Name", lambda row: str(row.document["metadata"]["name"]), format="name", priority=1, description="Its name."),
    ),
    selectable=_fields,
    selectable_names=_FIELDS,
    custom=False,
)
