"""Annotations of a ManagedCluster about its agent: version, reported hubs, orders to move and to renew certificates.

The order to renew is an ISO 8601 interval. All certificates that were issued before the start of the interval must be renewed
within it. An agent that was offline for the whole interval renews when it returns. The hub never changes an order; the issue
times of the certificates show which agents have renewed.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from hub.api.meta import document as doc
from machinery.errors import InvalidError
from machinery.meta.objects import Document
from machinery.meta.timestamps import format_micro_time, format_time, parse_time

HUBS = "hub.open-cluster-management.io/hubs"
MOVE_TO = "hub.open-cluster-management.io/move-to"
"""Annotation: id of the hub to which the agent must move; removed after the move."""
AGENT_VERSION = "hub.open-cluster-management.io/agent-version"
"""Annotation: version of the agent that reported last."""
MAX_HUBS = 16
MAX_TEXT = 253
MAX_URL = 1024
MAX_VERSION = 64


class AgentHubState(StrEnum):
    READY = "Ready"
    NOT_ACCEPTED = "NotAccepted"
    REGISTERING = "Registering"
    DENIED = "Denied"
    UNREACHABLE = "Unreachable"
    LOST = "Lost"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class ReportedHub:
    """One entry of an agent's hub list."""

    hub_id: str
    name: str = ""
    url: str = ""
    state: AgentHubState = AgentHubState.UNKNOWN
    credential_ends_at: datetime | None = None

    @property
    def is_sound(self) -> bool:
        """Whether all texts are within bounds, ASCII and printable, and the hub has an id or a name."""
        texts = (self.hub_id, MAX_TEXT), (self.name, MAX_TEXT), (self.url, MAX_URL)
        return bool(self.hub_id or self.name) and all(
            len(text) <= most and text.isascii() and text.isprintable() for text, most in texts
        )


def encoded(hubs: Iterable[ReportedHub]) -> str:
    """Return the value of the annotation HUBS. It contains at most MAX_HUBS hubs, and no invalid hubs; "" without hubs."""
    sound = [each for each in hubs if each.is_sound][:MAX_HUBS]
    entries = []
    for hub in sound:
        ends = format_time(hub.credential_ends_at) if hub.credential_ends_at else ""
        entry = {"id": hub.hub_id, "name": hub.name, "url": hub.url, "state": hub.state.value, "credentialEndsAt": ends}
        entries.append({name: value for name, value in entry.items() if value})
    return json.dumps(entries, separators=(",", ":")) if entries else ""


def hubs_of(cluster: Document) -> list[dict[str, Any]]:
    """Return the reported hubs, each with some of `id`, `name`, `url`, `state`, `credentialEndsAt`."""
    try:
        found = json.loads(doc.annotations(cluster).get(HUBS, "[]"))
    except (ValueError, RecursionError):
        return []
    return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []


def with_hubs(cluster: Document, annotation: str) -> dict[str, Any]:
    """Return a copy of `cluster` in which HUBS has the value `annotation`; "" removes the annotation."""
    return doc.with_annotations(cluster, {HUBS: annotation or None})


def agent_version(cluster: Document) -> str:
    """Return the version of the agent that reported last; "" if it reported none."""
    return doc.annotations(cluster).get(AGENT_VERSION, "")


def sound_version(version: str) -> str:
    """Return the version if it is at most MAX_VERSION characters, ASCII and printable; else ""."""
    return version if len(version) <= MAX_VERSION and version.isascii() and version.isprintable() else ""


def with_agent_version(cluster: Document, version: str) -> dict[str, Any]:
    """Return a copy of `cluster` with this agent version; an unchanged copy if the version is invalid."""
    sound = sound_version(version)
    return doc.with_annotations(cluster, {AGENT_VERSION: sound} if sound else {})


def move_to(cluster: Document) -> str:
    """Return the id of the hub to which the agent must move; "" if there is no order."""
    return doc.annotations(cluster).get(MOVE_TO, "")


def ordered(cluster: Document, hub_id: str) -> dict[str, Any]:
    """Return a copy of `cluster` with the order to move to this hub; "" removes the order."""
    return doc.with_annotations(cluster, {MOVE_TO: hub_id or None})


def destination(cluster: Document, word: str, here: str) -> dict[str, Any]:
    """Return the reported hub whose id, name or URL is `word`, or the only hub whose id begins with `word`.

    `here`: the id of this hub. Raises InvalidError if no single hub matches, or if the hub is this hub or is not Ready.
    """
    hubs = hubs_of(cluster)
    exact = [hub for hub in hubs if word in (hub.get("id"), hub.get("name"), hub.get("url"))]
    found = exact or [hub for hub in hubs if str(hub.get("id") or "").startswith(word)]
    if len(found) != 1 or not word:
        problem = f'"{word}" matches several of its hubs' if found and word else f'the agent reports no hub "{word}"'
        raise InvalidError(f"{problem}: {listed(hubs)}")
    (hub,) = found
    if hub.get("id") == here:
        raise InvalidError(f'"{word}" is this hub: name another one: {listed(hubs)}')
    if hub.get("state") != AgentHubState.READY or not (isinstance(hub.get("id"), str) and hub["id"]):
        raise InvalidError(f'the agent has no credential for "{word}" that is ready: {listed(hubs)}')
    return hub


def listed(hubs: Iterable[Document]) -> str:
    """Return the names and states of the hubs, for error messages."""
    names = ", ".join(f"{hub.get('name') or hub.get('id')} ({hub.get('state')})" for hub in hubs)
    return f"it reports {names or 'no hubs'}"


RENEW = "hub.open-cluster-management.io/renew"
LONGEST_RENEWAL = timedelta(days=7)
LATE_RENEWAL = timedelta(seconds=30)
"""Time to renew for an agent that returns after the interval, so that the agents of a returning fleet do not renew at once."""


@dataclass(frozen=True, slots=True)
class RenewalOrder:
    """An order to renew all certificates issued before `before`, the order's database time. `within`: time for the renewals."""

    before: datetime
    within: timedelta

    def asks(self, issued_at: datetime) -> bool:
        """Return whether a certificate issued at `issued_at` must be renewed."""
        return issued_at < self.before

    def left(self, now: datetime) -> timedelta:
        """Return the time that is left for the renewal; after the interval at most LATE_RENEWAL."""
        return max(self.before + self.within - now, min(self.within, LATE_RENEWAL))


def renewal_order(cluster: Document) -> RenewalOrder | None:
    """Return the current order; None if there is none or it cannot be parsed."""
    begin, _, seconds = doc.annotations(cluster).get(RENEW, "").partition("/PT")
    try:
        return RenewalOrder(parse_time(begin), timedelta(seconds=int(seconds.removesuffix("S"))))
    except (ValueError, OverflowError):
        return None


def with_renewal_order(cluster: Document, order: RenewalOrder) -> dict[str, Any]:
    """Return a copy of `cluster` with this order, which replaces an earlier order."""
    text = f"{format_micro_time(order.before)}/PT{order.within // timedelta(seconds=1)}S"
    return doc.with_annotations(cluster, {RENEW: text})


def check_renewal_interval(within: timedelta) -> timedelta:
    """Return the interval. Raises InvalidError unless it is between 0 and LONGEST_RENEWAL."""
    if not timedelta() <= within <= LONGEST_RENEWAL:
        raise InvalidError(f"within: between 0 and {LONGEST_RENEWAL // timedelta(hours=1)} hours")
    return within
