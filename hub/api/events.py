"""Events of the hub and of agents about clusters and requests, in the form of core/v1."""

from dataclasses import dataclass, replace
from datetime import datetime
from hashlib import sha256
from typing import Any

from hub.api.meta import document as doc
from hub.api.namespaces import HUB
from machinery.meta.objects import Document
from machinery.meta.timestamps import format_time

NORMAL, WARNING = "Normal", "Warning"
COMPONENT = "hub"
AGENT = "registration-agent"
"""Component of events that agents report."""


@dataclass(frozen=True, slots=True)
class EventRecord:
    """An occurrence that concerns the object `about`, and the cluster in whose namespace its Event is stored."""

    cluster: str
    about: Document
    reason: str
    message: str
    type: str = NORMAL
    component: str = COMPONENT

    @property
    def name(self) -> str:
        """The Event's name. It is equal for equal occurrences, so that a repetition increases the count of the Event."""
        uid = doc.mapping(self.about, "metadata").get("uid", "")
        others = () if self.component == COMPONENT else (self.component,)
        digest = sha256("\0".join((str(uid), self.type, self.reason, self.message, *others)).encode()).hexdigest()[:16]
        return f"{doc.name(self.about)[:200]}.{digest}"

    def trimmed_event(self) -> "EventRecord":
        """Return a copy whose object `about` has only those parts that an Event contains, to save memory in a queue."""
        metadata = doc.mapping(self.about, "metadata")
        kept = {name: metadata[name] for name in ("name", "uid") if name in metadata}
        about = {name: self.about[name] for name in ("apiVersion", "kind") if name in self.about}
        return replace(self, about={**about, "metadata": kept})


def event(record: EventRecord, namespace: str, now: datetime) -> dict[str, Any]:
    """Return a new Event with count 1."""
    moment, metadata = format_time(now), doc.mapping(record.about, "metadata")
    about = {
        "apiVersion": record.about.get("apiVersion"),
        "kind": record.about.get("kind"),
        "name": metadata.get("name"),
        "uid": metadata.get("uid"),
    }
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": record.name, "namespace": namespace},
        "involvedObject": {name: value for name, value in about.items() if value},
        "reason": record.reason,
        "message": record.message,
        "source": {"component": record.component},
        "reportingComponent": record.component,
        "reportingInstance": HUB,
        "type": record.type,
        "count": 1,
        "firstTimestamp": moment,
        "lastTimestamp": moment,
    }


def seen_again(known: Document, now: datetime) -> dict[str, Any]:
    """Return a copy of the Event with an increased count."""
    return {**known, "count": min(int(known.get("count") or 1), 2**31 - 2) + 1, "lastTimestamp": format_time(now)}


def selectable(document: Document) -> dict[str, str]:
    """Return Kubernetes' selectable fields of an Event."""
    about = doc.mapping(document, "involvedObject")
    names = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
    fields = {f"involvedObject.{name}": str(about.get(name) or "") for name in names}
    own = {name: str(document.get(name) or "") for name in ("reason", "reportingComponent", "type")}
    source = doc.mapping(document, "source").get("component") or document.get("reportingComponent")
    return {**fields, **own, "source": str(source or "")}
