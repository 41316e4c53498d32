"""hubctl move, rotate, release-brake, drain and uncordon: orders to agents and replicas, and their progress."""

import math
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import click

from hubctl.arguments.completion import names_of
from hubctl.client.connection import connected
from hubctl.client.http import ApiClient, items
from hubctl.client.resources import CLUSTERS, FLEET, REPLICAS, post_action
from hubctl.errors import TIMED_OUT, CommandError
from hubctl.options import DURATION
from machinery.durations import format_duration


@click.group()
def move() -> None:
    """Move clusters to other hubs.

    \b
    Examples:
      hubctl move cluster edge1 --to eu-2
      hubctl move cluster edge1 --cancel
    """


@move.command("cluster")
@click.argument("name", shell_complete=names_of("clusters"))
@click.option(
    "--to", default="", metavar="HUB", help="Name, id (or a prefix of it) or URL of the hub, as the agent reports it."
)
@click.option("--cancel", is_flag=True, help="Cancel a pending move.")
@connected
def move_cluster(client: ApiClient, name: str, to: str, *, cancel: bool) -> None:
    """Move a cluster to another hub of its agent's hub list (see `hubctl describe cluster`).

    The agent must have a valid credential for that hub. The order survives restarts of hub and agent, until the agent has
    moved or you cancel it. Afterwards the cluster is Unknown at this hub, with the reason ManagedClusterMoved and without
    an alarm.

    \b
    Examples:
      hubctl move cluster edge1 --to eu-2
      hubctl move cluster edge1 --to 5a1f0c2e
      hubctl move cluster edge1 --cancel
    """
    if bool(to) is cancel:
        raise CommandError("give --to HUB, or --cancel", code=2)
    status = post_action(client, f"{CLUSTERS.of(name)}/move", "ClusterMove", {"cancel": True} if cancel else {"to": to})
    hub = status.get("hubID") or ""
    if cancel:
        click.echo(f'cluster "{name}" stays' if hub else f'cluster "{name}" was not asked to move')
        return
    called = f"{status.get('hubName')} ({hub})" if status.get("hubName") else hub
    click.echo(f'cluster "{name}" is asked to move to the hub {called}: see `hubctl describe cluster {name}`')


PAGE = 500
PER_SECOND = 20
"""Renewals per second when all agents are asked without --within."""
SHORTEST_SPREAD = timedelta(minutes=1)
POLL_SECONDS, REPLICA_POLL_SECONDS = 1.0, 0.5


@click.group()
def rotate() -> None:
    """Renew certificates early.

    \b
    Examples:
      hubctl rotate cluster edge1 --wait
      hubctl rotate cluster --all --within 1h
    """


@rotate.command("cluster")
@click.argument("name", required=False, default="", shell_complete=names_of("clusters"))
@click.option("--all", "everybody", is_flag=True, help="All clusters of the hub.")
@click.option("--within", type=DURATION, help="Spread the renewals randomly over this time, such as 0s, 10m or 1h.")
@click.option("--wait", is_flag=True, help="Wait until every agent with a certificate has a new one, and show the progress.")
@click.option("--timeout", type=DURATION, help="Maximum time for --wait. Default: no limit.")
@connected
def rotate_cluster(
    client: ApiClient, name: str, within: timedelta | None, timeout: timedelta | None, *, everybody: bool, wait: bool
) -> None:
    """Make the agent of a cluster, or all agents, renew its certificate and those of its add-ons, with new keys.

    No beat is lost. The order persists: an absent agent renews when it reconnects. Without --within, one cluster renews at
    once, and --all spreads the renewals to about twenty per second. Agents with the driver csr do not receive the order and
    renew by their own rules.

    \b
    Examples:
      hubctl rotate cluster edge1 --wait
      hubctl rotate cluster --all --within 1h --wait
    """
    if bool(name) is everybody:
        raise CommandError("name one cluster, or give --all", code=2)
    names = [str(item["metadata"]["name"]) for item in items(client, CLUSTERS.path, {})] if everybody else [name]
    spread = within
    if spread is None:
        spread = max(SHORTEST_SPREAD, timedelta(seconds=len(names) / PER_SECOND)) if everybody else timedelta()
    ordered = []
    for done, each in enumerate(names, start=1):
        if _post_rotation(client, each, {"withinSeconds": int(spread.total_seconds())}):
            ordered.append(each)
        if everybody and done % PAGE == 0:
            click.echo(f"{done} of {len(names)} clusters are asked", err=True)
    what = f"{len(ordered)} clusters are" if everybody else f'cluster "{name}" is'
    click.echo(f"{what} asked to renew within {format_duration(spread)}")
    if everybody and len(ordered) < len(names):
        click.echo(f"{len(names) - len(ordered)} have no agent with a certificate: nothing of them is to be renewed")
    if wait:
        _wait_for_renewals(client, ordered if everybody else names, timeout)


