"""hubctl certificate approve and deny, accept and deny: decisions about certificate requests and clusters."""

from functools import partial
from typing import Any

import click

from hubctl.arguments.completion import names_of
from hubctl.arguments.targets import each, retried
from hubctl.client.connection import connected
from hubctl.client.http import ApiClient
from hubctl.client.resources import CLUSTER_LABEL, CLUSTERS, REQUESTS
from hubctl.errors import CommandError


@click.group()
def certificate() -> None:
    """Approve or deny certificate requests.

    \b
    Examples:
      hubctl get csr
      hubctl certificate approve edge1-x7k2p
      hubctl certificate approve edge1           (all that wait of cluster edge1)
    """


@certificate.command("approve", short_help="Approve requests.")
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=names_of("csr"))
@connected
def approve_requests(client: ApiClient, names: tuple[str, ...]) -> None:
    """Approve certificate requests. NAME is a request, or a cluster with pending requests.

    \b
    Examples:
      hubctl certificate approve edge1-x7k2p
      hubctl certificate approve edge1
    """
    _decide_all(client, names, "Approved", "approve")


@certificate.command("deny", short_help="Deny requests.")
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=names_of("csr"))
@connected
def deny_requests(client: ApiClient, names: tuple[str, ...]) -> None:
    """Deny certificate requests. NAME is a request, or a cluster with pending requests.

    \b
    Examples:
      hubctl certificate deny edge1-x7k2p
    """
    _decide_all(client, names, "Denied", "deny")


def pending_requests(client: ApiClient, cluster: str) -> list[str]:
    """Names of the cluster's requests without a decision."""
    found = client.get(REQUESTS.path, labelSelector=f"{CLUSTER_LABEL}={cluster}").get("items") or []
    return [item["metadata"]["name"] for item in found if not _decisions(item)]


def _decide_all(client: ApiClient, names: tuple[str, ...], decision: str, verb: str) -> None:
    word = decision.lower()
    condition = {
        "type": decision,
        "status": "True",
        "reason": f"Hubctl{verb.capitalize()}",
        "message": f"This certificate request was {word} by hubctl certificate {verb}.",
    }

    def decide(name: str) -> str:
        request = client.get(REQUESTS.of(name))
        decided = _decisions(request)
        if decision in decided:
            return f"is {word} already"
        if decided:
            raise CommandError(f'certificate request "{name}" is {decided[0].lower()} already: a decision is not taken back')
        status = request.get("status") or {}
        status = {**status, "conditions": [*(status.get("conditions") or []), condition]}
        client.request("PUT", f"{REQUESTS.of(name)}/approval", {**request, "status": status})
        return word

    def act(name: str) -> None:
        """Decide the request of this name, else the pending requests of the cluster of this name."""
        if client.find(REQUESTS.of(name)) is not None:
            click.echo(f'certificate request "{name}" {retried(lambda: decide(name))}')
            return
        pending = pending_requests(client, name)
        if not pending:
            raise CommandError(
                f'there is no certificate request "{name}", and no cluster "{name}" has one that waits: see `hubctl get csr`',
                reason="NotFound",
            )
        for request in pending:
            click.echo(f'certificate request "{request}" of cluster "{name}" {retried(partial(decide, request))}')

    each(names, act)


def _decisions(request: dict[str, Any]) -> list[str]:
    conditions = (request.get("status") or {}).get("conditions") or []
    return [str(condition["type"]) for condition in conditions if condition.get("type") in ("Approved", "Denied", "Failed")]


CLUSTER_UID, WANTED_BY = "hub.open-cluster-management.io/cluster-uid", "hub.open-cluster-management.io/wanted-by-uid"
GIVEN_TO = "hub.open-cluster-management.io/given-to-agent"


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=names_of("clusters"))
@click.option("--rebuilt", is_flag=True, help="Assign the name to the rebuilt cluster that requests it.")
@click.option("--agent", metavar="ID", help="Assign the cluster to this agent, and revoke its other agents.")
@connected
def accept(client: ApiClient, names: tuple[str, ...], *, rebuilt: bool, agent: str | None) -> None:
    """Accept clusters into the fleet.

    Accepting a cluster and approving its certificate are two decisions, in any order. A cluster needs both.

    A rebuilt cluster has another UID, and the hub does not assign the name to it automatically; the condition
    ManagedClusterDuplicated shows the request. With --rebuilt it takes over the name, with its labels and history, and the
    certificates of the earlier cluster are revoked.

    If a cluster has two agents, the first keeps the session, and ManagedClusterDuplicated names the other. With --agent the
    other one takes over immediately, and the certificates of the first are revoked.

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
            client.patch(CLUSTERS.of(name), {"metadata": {"annotations": {GIVEN_TO: agent}}})
            click.echo(f'cluster "{name}" is given to agent "{agent}"; its other agents are revoked')
        if rebuilt:
            _hand_over(client, name)
        _set_accepted(client, name, accepted=True)
        pending = pending_requests(client, name)
        if pending:
            click.echo(f'its certificate request {pending[0]} waits: "hubctl certificate approve {name}"')

    each(names, act)


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=names_of("clusters"))
@connected
def deny(client: ApiClient, names: tuple[str, ...]) -> None:
    """Deny clusters: the hub keeps them, but rejects their reports and certificate renewals.

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
    client.patch(CLUSTERS.of(name), handed)
    click.echo(f'the name "{name}" passes from the cluster with uid {notes.get(CLUSTER_UID)} to the one with uid {uid}')


def _set_accepted(client: ApiClient, name: str, *, accepted: bool) -> None:
    before = client.get(CLUSTERS.of(name))
    word = "accepted" if accepted else "denied"
    conditions = (before.get("status") or {}).get("conditions") or []
    # A new cluster is not accepted and has no such condition; only one with it was denied.
    was_decided = accepted or any(condition.get("type") == "HubAcceptedManagedCluster" for condition in conditions)
    if (before.get("spec") or {}).get("hubAcceptsClient") is accepted and was_decided:
        click.echo(f'cluster "{name}" is {word} already')
        return
    client.patch(CLUSTERS.of(name), {"spec": {"hubAcceptsClient": accepted}})
    click.echo(f'cluster "{name}" {word}')
