"""hubctl drain and uncordon: the sessions of a replica of the hub."""

import math
import time
from datetime import timedelta
from functools import partial
from typing import Any

import click

from hubctl.arguments.batch import run_batch, run_each
from hubctl.arguments.completion import names_of
from hubctl.arguments.selection import select_objects
from hubctl.arguments.targets import ObjectReference
from hubctl.client.connection import connected
from hubctl.client.http import ApiClient
from hubctl.client.resources import REPLICAS, items, post_action
from hubctl.errors import TIMED_OUT, CommandError, closest
from hubctl.options import CHANGE, DURATION, EVERYTHING, FIELDS, FILES, SELECTOR, with_options

POLL_SECONDS = 0.5
CONFIRMING_REPORTS = 2
"""A drain is complete after more than this number of status updates without sessions. Early updates may precede the drain."""


@click.group()
def drain() -> None:
    """Move the sessions of a replica of the hub to other replicas. `hubctl move` moves clusters.

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


_REPLICAS = with_options(
    click.argument("names", nargs=-1, metavar="NAME...", shell_complete=names_of("replicas")),
    *(SELECTOR, FIELDS, EVERYTHING, FILES, *CHANGE),
)


@drain.command("replica")
@_REPLICAS
@click.option(
    "--force", is_flag=True, help="Drain even if no other replica accepts sessions; agents change to other hubs of their list."
)
@click.option("--wait/--no-wait", default=True, help="Wait until the last session has ended (default: wait).")
@click.option("--timeout", type=DURATION, help="Maximum time to wait. Default: no limit.")
@connected
def drain_replica(
    client: ApiClient, names: tuple[str, ...], timeout: timedelta | None, *, force: bool, wait: bool, **chosen: Any
) -> None:
    """Move sessions to other replicas. A drained replica accepts no new sessions until `hubctl uncordon` or a restart.

    No beat is lost: an agent ends its session after a beat on the new session. A drained replica is not ready, so load
    balancers choose other replicas. It still serves operators and tools, and a leader stays the leader. To stop the process,
    send SIGTERM. Without --force the hub refuses to drain the last replica that accepts sessions.

    \b
    Examples:
      hubctl drain replica hub-0
      hubctl drain replica hub-0 --timeout 2m && kubectl -n muster delete pod hub-0
      hubctl drain replica hub-0 hub-1 --dry-run=server
      hubctl drain replica --all --force --yes
    """
    selection = select_objects(client, names, chosen, REPLICAS)
    act = partial(_post_drain, client, {"force": True} if force else {}, "is drained: it accepts no new sessions")
    run_batch(selection, act, chosen, "drain", is_destructive=True)
    if not client.dry_run:
        click.echo(f"to undo: hubctl uncordon replica {' '.join(one.name for one in selection.objects)}", err=True)
    if wait and not client.dry_run:
        run_each(selection.objects, lambda one: _wait_until_empty(client, one.name, timeout), workers=1)


@uncordon.command("replica")
@_REPLICAS
@connected
def uncordon_replica(client: ApiClient, names: tuple[str, ...], **chosen: Any) -> None:
    """Allow drained replicas to accept sessions again.

    \b
    Examples:
      hubctl uncordon replica hub-0
      hubctl uncordon replica --all
    """
    act = partial(_post_drain, client, {"cancel": True}, "accepts sessions")
    run_batch(select_objects(client, names, chosen, REPLICAS), act, chosen, "uncordon")


def _post_drain(client: ApiClient, spec: dict[str, Any], words: str, one: ObjectReference) -> str:
    try:
        post_action(client, f"{one.path}/drain", "ReplicaDrain", spec)
    except CommandError as error:
        if error.reason == "NotFound":
            known = [str(each["metadata"]["name"]) for each in items(client, REPLICAS.path, {})]
            error.sentence += closest(one.name, known) or f": the replicas are {', '.join(known)}"
        raise
    return f"{one} {words}{client.note}"


def _wait_until_empty(client: ApiClient, name: str, timeout: timedelta | None) -> None:
    """Wait until the replica has no sessions. Raises CommandError after the timeout, and if the drain is cancelled."""
    until = math.inf if timeout is None else time.monotonic() + timeout.total_seconds()
    empty: set[str] = set()
    shown = -1
    while len(empty) <= CONFIRMING_REPORTS:
        status = client.get(REPLICAS.of(name)).get("status") or {}
        left, seen = int(status.get("sessions") or 0), str(status.get("lastSeenTime"))
        if not status.get("drained") and status.get("state") != "Lost":
            raise CommandError(f'replica "{name}" accepts sessions again: it was uncordoned or restarted')
        if left != shown:
            shown = left
            click.echo(f"{left} sessions are left")
        empty = {*empty, seen} if not left else set()
        if time.monotonic() > until and len(empty) <= CONFIRMING_REPORTS:
            late = f"still has {left} sessions; they continue to move" if left else "has not confirmed the drain yet"
            raise CommandError(f'replica "{name}" {late}', code=TIMED_OUT)
        time.sleep(POLL_SECONDS)
