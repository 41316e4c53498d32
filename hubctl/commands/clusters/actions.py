"""hubctl move, rotate and release-brake: commands to agents, and their progress."""

import math
import time
from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import click

from hubctl.arguments.batch import run_batch
from hubctl.arguments.completion import names_of
from hubctl.arguments.selection import SELECTION, select_objects
from hubctl.arguments.targets import ObjectReference
from hubctl.client.connection import connected
from hubctl.client.http import ApiClient
from hubctl.client.resources import CLUSTERS, FLEET, post_action
from hubctl.errors import TIMED_OUT, CommandError, UsageError
from hubctl.options import CHANGE, DURATION, text_option, with_options
from machinery.durations import format_duration


@click.group()
def move() -> None:
    """Move clusters to other hubs.

    \b
    Examples:
      hubctl move cluster edge1 --to eu-2
      hubctl move cluster -l region=eu --to eu-2 --yes
      hubctl move cluster edge1 --cancel
    """


@move.command("cluster")
@click.argument("names", nargs=-1, metavar="NAME...", shell_complete=names_of("clusters"))
@text_option("--to", "HUB", "Name, id (or a prefix of it) or URL of the hub, as the agent reports it.")
@click.option("--cancel", is_flag=True, help="Cancel a pending move.")
@with_options(*SELECTION, *CHANGE)
@connected
def move_cluster(client: ApiClient, names: tuple[str, ...], to: str, *, cancel: bool, **chosen: Any) -> None:
    """Move clusters to another hub of their agents' hub list (see `hubctl describe cluster`).

    The agent must have a valid credential for that hub. The hub keeps the request over restarts of hub and agent, until the
    agent has moved or you cancel the move. After the move the cluster is Unknown at this hub, with the reason
    ManagedClusterMoved and without an alarm.

    \b
    Examples:
      hubctl move cluster edge1 --to eu-2
      hubctl move cluster edge1 --to 5a1f0c2e
      hubctl move cluster -l region=eu --to eu-2 --dry-run=server
      hubctl move cluster --where 'labels.region == "eu" && connected' --to eu-2 --yes
      hubctl move cluster edge1 --cancel
    """
    if bool(to) is cancel:
        raise UsageError("give --to HUB, or --cancel")
    spec = {"cancel": True} if cancel else {"to": to}

    def act(one: ObjectReference) -> str:
        status = post_action(client, f"{one.path}/move", "ClusterMove", spec)
        hub = status.get("hubID") or ""
        if cancel:
            return f"{one} {'stays' if hub else 'was not asked to move'}{client.note}"
        called = f"{status.get('hubName')} ({hub})" if status.get("hubName") else hub
        return f"{one} is asked to move to the hub {called}{client.note}: see `hubctl describe cluster {one.name}`"

    run_batch(select_objects(client, names, chosen, CLUSTERS), act, chosen, "move", is_destructive=not cancel)


PER_SECOND = 20
"""Renewals per second of several clusters, if --within is not set; with --wait, answers per second that one has not renewed."""
SHORTEST_SPREAD = timedelta(minutes=1)
POLL_SECONDS = 1.0


@click.group()
def rotate() -> None:
    """Renew certificates early.

    \b
    Examples:
      hubctl rotate cluster edge1 --wait
      hubctl rotate cluster --all --within 1h
    """


