"""hubctl ca: shows the hub's certificate authorities and the progress of a rotation, and rotates the CA."""

import time
from datetime import timedelta
from typing import Any

import click

from hubctl.client.connection import chosen_client, connected
from hubctl.client.http import ApiClient
from hubctl.client.resources import AUTHORITIES, post_action
from hubctl.errors import CommandError, UsageError
from hubctl.options import DURATION, text_option
from hubctl.output.printers import show_all

POLL_SECONDS = 2.0
ISSUING, REPLACED = "Issuing", ("Retiring", "Retired")
"""The phase of the issuing CA, and the phases at which `rotate --wait` ends."""
LISTED_CLUSTERS = 20
"""Largest number of listed cluster names. Further names are only counted."""


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
    for name, found in _statuses(client).items():
        for words in found.get("waitsFor") or ():
            click.echo(f"{name} waits for {words}")
        if left := found.get("clustersLeftBehind"):
            _list(f"agents have had no valid credential since {name} was removed", left, name)


@ca.command()
@click.option("--wait", is_flag=True, help="Show the progress until the old CA no longer issues certificates.")
@click.option(
    "--compromised", is_flag=True, help="The CA key may be compromised: remove the CA at once, and reject all its certificates."
)
@text_option("--ca", "name", "ID", "With --compromised: id of the CA. Default: the issuing CA.")
@click.option(
    "--within",
    type=DURATION,
    default="60s",
    metavar="DURATION",
    help="With --compromised: time for connected agents to trust the new CA, and again to renew.",
)
@click.option("--yes", is_flag=True, help="With --compromised: do not ask for confirmation.")
@connected
def rotate(client: ApiClient, *, wait: bool, compromised: bool, name: str, within: timedelta, yes: bool) -> None:
    """Rotate the hub's CA: replace the issuing CA by a new one.

    With --compromised the command first lists the agents that will need a new bootstrap credential: agents with a certificate
    of the CA that are not connected, connected agents that do not report which CAs they trust, and connected agents without a
    heartbeat for longer than their lease duration. Then it asks for confirmation, unless you set --yes. Connected agents have
    one minute to trust the new CA, and another minute to renew; agents that do not respond do not delay others. With --wait the
    command names the agents that did not complete both steps.

    \b
    Examples:
      hubctl ca rotate
      hubctl ca rotate --wait
      hubctl ca rotate --compromised
      hubctl ca rotate --compromised --within 0s --yes
    """
    one = name or _issuing(client)
    if compromised:
        _retire_compromised(client, one, round(within.total_seconds()), confirmed=yes)
    else:
        if name:
            raise UsageError("--ca needs --compromised")
        _post(client, one, "rotate")
        click.echo(f"the rotation of the CA {one} has started: see `hubctl ca status`")
    if wait:
        _watch(client, one)


@ca.command()
@click.argument("name", metavar="ID")
@connected
def proceed(client: ApiClient, name: str) -> None:
    """Start the next phase of a CA rotation now, without waiting for the remaining agents.

    Unless the CA is Retiring, these agents reconnect with their valid recovery certificate. Agents of Open Cluster Management
    have none and need a new bootstrap credential. The hub always waits for replicas without the key of the next issuing CA.

    \b
    Examples:
      hubctl ca status
      hubctl ca proceed 3f0c9a1e5b7d2846
    """
    answer = _post(client, name, "proceed")
    click.echo(f"the CA {name} is {answer.get('phase')} and no longer waits for the remaining agents")


def _retire_compromised(client: ApiClient, name: str, seconds: int, *, confirmed: bool) -> None:
    plan = _post(client, name, "compromised", {"withinSeconds": seconds}, dry_run=True)
    click.echo(
        f"{plan.get('moving', 0)} agents are connected: they have {seconds} s to trust the new CA, and {seconds} s to renew."
    )
    _list(
        "of them have been silent for longer than their lease and are left behind unless they respond",
        plan.get("silentClusters") or [],
        name,
    )
    _list("agents will need a new bootstrap credential", plan.get("strandedClusters") or [], name)
    if not confirmed and not click.confirm(f"Remove the CA {name} permanently?", default=False):
        raise CommandError("nothing was changed")
    _post(client, name, "compromised", {"withinSeconds": seconds})
    click.echo(f"the CA {name} is being removed: `hubctl ca status` shows the progress and the agents that are left behind")


def _list(about: str, clusters: list[str], name: str) -> None:
    click.echo(f"{len(clusters)} {about}{':' if clusters else '.'}")
    for cluster in clusters[:LISTED_CLUSTERS]:
        click.echo(f"  {cluster}")
    if len(clusters) > LISTED_CLUSTERS:
        click.echo(f"  and {len(clusters) - LISTED_CLUSTERS} more: `hubctl get ca {name} -o yaml`")


def _watch(client: ApiClient, name: str) -> None:
    """Print changes until the CA is retiring.

    The retirement of a CA may invalidate the credential in use. The function then reads the kubeconfig again, because the hub
    writes a new admin kubeconfig.
    """
    before: tuple[Any, ...] = ()
    while True:
        try:
            found = _statuses(client)
        except CommandError as error:
            if error.reason != "Unauthorized":
                raise
            client = chosen_client(click.get_current_context())
            found = _statuses(client)
        now = tuple((one, status.get("phase"), *(status.get("waitsFor") or ())) for one, status in found.items())
        if now != before:
            for one, phase, *waits in now:
                click.echo(f"{one} {phase}{': waits for ' + '; '.join(waits) if waits else ''}")
        before = now
        one = found.get(name, {})
        if one.get("phase") in REPLACED:
            if one.get("compromised"):
                _list("agents did not renew and need a new bootstrap credential", one.get("clustersLeftBehind") or [], name)
            return
        time.sleep(POLL_SECONDS)


def _issuing(client: ApiClient) -> str:
    for name, status in _statuses(client).items():
        if status.get("phase") == ISSUING:
            return name
    raise CommandError("the hub has no issuing CA")


def _statuses(client: ApiClient) -> dict[str, dict[str, Any]]:
    return {each["metadata"]["name"]: each.get("status") or {} for each in client.get(AUTHORITIES.path).get("items") or ()}


def _post(
    client: ApiClient, name: str, action: str, spec: dict[str, Any] | None = None, *, dry_run: bool = False
) -> dict[str, Any]:
    client.dry_run = dry_run
    return post_action(client, f"{AUTHORITIES.of(name)}/{action}", "CertificateAuthorityAction", spec or {})
