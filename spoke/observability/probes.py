"""Serves the state of a running agent over plain HTTP: `/livez`, `/healthz`, `/readyz`, `/metrics` and `/statusz`.

`/livez` and `/healthz` report whether this process makes progress. They do not depend on the hub, because a probe must not
restart an agent whose hub is unreachable. `/readyz` reports whether a beat was acknowledged within the lease duration; if not,
it names the step that fails. `/metrics` is for Prometheus. No label names a cluster or a hub, because the scrape target
identifies the agent. `/statusz` returns JSON for `spoke status`. It contains no secrets and answers only clients on this
machine or in this pod.

The server uses asyncio streams without a web framework, to keep the agent small (ADR 0018).
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing, suppress
from datetime import datetime, timedelta
from functools import partial
from ipaddress import IPv6Address, ip_address
from typing import Any

from machinery.lifecycle import usage
from machinery.meta.timestamps import format_time
from machinery.observability.metrics import CONTENT_TYPE, Registry, counter, gauge, histogram
from machinery.product import version
from spoke.domain.hubs import HubCandidate, HubsStatus, HubState
from spoke.observability.progress import AgentProgress, ProbeResult

OWNER, STANDBY = "owner", "standby"

BUILD = gauge("spoke_build_info", "Always 1; the version of this agent.", "version")
READY = gauge("spoke_ready", "1: a beat was acknowledged within the lease duration, or this process is on standby; 0: neither.")
LIVE = gauge("spoke_live", "1: this process makes progress; 0: something in it is stuck.")
WORKS = gauge("spoke_works", "1: this process works for its agent; 0: it is on standby, or its cluster has left.")
LAST_BEAT = gauge("spoke_last_acknowledged_heartbeat_timestamp_seconds", "Unix time of the last acknowledged beat.")
BEATS = counter("spoke_heartbeats_acknowledged_total", "Beats that the hub has acknowledged.")
LATENCY = histogram("spoke_heartbeat_acknowledgement_seconds", "Time from a beat to its acknowledgement.")
SESSIONS = counter("spoke_sessions_total", "Sessions that were opened with a hub.")
TROUBLES = counter("spoke_troubles_total", "Ended sessions, and failed attempts to connect or to register, by cause.", "cause")
FAILOVERS = counter("spoke_failover_total", "Choices of the hub for the session, by reason.", "reason")
HUBS = gauge("spoke_hubs", "Hubs of the agent's list, by state.", "state")
EXPIRY = gauge(
    "spoke_certificate_expiry_timestamp_seconds",
    "Unix time at which the agent's certificate ends: for the owner, and the earliest end of the standby hubs.",
    "hub",
)
RENEWALS = counter("spoke_certificate_renewals_total", "Renewals of the certificate for the owner.")
CLUSTER = gauge("spoke_cluster_available", "1: the API server of the managed cluster answers; 0: it does not.")
STEPS = counter("spoke_controller_reconciles_total", "Steps of the agent's controllers.", "controller", "result")
METRICS = (
    *(BUILD, READY, LIVE, WORKS),
    *(LAST_BEAT, BEATS, LATENCY, SESSIONS, TROUBLES, FAILOVERS),
    *(HUBS, EXPIRY, RENEWALS, CLUSTER, STEPS),
    *usage.METRICS,
)
"""All metrics of an agent, in the order of `docs/reference/metrics.md`."""


def registry_of(progress: AgentProgress) -> Registry:
    registry, counts = Registry(), progress.counts
    registry.bind(BUILD, lambda: {version(): 1})
    registry.bind(READY, lambda: int(progress.ready().ok))
    registry.bind(LIVE, lambda: int(progress.live().ok))
    registry.bind(WORKS, lambda: int(progress.role().works))
    registry.bind(LAST_BEAT, lambda: progress.last_beat.timestamp() if progress.last_beat else None)
    registry.bind(BEATS, lambda: counts.beats)
    registry.bind(LATENCY, lambda: counts.acknowledgement)
    registry.bind(SESSIONS, lambda: counts.sessions)
    registry.bind(TROUBLES, lambda: counts.troubles)
    registry.bind(FAILOVERS, lambda: counts.decisions)
    registry.bind(HUBS, lambda: _by_state(progress))
    registry.bind(EXPIRY, lambda: _ends(progress))
    registry.bind(RENEWALS, lambda: counts.renewals)
    registry.bind(CLUSTER, lambda: None if (verdict := progress.verdict()) is None else int(verdict))
    registry.bind(STEPS, lambda: counts.steps)
    usage.bind_usage(registry)
    return registry


def _by_state(progress: AgentProgress) -> Mapping[str, int]:
    found = Counter(hub.state for hub in progress.hubs_status.hubs)
    return {state.name.lower(): found[state] for state in HubState}


def _ends(progress: AgentProgress) -> Mapping[str, float]:
    """Return the earliest end of a credential, as Unix time, for the owner and for the standby hubs."""
    ends: dict[str, float] = {}
    status = progress.hubs_status
    for hub in status.hubs:
        if hub.credential_ends_at is not None:
            side, end = OWNER if hub.hub_id == status.owner else STANDBY, hub.credential_ends_at.timestamp()
            ends[side] = min(end, ends.get(side, end))
    return ends


Document = dict[str, Any]


def overview(progress: AgentProgress) -> Document:
    """Return the document of `/statusz`. Unknown values are left out."""
    role, status, ready = progress.role(), progress.hubs_status, progress.ready()
    return _present(
        {
            "process": _present({"state": role.state, "leaseHolder": role.holder}),
            "ready": ready.ok,
            "readiness": ready.text,
            "step": progress.step,
            "trouble": progress.failure,
            "lastBeat": _time(progress.last_beat),
            "owner": _owner_document(status),
            "hubs": [_hub_document(each, status, progress.now()) for each in status.candidates],
            "decisions": [
                {"at": _time(each.at), "reason": each.reason, "message": each.message} for each in progress.decisions
            ],
        }
    )


def _owner_document(status: HubsStatus) -> Document:
    if status.owner is None:
        return {}
    name = next((hub.name for hub in status.hubs if hub.hub_id == status.owner), "")
    because = status.decision.message if status.decision is not None else ""
    since = _time(status.decided_at)
    return _present({"hubId": status.owner, "name": name, "epoch": status.epoch, "because": because, "since": since})


def _hub_document(candidate: HubCandidate, status: HubsStatus, now: datetime) -> Document:
    hub = candidate.hub
    return _present(
        {
            "hubId": hub.hub_id,
            "name": hub.name,
            "url": hub.url,
            "state": hub.state.value,
            "owner": hub.hub_id == status.owner,
            "credentialEndsAt": _time(hub.credential_ends_at),
            "readySince": _time(candidate.ready_since),
            "lastFailure": candidate.trouble,
            "nextTry": _time(candidate.rests_until if candidate.rests(now) else None),
        }
    )


def _present(document: Mapping[str, Any]) -> Document:
    return {key: value for key, value in document.items() if value not in ("", None, {})}


def _time(moment: datetime | None) -> str:
    return format_time(moment) if moment is not None else ""


REQUEST_TIMEOUT = timedelta(seconds=5)
LONGEST_REQUEST = 8 << 10
TEXT = "text/plain; charset=utf-8"
_MOST_HEADERS = 100


@asynccontextmanager
async def serve(progress: AgentProgress, host: str, port: int, registry: Registry | None = None) -> AsyncIterator[int]:
    """Serve the paths of this module during the block; yield the port. Raises OSError if the server cannot listen.

    `registry`: the metrics of `/metrics`; None: the standard metrics of an agent.
    """
    metrics = registry or registry_of(progress)
    server = await asyncio.start_server(partial(_answer, progress, metrics), host, port, limit=LONGEST_REQUEST)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def _answer(
    progress: AgentProgress, registry: Registry, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    with closing(writer), suppress(OSError, TimeoutError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        async with asyncio.timeout(REQUEST_TIMEOUT.total_seconds()):
            method, path = await _request(reader)
            peer = str(writer.get_extra_info("peername", ("",))[0])
            code, body, kind = _respond(progress, registry, method, path, near=is_loopback_address(peer))
            content = b"" if method == "HEAD" else body.encode()
            head = f"HTTP/1.1 {code}\r\nContent-Type: {kind}\r\nContent-Length: {len(body.encode())}\r\n"
            writer.write(f"{head}Cache-Control: no-store\r\nConnection: close\r\n\r\n".encode() + content)
            await writer.drain()
    with suppress(OSError):
        await writer.wait_closed()


async def _request(reader: asyncio.StreamReader) -> tuple[str, str]:
    first = (await reader.readuntil(b"\n")).decode("latin-1").split()
    for _ in range(_MOST_HEADERS):
        if not (await reader.readuntil(b"\n")).strip():
            break
    method, target = (*first, "", "")[:2]
    return method, target.split("?", 1)[0]


def is_loopback_address(peer: str) -> bool:
    with suppress(ValueError):
        address = ip_address(peer.partition("%")[0])
        mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
        return (mapped or address).is_loopback
    return False


def _respond(progress: AgentProgress, registry: Registry, method: str, path: str, *, near: bool) -> tuple[str, str, str]:
    """Return status line, body and content type. `near`: the client is on this machine."""
    if method not in ("GET", "HEAD"):
        return "405 Method Not Allowed", "only GET\n", TEXT
    if path in ("/livez", "/healthz"):
        return _probe_answer(progress.live())
    if path == "/readyz":
        return _probe_answer(progress.ready())
    if path == "/metrics":
        return "200 OK", registry.text(), CONTENT_TYPE
    if path == "/statusz" and near:
        return "200 OK", json.dumps(overview(progress)) + "\n", "application/json"
    return "404 Not Found", "there are /livez, /healthz, /readyz and /metrics\n", TEXT


def _probe_answer(answer: ProbeResult) -> tuple[str, str, str]:
    return ("200 OK" if answer.ok else "503 Service Unavailable"), f"{answer.text}\n", TEXT
