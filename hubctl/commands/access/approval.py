"""hubctl certificate approve and deny: decisions about certificate requests."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import click

from hubctl.arguments.batch import retried, run_each
from hubctl.arguments.completion import names_of
from hubctl.client.connection import connected
from hubctl.client.http import ApiClient
from hubctl.client.resources import CLUSTER_LABEL, REQUESTS
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


def requests_of(client: ApiClient, cluster: str) -> list[dict[str, Any]]:
    """The requests with the label of the cluster."""
    return list(client.get(REQUESTS.path, labelSelector=f"{CLUSTER_LABEL}={cluster}").get("items") or [])


def put_decision(
    client: ApiClient, request: dict[str, Any], decision: str, command: str, query: Mapping[str, str] | None = None
) -> None:
    """Approve or deny a request in the revision that was read. Raises CommandError, after a change with reason Conflict."""
    verb = {"Approved": "Approve", "Denied": "Deny"}[decision]
    message = f"This certificate request was {decision.lower()} by {command}."
    condition = {"type": decision, "status": "True", "reason": f"Hubctl{verb}", "message": message}
    status = request.get("status") or {}
    status = {**status, "conditions": [*(status.get("conditions") or []), condition]}
    client.request("PUT", f"{REQUESTS.of(request['metadata']['name'])}/approval", {**request, "status": status}, query=query)


def _decide_all(client: ApiClient, names: tuple[str, ...], decision: str, verb: str) -> None:
    word = decision.lower()

    def decide(name: str) -> str:
        request = client.get(REQUESTS.of(name))
        decided = decisions_of(request)
        if decision in decided:
            return f"is {word} already"
        if decided:
            raise CommandError(f'certificate request "{name}" is {decided[0].lower()} already: a decision is not taken back')
        put_decision(client, request, decision, f"hubctl certificate {verb}")
        return word

    def act(name: str) -> str:
        """Decide the request of this name, else the pending requests of the cluster of this name."""
        if client.find(REQUESTS.of(name)) is not None:
            return f'certificate request "{name}" {retried(lambda: decide(name))}'
        pending = [str(request["metadata"]["name"]) for request in requests_of(client, name) if not decisions_of(request)]
        if not pending:
            raise CommandError(
                f'there is no certificate request "{name}", and no cluster "{name}" has one that waits: see `hubctl get csr`',
                reason="NotFound",
            )
        of = f'of cluster "{name}"'
        return "\n".join(f'certificate request "{one}" {of} {retried(partial(decide, one))}' for one in pending)

    run_each(names, act)


def decisions_of(request: dict[str, Any]) -> list[str]:
    """The types of its conditions that decide it; empty: it waits."""
    conditions = (request.get("status") or {}).get("conditions") or []
    return [str(condition["type"]) for condition in conditions if condition.get("type") in ("Approved", "Denied", "Failed")]