@rotate.command("cluster")
@click.argument("names", nargs=-1, metavar="NAME...", shell_complete=names_of("clusters"))
@with_options(*SELECTION)
@click.option("--within", type=DURATION, help="Spread the renewals randomly over this time, such as 0s, 10m or 1h.")
@click.option("--wait", is_flag=True, help="Wait until every agent with a certificate has a new one, and show the progress.")
@click.option("--timeout", type=DURATION, help="Maximum time for --wait. Default: no limit.")
@with_options(*CHANGE)
@connected
def rotate_cluster(
    client: ApiClient, names: tuple[str, ...], within: timedelta | None, timeout: timedelta | None, *, wait: bool, **chosen: Any
) -> None:
    """Make the agents of clusters renew their certificates and those of their add-ons, with new keys.

    No beat is lost. The hub stores the request: an absent agent renews when it reconnects. Without --within, one named cluster
    renews immediately, and several clusters renew at about twenty per second. Agents with the driver csr do not receive the
    request and renew by their own rules.

    \b
    Examples:
      hubctl rotate cluster edge1 --wait
      hubctl rotate cluster -l region=eu --within 10m
      hubctl rotate cluster --where 'agentVersion < 0.3' --within 10m --dry-run=server
      hubctl rotate cluster --all --within 1h --wait --yes
    """
    selection = select_objects(client, names, chosen, CLUSTERS)
    count = len(selection.objects)
    is_one = count == 1 and selection.is_named
    spread = within
    if spread is None:
        spread = timedelta() if is_one else max(SHORTEST_SPREAD, timedelta(seconds=count / PER_SECOND))
    spec = {"withinSeconds": int(spread.total_seconds())}
    asked: list[bool] = []
    try:
        run_batch(selection, lambda one: bool(_post_rotation(client, one, spec)), chosen, "renew", asked.append)
    finally:
        if asked:
            what = f"{selection.objects[0]} is" if is_one else f"{sum(asked)} clusters are"
            click.echo(f"{what} asked to renew within {format_duration(spread)}{client.note}")
        if not (is_one or all(asked)):
            click.echo(f"{len(asked) - sum(asked)} have no agent with a certificate: there is nothing to renew")
    if wait and not client.dry_run:
        found = zip(selection.objects, asked, strict=True)
        _wait_for_renewals(client, [one for one, has_agent in found if has_agent or is_one], timeout)


def _wait_for_renewals(client: ApiClient, clusters: Sequence[ObjectReference], timeout: timedelta | None) -> None:
    """Wait until the clusters have renewed. Raises CommandError after the timeout.

    A cluster without a certificate, or a cluster that is deleted meanwhile, counts as renewed.
    """
    until = math.inf if timeout is None else time.monotonic() + timeout.total_seconds()
    waiting, shown, next_line = deque(clusters), -1, 0.0
    while True:
        done, now = len(clusters) - len(waiting), time.monotonic()
        if clusters and done != shown and (now >= next_line or not waiting):
            click.echo(f"{done} of {len(clusters)} renewed")
            shown, next_line = done, now + POLL_SECONDS
        if not waiting:
            return
        if _has_renewed(client, waiting[0]):
            waiting.popleft()
            continue
        if now > until:
            names = [each.name for each in waiting if not _has_renewed(client, each)]
            if not names:
                waiting.clear()
                continue
            some = ", ".join(names[:10]) + (" ..." if names[10:] else "")
            raise CommandError(f"{len(names)} have not renewed in time; they renew when they reconnect: {some}", code=TIMED_OUT)
        waiting.rotate(-1)
        time.sleep(max(POLL_SECONDS / len(waiting), 1 / PER_SECOND))


def _has_renewed(client: ApiClient, cluster: ObjectReference) -> bool:
    """Whether each agent of the cluster has renewed. A deleted cluster counts as renewed."""
    try:
        return all(agent.get("renewed") for agent in _post_rotation(client, cluster, {"show": True}))
    except CommandError as error:
        if error.reason != "NotFound":
            raise
        return True


def _post_rotation(client: ApiClient, cluster: ObjectReference, spec: dict[str, Any]) -> list[dict[str, Any]]:
    """Request the renewal. Return the agents of the cluster that have a certificate."""
    return post_action(client, f"{cluster.path}/rotate", "ClusterRotation", spec).get("agents") or []


@click.command("release-brake")
@connected
def release_brake(client: ApiClient) -> None:
    """Release the brake: the hub sets taints and alarms for silent clusters again, and marks and removes stale clusters.

    The brake activates when a large share of the fleet becomes silent at the same time; `hubctl get fleet` shows the brake.
    After a release only clusters that become silent later count.

    \b
    Examples:
      hubctl get fleet
      hubctl release-brake
    """
    path = FLEET.of("fleet")
    brake = (client.get(path).get("status") or {}).get("brake") or {}
    if not brake.get("holds"):
        click.echo("the brake is not active")
        return
    client.patch(path, {"spec": {"releaseBrake": True}})
    click.echo(f"the brake is released; it was active since {brake.get('since')}")
