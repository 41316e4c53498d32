"""hubctl drain replica and uncordon replica: move the sessions of one replica away, and let it accept sessions again."""

import time
from datetime import timedelta
from typing import Any

import click

from hubctl.arguments.completion import names_of
from hubctl.client.connection import connected
from hubctl.client.http import ApiClient
from hubctl.client.resources import REPLICAS
from hubctl.errors import TIMED_OUT, CommandError
from hubctl.options import DURATION

LOOK = 0.5
"""Poll interval in seconds."""
BEATS = 2
"""More reports than this must show no session; the replica knew the order at the latest when it sent the second one."""


@click.group()
def drain() -> None:
    """Have what a replica of the hub does go elsewhere.

    \b
    Examples:
      hubctl get replicas
      hubctl drain replica hub-0
      hubctl uncordon replica hub-0
    """


@click.group()
def uncordon() -> None:
    """Let a replica of the hub that was drained have sessions again.

    \b
    Examples:
      hubctl uncordon replica hub-0
    """


@drain.command("replica")
@click.argument("name", shell_complete=names_of("replicas"))
@click.option("--force", is_flag=True, help="Also where no other replica takes sessions: agents go to other hubs of theirs.")
@click.option("--wait/--no-wait", default=True, help="Until its last session has gone; that is the default.")
@click.option("--timeout", type=DURATION, help="How long to wait; without it, until Ctrl-C.")
@connected
def drain_replica(client: ApiClient, name: str, timeout: timedelta | None, *, force: bool, wait: bool) -> None:
    """Have the agents of a replica open their next session elsewhere; it takes no new ones until it is told, or starts anew.

    No beat is lost: an agent leaves once its next session carries one. The replica is unready meanwhile, so that load balancers
    lead elsewhere; operators and tools are served on, and it goes on leading if it leads. What ends the process is SIGTERM.

    \b
    Examples:
      hubctl drain replica hub-0
      hubctl drain replica hub-0 --timeout 2m && kubectl -n muster delete pod hub-0
    """
    _post(client, name, {"force": True} if force else {})
    click.echo(f'replica "{name}" is drained: it takes no new sessions')
    if wait:
        _wait(client, name, timeout)


@uncordon.command("replica")
@click.argument("name", shell_complete=names_of("replicas"))
@connected
def uncordon_replica(client: ApiClient, name: str) -> None:
    """Let a replica take sessions again.

    \b
    Examples:
      hubctl uncordon replica hub-0
    """
    _post(client, name, {"cancel": True})
    click.echo(f'replica "{name}" takes sessions')


def _post(client: ApiClient, name: str, spec: dict[str, Any]) -> None:
    asked = {"apiVersion": REPLICAS.group_version, "kind": "ReplicaDrain", "spec": spec}
    client.request("POST", f"{REPLICAS.of(name)}/drain", asked)


def _wait(client: ApiClient, name: str, timeout: timedelta | None) -> None:
    """Raises CommandError when it takes too long, or the order is cancelled."""
    until = None if timeout is None else time.monotonic() + timeout.total_seconds()
    empty: set[str] = set()
    told = -1
    while len(empty) <= BEATS:
        status = client.get(REPLICAS.of(name)).get("status") or {}
        left, seen = int(status.get("sessions") or 0), str(status.get("lastSeenTime"))
        if not status.get("drained") and status.get("state") != "Lost":
            raise CommandError(f'replica "{name}" takes sessions again: it was told so, or has started anew')
        if left != told:
            told = left
            click.echo(f"{left} sessions are left")
        empty = {*empty, seen} if not left else set()
        if until is not None and time.monotonic() > until and len(empty) <= BEATS:
            late = f"still has {left} sessions; they go on leaving" if left else "has not told yet that it heard of it"
            raise CommandError(f'replica "{name}" {late}', code=TIMED_OUT)
        time.sleep(LOOK)
