"""Accepting clusters and deciding certificate requests: two separate decisions, in either order."""

from typing import Any

from hub.cli.connection import Door
from hub.cli.errors import CliError, RefusedError
from hub.cli.resources import CLUSTERS, REQUESTS
from machinery.clock import SystemClock
from machinery.timestamps import format_time

CLUSTER_LABEL = "open-cluster-management.io/cluster-name"
DECIDED = frozenset(("Approved", "Denied"))


def set_accepted(door: Door, name: str, *, accepted: bool) -> str:
    """Returns what was done, as a line."""
    before = door.get(CLUSTERS.object_path(name))
    word = "accepted" if accepted else "denied"
    if bool((before.get("spec") or {}).get("hubAcceptsClient")) is accepted:
        return f"cluster {name} is {word} already"
    door.patch(CLUSTERS.object_path(name), {"spec": {"hubAcceptsClient": accepted}})
    return f"cluster {name} {word}"


def decide_requests(door: Door, name: str, *, approve: bool) -> list[str]:
    """Decides the request `name`, or every undecided request of the cluster `name`. Returns a line for each."""
    try:
        found = [door.get(REQUESTS.object_path(name))]
    except RefusedError as error:
        if error.reason != "NotFound":
            raise
        found = _undecided_of(door, name)
    return [_decide(door, request, approve=approve) for request in found]


def _undecided_of(door: Door, cluster: str) -> list[dict[str, Any]]:
    items = door.get(REQUESTS.path, {"labelSelector": f"{CLUSTER_LABEL}={cluster}"})["items"]
    undecided = [request for request in items if not _decisions(request)]
    if not undecided:
        what = f"the {len(items)} of cluster {cluster} are decided already" if items else "the agent has not asked yet"
        raise CliError(
            f'there is no certificate request "{cluster[:100]}" and no undecided one of a cluster of that name ({what}): '
            "see `hubctl get csr`"
        )
    return undecided


def _decisions(request: dict[str, Any]) -> set[str]:
    return {entry["type"] for entry in (request.get("status") or {}).get("conditions") or ()} & DECIDED


def _decide(door: Door, request: dict[str, Any], *, approve: bool) -> str:
    name = request["metadata"]["name"]
    word = "Approved" if approve else "Denied"
    if word in _decisions(request):
        return f"certificate request {name} is {word.lower()} already"
    now = format_time(SystemClock().now())
    condition = {
        "type": word,
        "status": "True",
        "reason": "HubctlApprove" if approve else "HubctlDeny",
        "message": f"This request was {word.lower()} by hubctl certificate {'approve' if approve else 'deny'}.",
        "lastUpdateTime": now,
        "lastTransitionTime": now,
    }
    status = request.get("status") or {}
    request["status"] = {**status, "conditions": [*(status.get("conditions") or ()), condition]}
    door.replace(f"{REQUESTS.object_path(name)}/approval", request)
    return f"certificate request {name} {word.lower()}"
