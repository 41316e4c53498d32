"""What an agent reports of itself, its version and its hubs, and the hub that an operator wants it to go to: annotations."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from hub.api.meta import document as doc
from hub.api.meta.change import Document
from machinery.errors import InvalidError
from machinery.meta.timestamps import format_time

HUBS = "hub.open-cluster-management.io/hubs"
MOVE_TO = "hub.open-cluster-management.io/move-to"
"""Annotation: the id of the hub that the agent is asked to go to, until it has gone."""
AGENT_VERSION = "hub.open-cluster-management.io/agent-version"
"""Annotation: the version of the agent that last reported."""
MAX_HUBS = 16
MAX_TEXT = 253
MAX_URL = 1024
MAX_VERSION = 64


class AgentHubState(StrEnum):
    """What the agent says of itself at a hub."""

    READY = "Ready"
    NOT_ACCEPTED = "NotAccepted"
    REGISTERING = "Registering"
    DENIED = "Denied"
    UNREACHABLE = "Unreachable"
    LOST = "Lost"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class ReportedHub:
    """One hub of an agent's list."""

    hub_id: str
    name: str = ""
    url: str = ""
    state: AgentHubState = AgentHubState.UNKNOWN
    credential_ends_at: datetime | None = None

    @property
    def is_sound(self) -> bool:
        """Whether it is fit to be kept and shown."""
        texts = (self.hub_id, MAX_TEXT), (self.name, MAX_TEXT), (self.url, MAX_URL)
        return bool(self.hub_id or self.name) and all(
            len(text) <= most and text.isascii() and text.isprintable() for text, most in texts
        )


def encoded(hubs: Iterable[ReportedHub]) -> str:
    """The annotation: what is not sound is left out, and what is beyond the bound."""
    sound = [each for each in hubs if each.is_sound][:MAX_HUBS]
    return json.dumps([_entry(each) for each in sound], separators=(",", ":")) if sound else ""


def _entry(hub: ReportedHub) -> dict[str, str]:
    ends = format_time(hub.credential_ends_at) if hub.credential_ends_at else ""
    told = {"id": hub.hub_id, "name": hub.name, "url": hub.url, "state": hub.state.value, "credentialEndsAt": ends}
    return {name: value for name, value in told.items() if value}


def hubs_of(cluster: Document) -> list[dict[str, Any]]:
    """What the annotation says: `id`, `name`, `url`, `state`, `credentialEndsAt`, where they are known."""
    try:
        found = json.loads(doc.annotations(cluster).get(HUBS, "[]"))
    except ValueError:
        return []
    return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []


def with_hubs(cluster: Document, annotation: str) -> dict[str, Any]:
    """A copy with this list; "": with none."""
    return _annotated(cluster, HUBS, annotation)


def agent_version(cluster: Document) -> str:
    """Of the agent that last reported; "" where it has not said so."""
    return doc.annotations(cluster).get(AGENT_VERSION, "")


def sound_version(version: str) -> str:
    """The version that an agent says it has; "" where that is not fit to be kept and shown."""
    return version if len(version) <= MAX_VERSION and version.isascii() and version.isprintable() else ""


def with_agent_version(cluster: Document, version: str) -> dict[str, Any]:
    """A copy that says so; a version that is not fit to be kept changes nothing."""
    sound = sound_version(version)
    return _annotated(cluster, AGENT_VERSION, sound) if sound else dict(cluster)


def move_to(cluster: Document) -> str:
    """The id of the hub that the agent is to go to; "": it is not asked to."""
    return doc.annotations(cluster).get(MOVE_TO, "")


def ordered(cluster: Document, hub_id: str) -> dict[str, Any]:
    """A copy that is to go there; "": that may stay."""
    return _annotated(cluster, MOVE_TO, hub_id)


def destination(cluster: Document, word: str, here: str) -> dict[str, Any]:
    """The reported hub with this name, id, url, or unambiguous beginning of an id. Raises InvalidError unless it is ready.

    `here`: the id of this hub.
    """
    hubs = hubs_of(cluster)
    exact = [hub for hub in hubs if word in (hub.get("id"), hub.get("name"), hub.get("url"))]
    found = exact or [hub for hub in hubs if str(hub.get("id") or "").startswith(word)]
    if len(found) != 1 or not word:
        problem = f'"{word}" fits several of its hubs' if found and word else f'the agent reports no hub "{word}"'
        raise InvalidError(f"{problem}: {listed(hubs)}")
    (hub,) = found
    if hub.get("id") == here:
        raise InvalidError(f'"{word}" is this hub: name another one: {listed(hubs)}')
    if hub.get("state") != AgentHubState.READY or not hub.get("id"):
        raise InvalidError(f'the agent has no credential that is ready at "{word}": {listed(hubs)}')
    return hub


def listed(hubs: Iterable[Document]) -> str:
    """Names and states, for people."""
    told = ", ".join(f"{hub.get('name') or hub.get('id')} ({hub.get('state')})" for hub in hubs)
    return f"it reports {told}" if told else "it reports no hubs"


def _annotated(cluster: Document, name: str, value: str) -> dict[str, Any]:
    others = {note: text for note, text in doc.annotations(cluster).items() if note != name}
    return doc.with_metadata(cluster, annotations={**others, **({name: value} if value else {})} or None)
