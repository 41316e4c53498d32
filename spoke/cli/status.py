"""`spoke status`: the state that the running agent reports, merged with the content of its secrets.

The command finds the secrets by the agent's settings. It shows no keys and no certificates.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum
from typing import Any

from machinery.errors import InvalidError
from machinery.meta.timestamps import format_time, parse_time
from machinery.runtime.clock import Clock
from spoke.agent.unregistration import mark_in
from spoke.bootstraps.listing import Bootstraps
from spoke.cli.network import Network, reachable
from spoke.credentials.kubeconfigs import ANY_REACH, stored_connection, stored_texts
from spoke.credentials.slot import OWNER_SECRET, Contents, credential_of
from spoke.domain.credential import EPOCH, HUB_ID
from spoke.domain.route import Reach
from spoke.ports.cluster import Remains, Secrets

Document = dict[str, Any]
HTTP_OK = 200
_ABOUT = (("cluster", "cluster"), ("agent", "agent id"))


class StatusExitCode(IntEnum):
    WELL = 0
    NOT_READY = 1
    NO_ANSWER = 3


@dataclass(frozen=True, slots=True)
class StatusSource:
    """The sources of the status. `probes`: the address of the agent's probes. If it has no port, no agent is queried."""

    secrets: Secrets
    remains: Remains
    bootstraps: Bootstraps
    network: Network
    clock: Clock
    probes: str
    reach: Reach = ANY_REACH


async def status(source: StatusSource) -> tuple[Document, StatusExitCode]:
    """Return the status as one document, and the command's exit code. Raises MusterError if the secrets cannot be read."""
    document = await _stored(source)
    agent, silence = await _asked(source)
    if agent is None:
        document["process"] = {"state": f"not known: {silence}"}
        return document, StatusExitCode.NO_ANSWER
    kept = {hub["hubId"]: hub for hub in document["hubs"]}
    hubs = [{**kept.pop(hub["hubId"], {}), **hub} for hub in agent.get("hubs", ())]
    owner = {**document["owner"], **agent.get("owner", {})}
    merged = {**document, **agent, "hubs": [*hubs, *kept.values()], "owner": owner}
    return merged, StatusExitCode.WELL if agent.get("ready") else StatusExitCode.NOT_READY


async def _stored(source: StatusSource) -> Document:
    owner = (await source.secrets.read(OWNER_SECRET)).contents
    kept = [owner, *[(await source.secrets.read(name)).contents for name in await source.remains.slots()]]
    names = [stored_texts(contents) for contents in kept]
    cluster, agent = (next(filter(None, texts), "") for texts in zip(*names, strict=True))
    hubs = {hub["hubId"]: hub for contents in reversed(kept) if (hub := _hub(contents, source.reach))}
    await source.bootstraps.load()
    listed = {str(each.hub_id): each for each in source.bootstraps.read().hubs}
    for hub_id, bootstrap in listed.items():
        without = {"hubId": hub_id, "url": bootstrap.connection.hub.server, "state": "no credential yet"}
        hubs[hub_id] = {"name": bootstrap.name, **hubs.get(hub_id, without)}
    owned = owner.get(HUB_ID, b"").decode(errors="replace") or (_hub(owner, source.reach) or {}).get("hubId", "")
    named = {"name": listed[owned].name} if owned in listed else {}
    ordered = [*listed, *(each for each in hubs if each not in listed)]
    left = mark_in(owner)
    return {
        "cluster": cluster,
        "agent": agent,
        **({"left": left.at} if left is not None else {}),
        "owner": {"hubId": owned, **named, "epoch": _epoch(owner)} if owned else {},
        "hubs": [{**hubs[each], "owner": each == owned} for each in ordered],
    }


def _hub(contents: Contents, reach: Reach) -> Document | None:
    try:
        connection = stored_connection(credential_of(contents), reach)
    except InvalidError:
        return None
    ends = format_time(connection.certificate.not_after)
    state = "has a credential"
    return {"hubId": connection.hub_id, "url": connection.hub.server, "state": state, "credentialEndsAt": ends}


def _epoch(contents: Contents) -> int:
    text = contents.get(EPOCH, b"").decode(errors="replace")
    return int(text) if text.isdigit() else 0


async def _asked(source: StatusSource) -> tuple[Document | None, str]:
    """Query the running agent. Return its status and an empty text, or None and the reason."""
    place = reachable(source.probes)
    if not place:
        return None, "--health-listen has no port, so the address of the agent is unknown"
    try:
        code, body = await source.network.ask(place, "/statusz")
        document = json.loads(body) if code == HTTP_OK else None
    except (OSError, TimeoutError, ValueError) as error:
        return None, f"no agent answers at {place}: {error or 'no answer in time'}"
    return (document, "") if isinstance(document, dict) else (None, f"the program at {place} is not an agent")


def render(document: Mapping[str, Any], now: datetime) -> str:
    rows = [(title, str(document.get(key) or "not known")) for key, title in _ABOUT]
    if "left" in document:
        rows.append(("left", document["left"] or "yes"))
    rows += [("process", _process(document)), ("owner", _owner(document.get("owner") or {}))]
    if beat := document.get("lastBeat"):
        rows.append(("last beat", f"{beat}, {(now - parse_time(beat)).total_seconds():.0f} s ago"))
    if readiness := document.get("readiness"):
        rows.append(("readiness", readiness))
    width = max(len(title) for title, _ in rows) + 2
    lines = [f"{title + ':':<{width}}{said}" for title, said in rows]
    return "\n".join([*lines, "", *_hubs(document.get("hubs") or ()), *_decisions(document.get("decisions") or ())])


def _process(document: Mapping[str, Any]) -> str:
    process = document.get("process") or {}
    holder = process.get("leaseHolder", "")
    return str(process.get("state", "not known")) + (f" ({holder} holds the Lease)" if holder else "")


def _owner(owner: Mapping[str, Any]) -> str:
    if not owner:
        return "none yet"
    epoch, because = owner.get("epoch"), owner.get("because", "")
    details = [f"epoch {epoch}" if epoch else "", because]
    return ", ".join([str(owner.get("name") or owner["hubId"]), *filter(None, details)])


def _hubs(hubs: Sequence[Mapping[str, Any]]) -> list[str]:
    heads = ("HUB", "OWNER", "STATE", "CREDENTIAL ENDS", "NEXT TRY", "URL", "LAST FAILURE")
    keys = ("state", "credentialEndsAt", "nextTry", "url", "lastFailure")
    rows = [
        (hub.get("name") or hub["hubId"], "yes" if hub.get("owner") else "", *(hub.get(key, "") for key in keys))
        for hub in hubs
    ]
    return [*_table([heads, *rows]), ""] if rows else []


def _decisions(decisions: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = [(each.get("at", ""), each.get("reason", ""), each.get("message", "")) for each in reversed(decisions)]
    return [*_table([("DECIDED", "REASON", "MESSAGE"), *rows]), ""] if rows else []


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
