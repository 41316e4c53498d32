"""hubctl move: asks a cluster's agent to move to another hub of its list."""

from typing import Any

import click

from hubctl.arguments.completion import names_of
from hubctl.client.connection import connected
from hubctl.client.http import ApiClient
from hubctl.client.resources import CLUSTERS, CREDENTIALS
from hubctl.errors import CommandError


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
@click.option("--to", default="", metavar="HUB", help="The hub's name, id (or how it begins), or url, as the agent reports it.")
@click.option("--cancel", is_flag=True, help="Take an order back that was not carried out yet.")
@connected
def cluster(client: ApiClient, name: str, to: str, *, cancel: bool) -> None:
    """Ask the agent of a cluster to go to another of the hubs that it reports (`hubctl describe cluster` lists them).

    The agent must have a credential that is ready there. The order stays, over restarts of the hub and of the agent, until the
    agent has gone, or it is cancelled. The cluster then reads Unknown here, reason ManagedClusterMoved, without an alarm.

    \b
    Examples:
      hubctl move cluster edge1 --to eu-2
      hubctl move cluster edge1 --to 5a1f0c2e
      hubctl move cluster edge1 --cancel
    """
    if bool(to) is cancel:
        raise CommandError("give --to HUB, or --cancel", code=2)
    spec = {"cancel": True} if cancel else {"to": to}
    asked = {"apiVersion": CREDENTIALS.group_version, "kind": "ClusterMove", "spec": spec}
    answer = client.request("POST", f"{CLUSTERS.of(name)}/move", asked)
    click.echo(_outcome(name, answer.get("status") or {}, cancel=cancel))


def _outcome(name: str, status: dict[str, Any], *, cancel: bool) -> str:
    hub = status.get("hubID") or ""
    if cancel:
        return f'cluster "{name}" stays' if hub else f'cluster "{name}" was not asked to move'
    called = f"{status.get('hubName')} ({hub})" if status.get("hubName") else hub
    return f'cluster "{name}" is asked to move to the hub {called}: see `hubctl describe cluster {name}`'
