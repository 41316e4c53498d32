"""hubctl accept, deny and delete: an operator's word on whole clusters."""

from typing import Any

import click

from hub.cli.certificates import pending_requests
from hub.cli.client import MERGE_PATCH, HubClient
from hub.cli.connection import connected
from hub.cli.failures import CommandError
from hub.cli.resources import ADDONS, CLUSTERS, resource_named
from hub.cli.several import each

FORCED = {"metadata": {"annotations": {"hub.open-cluster-management.io/force-deletion": "true"}}}
CLUSTER_UID, WANTED_BY = "hub.open-cluster-management.io/cluster-uid", "hub.open-cluster-management.io/wanted-by-uid"
OWN_FINALIZER = "/resource-cleanup"


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--rebuilt", is_flag=True, help="The name passes to the other cluster that asked for it: this one, built anew.")
@connected
def accept(client: HubClient, names: tuple[str, ...], *, rebuilt: bool) -> None:
    """Accept clusters into the fleet.

    Accepting and approving a cluster's certificate are two decisions, in any order; a cluster needs both.

    A cluster that was built anew has another uid, and the hub does not let it have the name by itself: its condition
    ManagedClusterDuplicated says that it asked. With --rebuilt it takes the name over, with its labels and history; the
    certificates of the cluster before are revoked.

    \b
    Examples:
      hubctl accept edge1
      hubctl accept edge1 edge2
      hubctl accept edge1 --rebuilt
    """

    def act(name: str) -> None:
        if rebuilt:
            _hand_over(client, name)
        _set_accepted(client, name, accepted=True)
        waiting = pending_requests(client, name)
        if waiting:
            click.echo(f'its certificate request {waiting[0]} waits: "hubctl certificate approve {name}"')

    each(names, act)


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@connected
def deny(client: HubClient, names: tuple[str, ...]) -> None:
    """Deny clusters: they stay known, and may neither report nor renew their certificate.

    \b
    Examples:
      hubctl deny edge1
    """
    each(names, lambda name: _set_accepted(client, name, accepted=False))


@click.command()
@click.argument("kind")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("-n", "--namespace", default="", metavar="CLUSTER", help="Of add-ons and leases: the cluster they belong to.")
@click.option("--force", is_flag=True, help="Of clusters that will never answer: wait for nothing, and give up what remains.")
@connected
def delete(client: HubClient, kind: str, names: tuple[str, ...], namespace: str, *, force: bool) -> None:
    """Delete objects from the hub. KIND is one of those of `hubctl get`.

    A deleted cluster's add-ons go before it, in the order of their priorities; `hubctl describe cluster` says what remains. Its
    certificates are revoked; the cluster itself stays as it is. A deleted bootstrap credential is revoked, and
    listed no more; `hubctl revoke` leaves it in the list.

    \b
    Examples:
      hubctl delete cluster edge1
      hubctl delete cluster edge1 --force
      hubctl delete csr edge1-x7k2p
    """
    resource = resource_named(kind)
    if resource.namespaced and not namespace:
        raise CommandError(f"an {resource.noun} is found by its cluster too: give -n CLUSTER", code=2)
    if force and resource is not CLUSTERS:
        raise CommandError("--force is for clusters alone", code=2)

    def act(name: str) -> None:
        if force and _forced(client, name):
            click.echo(f'{resource.noun} "{name}" is being deleted by force')
            return
        answer = client.request("DELETE", resource.of(name, namespace))
        held: Any = (answer.get("metadata") or {}).get("finalizers")
        if held and force:
            click.echo(f'{resource.noun} "{name}" is being deleted by force')
        elif held:
            click.echo(f'{resource.noun} "{name}" is being deleted; it goes when {", ".join(map(str, held))} let go')
        else:
            click.echo(f'{resource.noun} "{name}" deleted')

    each(names, act)


def _hand_over(client: HubClient, name: str) -> None:
    """Gives the name to the cluster that asked for it last. Raises CommandError when none did."""
    cluster = client.get(CLUSTERS.of(name))
    notes = cluster["metadata"].get("annotations") or {}
    uid = notes.get(WANTED_BY)
    if not uid:
        raise CommandError(f'no other cluster has asked for the name "{name}": let its agent register first')
    handed = {"metadata": {"annotations": {CLUSTER_UID: uid}, "resourceVersion": cluster["metadata"]["resourceVersion"]}}
    client.request("PATCH", CLUSTERS.of(name), handed, content_type=MERGE_PATCH)
    click.echo(f'the name "{name}" passes from the cluster with uid {notes.get(CLUSTER_UID)} to the one with uid {uid}')


def _forced(client: HubClient, name: str) -> bool:
    """Says what will be given up, and has it given up; whether that is all, because the cluster is being deleted already."""
    before = client.get(CLUSTERS.of(name))
    addons = [str(addon["metadata"]["name"]) for addon in client.get(ADDONS.within(name)).get("items") or []]
    held = [str(each) for each in before["metadata"].get("finalizers") or [] if not each.endswith(OWN_FINALIZER)]
    click.echo(f'warning: cluster "{name}" is given up: nothing on it is cleaned up, and nobody will do so later', err=True)
    if addons:
        click.echo(f"warning: what these add-ons have installed there stays: {', '.join(addons)}", err=True)
    if held:
        click.echo(f"warning: these have not let go and are not waited for: {', '.join(held)}", err=True)
    patched = client.request("PATCH", CLUSTERS.of(name), FORCED, content_type=MERGE_PATCH)
    return bool(patched["metadata"].get("deletionTimestamp"))


def _set_accepted(client: HubClient, name: str, *, accepted: bool) -> None:
    before = client.get(CLUSTERS.of(name))
    word = "accepted" if accepted else "denied"
    if (before.get("spec") or {}).get("hubAcceptsClient") is accepted and (accepted or _was_judged(before)):
        click.echo(f'cluster "{name}" is {word} already')
        return
    client.request("PATCH", CLUSTERS.of(name), {"spec": {"hubAcceptsClient": accepted}}, content_type=MERGE_PATCH)
    click.echo(f'cluster "{name}" {word}')


def _was_judged(cluster: dict[str, Any]) -> bool:
    """A new cluster is not accepted; only one with the condition was denied."""
    conditions = (cluster.get("status") or {}).get("conditions") or []
    return any(condition.get("type") == "HubAcceptedManagedCluster" for condition in conditions)
