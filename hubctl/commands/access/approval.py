"""hubctl certificate approve and deny: decisions about certificate requests."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import click

from hubctl.arguments.batch import retried, run_batch
from hubctl.arguments.completion import names_of
from hubctl.arguments.selection import select_objects
from hubctl.arguments.targets import ObjectReference
from hubctl.client.connection import connected
from hubctl.client.http import ApiClient
from hubctl.client.resources import CLUSTER_LABEL, REQUESTS
from hubctl.errors import CommandError
from hubctl.options import CHANGE, FIELDS, FILES, SELECTOR, with_options


@click.group()
def certificate() -> None:
    """Approve or deny certificate requests.

    \b
    Examples:
      hubctl get csr
      hubctl certificate approve edge1-x7k2p
      hubctl certificate approve edge1           (all pending ones of cluster edge1)
    """


_REQUESTS = with_options(
    click.argument("names", nargs=-1, metavar="NAME...", shell_complete=names_of("csr")),
    *(SELECTOR, FIELDS, click.option("--all", "everything", is_flag=True, help="Select all pending requests."), FILES, *CHANGE),
)


@certificate.command("approve", short_help="Approve requests.")
@_REQUESTS
@connected
def approve_requests(client: ApiClient, names: tuple[str, ...], **chosen: Any) -> None:
    """Approve certificate requests. NAME is a request, or a cluster with pending requests. Selectors select pending requests.

    \b
    Examples:
      hubctl certificate approve edge1-x7k2p
      hubctl certificate approve edge1
      hubctl certificate approve -l open-cluster-management.io/cluster-name=edge1 --dry-run=server
      hubctl get csr -o name | hubctl certificate approve -f -
    """
    _decide(client, names, chosen, "Approved", "approve")


@certificate.command("deny", short_help="Deny requests.")
@_REQUESTS
@connected
def deny_requests(client: ApiClient, names: tuple[str, ...], **chosen: Any) -> None:
    """Deny certificate requests. NAME is a request, or a cluster with pending requests. Selectors select pending requests.

    \b
    Examples:
      hubctl certificate deny edge1-x7k2p
      hubctl certificate deny --all --yes
    """
    _decide(client, names, chosen, "Denied", "deny")


def requests_of(client: ApiClient, cluster: str) -> list[dict[str, Any]]:
    return list(client.get(REQUESTS.path, labelSelector=f"{CLUSTER_LABEL}={cluster}").get("items") or [])


def put_decision(client: ApiClient, request: Mapping[str, Any], decision: str, command: str) -> None:
    """Set the decision (`Approved` or `Denied`) of a certificate request. `command`: the command, for the condition's message.

    Raises CommandError, with the reason Conflict if the request has changed since it was read.
    """
    verb = {"Approved": "Approve", "Denied": "Deny"}[decision]
    message = f"This certificate request was {decision.lower()} by {command}."
    condition = {"type": decision, "status": "True", "reason": f"Hubctl{verb}", "message": message}
    status = request.get("status") or {}
    status = {**status, "conditions": [*(status.get("conditions") or []), condition]}
    client.request("PUT", f"{REQUESTS.of(request['metadata']['name'])}/approval", {**request, "status": status})


def _decide(client: ApiClient, names: tuple[str, ...], chosen: Mapping[str, Any], decision: str, verb: str) -> None:
    word = decision.lower()
    selection = select_objects(client, names, chosen, REQUESTS, whole=True)
    if not selection.is_named:
        pending = tuple(one for one in selection.objects if one.listed is None or not decisions_of(one.listed))
        if not pending:
            raise CommandError("no pending certificate request matches", reason="NotFound")
        selection = replace(selection, objects=pending)

    def decide(name: str, listed: Mapping[str, Any] | None) -> str:
        """Decide the request in the revision `listed`; None: in its present revision. Return the result as a text."""
        request = listed or client.get(REQUESTS.of(name))
        decided = decisions_of(request)
        if decision in decided:
            return f"is {word} already"
        if decided:
            raise CommandError(f'certificate request "{name}" is {decided[0].lower()} already: a decision is final')
        put_decision(client, request, decision, f"hubctl certificate {verb}")
        return f"{word}{client.note}"

    def act(one: ObjectReference) -> str:
        """Decide the request with this name, or the pending requests of the cluster with this name."""
        if one.listed is not None:
            return f"{one} {decide(one.name, one.listed)}"
        if client.find(one.path) is not None:
            return f"{one} {retried(lambda: decide(one.name, None))}"
        pending = [str(request["metadata"]["name"]) for request in requests_of(client, one.name) if not decisions_of(request)]
        if not pending:
            raise CommandError(
                f'no certificate request is "{one.name}", and no cluster "{one.name}" has a pending one: see `hubctl get csr`',
                reason="NotFound",
            )
        of = f'of cluster "{one.name}"'
        return "\n".join(f'certificate request "{name}" {of} {retried(partial(decide, name, None))}' for name in pending)

    run_batch(selection, act, chosen, verb, is_destructive=decision == "Denied")


def decisions_of(request: Mapping[str, Any]) -> list[str]:
    """Return the types of the conditions that decide the request; empty if the request is pending."""
    conditions = (request.get("status") or {}).get("conditions") or []
    return [str(condition["type"]) for condition in conditions if condition.get("type") in ("Approved", "Denied", "Failed")]