def _wait_for_renewals(client: ApiClient, names: Sequence[str], timeout: timedelta | None) -> None:
    """Raises CommandError when it takes too long. A cluster without a certificate, or deleted meanwhile, counts as renewed."""
    until = _deadline(timeout)
    waiting, shown = list(names), -1
    while True:
        waiting = [each for each in waiting if not all(agent.get("renewed") for agent in _rotating_agents(client, each))]
        done = len(names) - len(waiting)
        if names and done != shown:
            shown = done
            click.echo(f"{done} of {len(names)} renewed")
        if not waiting:
            return
        if time.monotonic() > until:
            some = ", ".join(waiting[:10]) + (" ..." if waiting[10:] else "")
            raise CommandError(f"{len(waiting)} have not renewed in time; they do when they come back: {some}", code=TIMED_OUT)
        time.sleep(POLL_SECONDS)


def _rotating_agents(client: ApiClient, name: str) -> list[dict[str, Any]]:
    try:
        return _post_rotation(client, name, {"show": True})
    except CommandError as error:
        if error.reason != "NotFound":
            raise
        return []


def _post_rotation(client: ApiClient, name: str, spec: dict[str, Any]) -> list[dict[str, Any]]:
    """The agents of the cluster that have a certificate."""
    return post_action(client, f"{CLUSTERS.of(name)}/rotate", "ClusterRotation", spec).get("agents") or []


def _deadline(timeout: timedelta | None) -> float:
    return math.inf if timeout is None else time.monotonic() + timeout.total_seconds()


@click.command("release-brake")
@connected
def release_brake(client: ApiClient) -> None:
    """Release the brake: the hub taints, marks and removes silent clusters again.

    The brake activates when a large share of the fleet becomes silent at once; `hubctl get fleet` shows it. After a release
    it counts only clusters that become silent later.

    \b
    Examples:
      hubctl get fleet
      hubctl release-brake
    """
    path = FLEET.of("fleet")
    brake = (client.get(path).get("status") or {}).get("brake") or {}
    if not brake.get("holds"):
        click.echo("the brake does not hold")
        return
    client.patch(path, {"spec": {"releaseBrake": True}})
    click.echo(f"the brake is released; it held since {brake.get('since')}")


BEATS = 2
"""More reports than this must show no session; the replica knew the order at the latest when it sent the second one."""


@click.group()
def drain() -> None:
    """Move the work of a replica to other replicas.

    \b
    Examples:
      hubctl get replicas
      hubctl drain replica hub-0
      hubctl uncordon replica hub-0
    """


@click.group()
def uncordon() -> None:
    """Allow a drained replica to accept sessions again.

    \b
    Examples:
      hubctl uncordon replica hub-0
    """


@drain.command("replica")
@click.argument("name", shell_complete=names_of("replicas"))
@click.option(
    "--force", is_flag=True, help="Drain even if no other replica accepts sessions; agents change to other hubs of their list."
)
@click.option("--wait/--no-wait", default=True, help="Wait until the last session has ended (default: wait).")
@click.option("--timeout", type=DURATION, help="Maximum time to wait. Default: no limit.")
@connected
def drain_replica(client: ApiClient, name: str, timeout: timedelta | None, *, force: bool, wait: bool) -> None:
    """Move the sessions of a replica to other replicas. It accepts no new sessions until `hubctl uncordon` or a restart.

    No beat is lost: an agent ends its session after a beat on the new one. The replica is not ready in the meantime, so
    load balancers choose other replicas. It still serves operators and tools, and a leader stays the leader. To stop the
    process, send SIGTERM.

    \b
    Examples:
      hubctl drain replica hub-0
      hubctl drain replica hub-0 --timeout 2m && kubectl -n muster delete pod hub-0
    """
    _post_drain(client, name, {"force": True} if force else {})
    click.echo(f'replica "{name}" is drained: it takes no new sessions')
    if wait:
        _wait_until_empty(client, name, timeout)


@uncordon.command("replica")
@click.argument("name", shell_complete=names_of("replicas"))
@connected
def uncordon_replica(client: ApiClient, name: str) -> None:
    """Allow a drained replica to accept sessions again.

    \b
    Examples:
      hubctl uncordon replica hub-0
    """
    _post_drain(client, name, {"cancel": True})
    click.echo(f'replica "{name}" takes sessions')


def _post_drain(client: ApiClient, name: str, spec: dict[str, Any]) -> None:
    post_action(client, f"{REPLICAS.of(name)}/drain", "ReplicaDrain", spec)


def _wait_until_empty(client: ApiClient, name: str, timeout: timedelta | None) -> None:
    """Raises CommandError when it takes too long, or the order is cancelled."""
    until = _deadline(timeout)
    empty: set[str] = set()
    shown = -1
    while len(empty) <= BEATS:
        status = client.get(REPLICAS.of(name)).get("status") or {}
        left, seen = int(status.get("sessions") or 0), str(status.get("lastSeenTime"))
        if not status.get("drained") and status.get("state") != "Lost":
            raise CommandError(f'replica "{name}" takes sessions again: it was told so, or has started anew')
        if left != shown:
            shown = left
            click.echo(f"{left} sessions are left")
        empty = {*empty, seen} if not left else set()
        if time.monotonic() > until and len(empty) <= BEATS:
            late = f"still has {left} sessions; they go on leaving" if left else "has not told yet that it heard of it"
            raise CommandError(f'replica "{name}" {late}', code=TIMED_OUT)
        time.sleep(REPLICA_POLL_SECONDS)
