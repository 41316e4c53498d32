"""The state of a running agent as one document of plain values, without secrets."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from machinery.meta.timestamps import format_time
from spoke.domain.hubs import HubCandidate, HubsStatus
from spoke.observability.progress import AgentProgress

Document = dict[str, Any]


def overview(progress: AgentProgress) -> Document:
    """The whole document, without unknown values."""
    role, standing, ready = progress.role(), progress.standing, progress.ready()
    return _present(
        {
            "process": _present({"state": role.state, "leaseHolder": role.holder}),
            "ready": ready.ok,
            "readiness": ready.text,
            "step": progress.step,
            "trouble": progress.trouble,
            "lastBeat": _time(progress.last_beat),
            "owner": _owner(standing),
            "hubs": [_hub(each, standing, progress.now()) for each in standing.candidates],
            "decisions": [
                {"at": _time(each.at), "reason": each.reason, "message": each.message} for each in progress.decisions
            ],
        }
    )


def _owner(standing: HubsStatus) -> Document:
    if standing.owner is None:
        return {}
    name = next((hub.name for hub in standing.hubs if hub.hub_id == standing.owner), "")
    because = standing.decision.message if standing.decision is not None else ""
    since = _time(standing.decided_at)
    return _present({"hubId": standing.owner, "name": name, "epoch": standing.epoch, "because": because, "since": since})


def _hub(candidate: HubCandidate, standing: HubsStatus, now: datetime) -> Document:
    hub = candidate.hub
    return _present(
        {
            "hubId": hub.hub_id,
            "name": hub.name,
            "url": hub.url,
            "state": hub.state.value,
            "owner": hub.hub_id == standing.owner,
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
