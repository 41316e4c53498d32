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
    """Look after the hub's own CA: who signs, until when, and how far a change of CA is.

    A change goes in phases, each as soon as everybody who is connected has moved: both CAs are trusted, the new one issues, the
    old one retires. Agents that were away for the whole of it come back by themselves while their recovery certificate lasts.

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
    """Show the CAs, their phases, and what the next step waits for.

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
@click.option("--wait", is_flag=True, help="Show how far it is until the old CA is on its way out.")
@click.option(
    "--compromised", is_flag=True, help="Somebody else may have the CA's key: it goes at once, and nothing of it counts."
)
@click.option("--ca", "name", default="", metavar="ID", help="With --compromised: another CA than the one that issues.")
@click.option(
    "--within",
    default="60s",
    metavar="DURATION",
    help="With --compromised: how long connected agents have to trust the new CA, and again to renew.",
)
@click.option("--yes", is_flag=True, help="With --compromised: do not ask.")
@connected
def rotate(client: ApiClient, *, wait: bool, compromised: bool, name: str, within: str, yes: bool) -> None:
    """Have another CA take the place of the one that issues.

    With --compromised the command first says which agents will need a new bootstrap credential: those that hold a certificate
    of the CA and are not connected, those of earlier releases, and connected ones that have been silent for longer than their
    lease, if they stay so. Then it asks, unless --yes is given. Connected agents have a minute to trust the new CA, and another
    one to renew; one that does not answer takes no time from others. With --wait the command names those that are left behind.

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
    """Have the next step of a CA made now, without the agents that have not moved.

    Those come back with their recovery certificate, while that lasts. Agents of Open Cluster Management have none: they need a
    new bootstrap credential then. A replica that lacks the key of a CA that is to issue is always waited for.

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
