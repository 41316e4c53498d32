"""hubctl ca: the hub's certificate authorities, the progress of a change of CA, and the commands for it."""

import time
from typing import Any

import click

from hubctl.client.connection import client_of, connected, root_option
from hubctl.client.http import ApiClient
from hubctl.client.resources import AUTHORITIES
from hubctl.errors import CommandError
from hubctl.output.printers import show_all
from machinery.durations import parse_duration

POLL_SECONDS = 2.0
RESTING = ("Issuing", "Retiring", "Retired")
ENOUGH = 20
"""Number of cluster names listed before the rest is only counted."""


@click.group()
def ca() -> None:
    """Manage the hub's CA: show the issuing CA, its expiry, and the progress of a rotation.

    A rotation has phases: both CAs are trusted, the new CA issues, the old CA retires. Each phase ends when all connected
    agents have completed it. Agents that were absent during the rotation reconnect while their recovery certificate is
    valid.

    \b
    Examples:
      hubctl ca status
      hubctl ca rotate --wait
      hubctl ca proceed 3f0c9a1e5b7d2846
      hubctl ca rotate --compromised
    """


@ca.command()
@connected
def status(client: ApiClient) -> None:
    """Show the CAs, their phases, and the conditions for the next phase.

    \b
    Examples:
      hubctl ca status
    """
    show_all(client, AUTHORITIES)
    for each in _all(client):
        for words in (each.get("status") or {}).get("waitsFor") or ():
            click.echo(f"{each['metadata']['name']} waits for {words}")
        if left := (each.get("status") or {}).get("clustersLeftBehind"):
            _list(
                f"agents have had no credential since {each['metadata']['name']} was given up", left, each["metadata"]["name"]
            )


@ca.command()
@click.option("--wait", is_flag=True, help="Show the progress until the old CA no longer issues certificates.")
@click.option(
    "--compromised", is_flag=True, help="The CA key may be compromised: remove the CA at once, and reject all its certificates."
)
@click.option("--ca", "name", default="", metavar="ID", help="With --compromised: id of the CA. Default: the issuing CA.")
@click.option(
    "--within",
    default="60s",
    metavar="DURATION",
    help="With --compromised: time for connected agents to trust the new CA, and again to renew.",
)
@click.option("--yes", is_flag=True, help="With --compromised: do not ask for confirmation.")
@connected
def rotate(client: ApiClient, *, wait: bool, compromised: bool, name: str, within: str, yes: bool) -> None:
    """Rotate the hub's CA: replace the issuing CA by a new one.

    With --compromised the command first lists the agents that will need a new bootstrap credential: agents with a
    certificate of the CA that are not connected, agents of earlier releases, and connected agents that stay silent for
    longer than their lease duration. Then it asks for confirmation, unless you set --yes. Connected agents have one minute
    to trust the new CA, and another one to renew; agents that do not respond do not delay others. With --wait the command
    names the agents that did not complete.

    \b
    Examples:
      hubctl ca rotate
      hubctl ca rotate --wait
      hubctl ca rotate --compromised
      hubctl ca rotate --compromised --within 0s --yes
    """
    one = name or _issuing(client)
    if compromised:
        _give_up(client, one, round(parse_duration(within).total_seconds()), asked=not yes)
    else:
        if name:
            raise CommandError("--ca goes with --compromised", code=2)
        _post(client, one, "rotate")
        click.echo(f"the CA {one} will be followed by another: see `hubctl ca status`")
    if wait:
        _watch(client, one)


@ca.command()
@click.argument("name", metavar="ID")
@connected
def proceed(client: ApiClient, name: str) -> None:
    """Start the next phase of a CA rotation now, without waiting for the remaining agents.

    These agents reconnect with their recovery certificate while it is valid. Agents of Open Cluster Management have none
    and need a new bootstrap credential. The hub always waits for replicas that do not have the key of the next issuing CA.

    \b
    Examples:
      hubctl ca status
      hubctl ca proceed 3f0c9a1e5b7d2846
    """
    answer = _post(client, name, "proceed")
    click.echo(f"the CA {name}, {answer.get('phase')} now, goes on without those that have not moved")


def _give_up(client: ApiClient, name: str, seconds: int, *, asked: bool) -> None:
    plan = _post(client, name, "compromised", {"withinSeconds": seconds}, dry_run=True)
    stranded_agents = plan.get("strandedClusters") or []
    click.echo(
        f"{plan.get('moving', 0)} agents are connected: they have {seconds} s to trust the new CA, and {seconds} s to renew."
    )
    _list(
        "of them have been silent for longer than their lease and stay behind unless they answer",
        plan.get("silentClusters") or [],
        name,
    )
    _list("agents will need a new bootstrap credential", stranded_agents, name)
    if asked and not click.confirm(f"Retire the CA {name} for good?", default=False):
        raise CommandError("nothing was done")
    _post(client, name, "compromised", {"withinSeconds": seconds})
    click.echo(f"the CA {name} goes: `hubctl ca status` shows how far it is, and then which agents were left behind")


def _list(about: str, clusters: list[str], name: str) -> None:
    click.echo(f"{len(clusters)} {about}{':' if clusters else '.'}")
    for cluster in clusters[:ENOUGH]:
        click.echo(f"  {cluster}")
    if len(clusters) > ENOUGH:
        click.echo(f"  and {len(clusters) - ENOUGH} more: `hubctl get ca {name} -o yaml`")


def _watch(client: ApiClient, name: str) -> None:
    """Print changes until the CA is retiring. That may invalidate the credential in use, which is then reloaded."""
    before: tuple[Any, ...] = ()
    while True:
        try:
            found = _all(client)
        except CommandError as error:
            if error.reason != "Unauthorized":
                raise
            client = _with_the_new_credential()
            found = _all(client)
        everyone = {each["metadata"]["name"]: each.get("status") or {} for each in found}
        now = tuple((one, status.get("phase"), *(status.get("waitsFor") or ())) for one, status in everyone.items())
        if now != before:
            for one, phase, *waits in now:
                click.echo(f"{one} {phase}{': waits for ' + '; '.join(waits) if waits else ''}")
        before = now
        one = everyone.get(name, {})
        if one.get("phase") in RESTING[1:]:
            if one.get("compromised"):
                _list("agents did not move and need a new bootstrap credential", one.get("clustersLeftBehind") or [], name)
            return
        time.sleep(POLL_SECONDS)


def _with_the_new_credential() -> ApiClient:
    """Load the kubeconfig again; the hub has rewritten it if it is the administrator's."""
    context = click.get_current_context()
    file, name = (context.params.get(option) or root_option(context, option) for option in ("kubeconfig", "context_name"))
    return client_of(file, name)


def _issuing(client: ApiClient) -> str:
    found = [each["metadata"]["name"] for each in _all(client) if (each.get("status") or {}).get("phase") == RESTING[0]]
    if not found:
        raise CommandError("the hub has no CA that issues")
    return str(found[0])


def _all(client: ApiClient) -> list[dict[str, Any]]:
    return list(client.get(AUTHORITIES.path).get("items") or [])


def _post(
    client: ApiClient, name: str, action: str, spec: dict[str, Any] | None = None, *, dry_run: bool = False
) -> dict[str, Any]:
    asked = {"apiVersion": AUTHORITIES.group_version, "kind": "CertificateAuthorityAction", "spec": spec or {}}
    query = {"dryRun": "All"} if dry_run else {}
    return dict(client.request("POST", f"{AUTHORITIES.of(name)}/{action}", asked, query=query).get("status") or {})
