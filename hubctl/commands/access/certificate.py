"""hubctl certificate approve and deny, by the name of a request or of a cluster."""

from typing import Any

import click

from hubctl.arguments.completion import names_of
from hubctl.arguments.targets import each
from hubctl.client.connection import connected
from hubctl.client.http import ApiClient
from hubctl.client.resources import CLUSTER_LABEL, REQUESTS
from hubctl.errors import CommandError

ATTEMPTS = 5


@click.group()
def certificate() -> None:
    """Approve or deny certificate requests.

    \b
    Examples:
      hubctl get csr
      hubctl certificate approve edge1-x7k2p
      hubctl certificate approve edge1           (all that wait of cluster edge1)
    """


@certificate.command(short_help="Approve requests.")
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=names_of("csr"))
@connected
def approve(client: ApiClient, names: tuple[str, ...]) -> None:
    """Approve requests: NAME is a request, or a cluster whose waiting requests are meant.

    \b
    Examples:
      hubctl certificate approve edge1-x7k2p
      hubctl certificate approve edge1
    """
    _decide_all(client, names, "Approved")


@certificate.command(short_help="Deny requests.")
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=names_of("csr"))
@connected
def deny(client: ApiClient, names: tuple[str, ...]) -> None:
    """Deny requests: NAME is a request, or a cluster whose waiting requests are meant.

    \b
    Examples:
      hubctl certificate deny edge1-x7k2p
    """
    _decide_all(client, names, "Denied")


def pending_requests(client: ApiClient, cluster: str) -> list[str]:
    """Names of the cluster's requests without a decision."""
    found = client.get(REQUESTS.path, labelSelector=f"{CLUSTER_LABEL}={cluster}").get("items") or []
    return [item["metadata"]["name"] for item in found if not _decisions(item)]


def _decide_all(client: ApiClient, names: tuple[str, ...], decision: str) -> None:
    def act(name: str) -> None:
        for request in _meant(client, name):
            _decide(client, request, decision, of="" if request == name else f' of cluster "{name}"')

    each(names, act)


def _meant(client: ApiClient, name: str) -> list[str]:
    """The request of this name, else the pending requests of the cluster of this name."""
    try:
        client.get(REQUESTS.of(name))
    except CommandError as error:
        if error.reason != "NotFound":
            raise
    else:
        return [name]
    waiting = pending_requests(client, name)
    if not waiting:
        raise CommandError(
            f'there is no certificate request "{name}", and no cluster "{name}" has one that waits: see `hubctl get csr`',
            reason="NotFound",
        )
    return waiting


def _decide(client: ApiClient, name: str, decision: str, *, of: str) -> None:
    word = decision.lower()
    for attempt in range(ATTEMPTS):
        request = client.get(REQUESTS.of(name))
        decided = _decisions(request)
        if decision in decided:
            click.echo(f'certificate request "{name}"{of} is {word} already')
            return
        if decided:
            raise CommandError(f'certificate request "{name}" is {decided[0].lower()} already: a decision is not taken back')
        try:
            client.request("PUT", f"{REQUESTS.of(name)}/approval", _decided(request, decision))
        except CommandError as error:
            if error.reason != "Conflict" or attempt == ATTEMPTS - 1:
                raise
        else:
            click.echo(f'certificate request "{name}"{of} {word}')
            return


def _decided(request: dict[str, Any], decision: str) -> dict[str, Any]:
    status = request.get("status") or {}
    verb = "approve" if decision == "Approved" else "deny"
    condition = {
        "type": decision,
        "status": "True",
        "reason": f"Hubctl{verb.capitalize()}",
        "message": f"This certificate request was {decision.lower()} by hubctl certificate {verb}.",
    }
    return {**request, "status": {**status, "conditions": [*(status.get("conditions") or []), condition]}}


def _decisions(request: dict[str, Any]) -> list[str]:
    conditions = (request.get("status") or {}).get("conditions") or []
    return [str(condition["type"]) for condition in conditions if condition.get("type") in ("Approved", "Denied", "Failed")]
