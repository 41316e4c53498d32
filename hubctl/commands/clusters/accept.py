"""hubctl accept and deny: an operator's decision about whole clusters."""

from typing import Any

import click

from hubctl.arguments.completion import names_of
from hubctl.arguments.targets import each
from hubctl.client.connection import connected
from hubctl.client.http import MERGE_PATCH, ApiClient
from hubctl.client.resources import CLUSTERS
from hubctl.commands.access.certificate import pending_requests
from hubctl.errors import CommandError

CLUSTER_UID, WANTED_BY = "hub.open-cluster-management.io/cluster-uid", "hub.open-cluster-management.io/wanted-by-uid"
GIVEN_TO = "hub.open-cluster-management.io/given-to-agent"


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=names_of("clusters"))
@click.option("--rebuilt", is_flag=True, help="The name passes to the other cluster that asked for it: this one, built anew.")
@click.option("--agent", metavar="ID", help="The cluster is given to this one of its agents, and the others are revoked.")
@connected
def accept(client: ApiClient, names: tuple[str, ...], *, rebuilt: bool, agent: str | None) -> None:
    """Accept clusters into the fleet.

    Accepting and approving a cluster's certificate are two decisions, in any order; a cluster needs both.

    A cluster that was built anew has another uid, and the hub does not let it have the name by itself: its condition
    ManagedClusterDuplicated says that it asked. With --rebuilt it takes the name over, with its labels and history; the
    certificates of the cluster before are revoked.

    Of two agents of one cluster the first has the session, and ManagedClusterDuplicated names the other. With --agent the other
    takes over at once; the certificates of the first are revoked.

    \b
    Examples:
      hubctl accept edge1
      hubctl accept edge1 edge2
      hubctl accept edge1 --rebuilt
      hubctl accept edge1 --agent bcdfg
    """
    if agent is not None and (rebuilt or len(names) != 1):
        raise CommandError("give --agent with one NAME, and without --rebuilt", code=2)

    def act(name: str) -> None:
        if agent is not None:
            given = {"metadata": {"annotations": {GIVEN_TO: agent}}}
            client.request("PATCH", CLUSTERS.of(name), given, content_type=MERGE_PATCH)
            click.echo(f'cluster "{name}" is given to agent "{agent}"; its other agents are revoked')
        if rebuilt:
            _hand_over(client, name)
        _set_accepted(client, name, accepted=True)
        waiting = pending_requests(client, name)
        if waiting:
            click.echo(f'its certificate request {waiting[0]} waits: "hubctl certificate approve {name}"')

    each(names, act)


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=names_of("clusters"))
@connected
def deny(client: ApiClient, names: tuple[str, ...]) -> None:
    """Deny clusters: they stay known, and may neither report nor renew their certificate.

    \b
    Examples:
      hubctl deny edge1
    """
    each(names, lambda name: _set_accepted(client, name, accepted=False))


def _hand_over(client: ApiClient, name: str) -> None:
    """Give the name to the cluster that asked for it last. Raises CommandError when none did."""
    cluster = client.get(CLUSTERS.of(name))
    notes = cluster["metadata"].get("annotations") or {}
    uid = notes.get(WANTED_BY)
    if not uid:
        raise CommandError(f'no other cluster has asked for the name "{name}": let its agent register first')
    handed = {"metadata": {"annotations": {CLUSTER_UID: uid}, "resourceVersion": cluster["metadata"]["resourceVersion"]}}
    client.request("PATCH", CLUSTERS.of(name), handed, content_type=MERGE_PATCH)
    click.echo(f'the name "{name}" passes from the cluster with uid {notes.get(CLUSTER_UID)} to the one with uid {uid}')


def _set_accepted(client: ApiClient, name: str, *, accepted: bool) -> None:
    before = client.get(CLUSTERS.of(name))
    word = "accepted" if accepted else "denied"
    if (before.get("spec") or {}).get("hubAcceptsClient") is accepted and (accepted or _was_judged(before)):
        click.echo(f'cluster "{name}" is {word} already')
        return
    client.request("PATCH", CLUSTERS.of(name), {"spec": {"hubAcceptsClient": accepted}}, content_type=MERGE_PATCH)
    click.echo(f'cluster "{name}" {word}')


def _was_judged(cluster: dict[str, Any]) -> bool:
    """Whether there was a decision: a new cluster has no such condition, and only one with it was denied."""
    conditions = (cluster.get("status") or {}).get("conditions") or []
    return any(condition.get("type") == "HubAcceptedManagedCluster" for condition in conditions)
