"""hubctl rotate cluster: orders early renewal of agents' certificates, and shows the progress."""

import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import click

from hubctl.arguments.completion import names_of
from hubctl.client.connection import connected
from hubctl.client.http import ApiClient
from hubctl.client.resources import CLUSTERS, CREDENTIALS
from hubctl.errors import TIMED_OUT, CommandError
from hubctl.options import DURATION
from machinery.durations import format_duration

PAGE = 500
PER_SECOND = 20
"""Renewals per second when all agents are asked without --within."""
LEAST = timedelta(minutes=1)
LOOK = 1.0
"""Poll interval in seconds while waiting for renewals."""


@click.group()
def rotate() -> None:
    """Have certificates renewed ahead of their time.

    \b
    Examples:
      hubctl rotate cluster edge1 --wait
      hubctl rotate cluster --all --within 1h
    """


@rotate.command("cluster")
@click.argument("name", required=False, default="", shell_complete=names_of("clusters"))
@click.option("--all", "everybody", is_flag=True, help="Every cluster of the hub.")
@click.option("--within", type=DURATION, help="Each agent renews at a random moment within this: 0s, 10m, 1h.")
@click.option("--wait", is_flag=True, help="Until every agent that has a certificate has a new one, showing how many have.")
@click.option("--timeout", type=DURATION, help="How long to --wait; without it, until Ctrl-C.")
@connected
def cluster(
    client: ApiClient, name: str, within: timedelta | None, timeout: timedelta | None, *, everybody: bool, wait: bool
) -> None:
    """Have the agent of a cluster, or all agents, renew the certificate, with a new key, and those of its add-ons.

    No beat is lost for it. The order stays: an agent that is off renews when it comes back. Without --within one cluster
    renews at once, and all of them spread so that about twenty renew in a second. Agents of the driver csr are told nothing:
    they renew by their own rules.

    \b
    Examples:
      hubctl rotate cluster edge1 --wait
      hubctl rotate cluster --all --within 1h --wait
    """
    if bool(name) is everybody:
        raise CommandError("name one cluster, or give --all", code=2)
    names = list(_names(client)) if everybody else [name]
    spread = within if within is not None else _spread(len(names), everybody=everybody)
    asked = []
    for done, each in enumerate(names, start=1):
        answer = _post(client, each, {"withinSeconds": int(spread.total_seconds())})
        if (answer.get("status") or {}).get("agents"):
            asked.append(each)
        if everybody and done % PAGE == 0:
            click.echo(f"{done} of {len(names)} clusters are asked", err=True)
    what = f"{len(asked)} clusters are" if everybody else f'cluster "{name}" is'
    click.echo(f"{what} asked to renew within {format_duration(spread)}")
    if everybody and len(asked) < len(names):
        click.echo(f"{len(names) - len(asked)} have no agent with a certificate: nothing of them is to be renewed")
    if wait:
        _wait(client, asked if everybody else names, timeout)


def _spread(count: int, *, everybody: bool) -> timedelta:
    return max(LEAST, timedelta(seconds=count / PER_SECOND)) if everybody else timedelta()


def _wait(client: ApiClient, names: Sequence[str], timeout: timedelta | None) -> None:
    until = None if timeout is None else time.monotonic() + timeout.total_seconds()
    waiting, told = list(names), -1
    while waiting:
        waiting = [each for each in waiting if not _has_renewed(client, each)]
        done = len(names) - len(waiting)
        if done != told:
            told = done
            click.echo(f"{done} of {len(names)} renewed")
        if waiting and until is not None and time.monotonic() > until:
            some = ", ".join(waiting[:10]) + (" ..." if waiting[10:] else "")
            raise CommandError(f"{len(waiting)} have not renewed in time; they do when they come back: {some}", code=TIMED_OUT)
        if waiting:
            time.sleep(LOOK)


def _has_renewed(client: ApiClient, name: str) -> bool:
    """Whether nothing is left to renew; also true for a cluster without a certificate, or deleted meanwhile."""
    try:
        status = _post(client, name, {"show": True}).get("status") or {}
    except CommandError as error:
        if error.reason == "NotFound":
            return True
        raise
    return all(agent.get("renewed") for agent in status.get("agents") or ())


def _post(client: ApiClient, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    asked = {"apiVersion": CREDENTIALS.group_version, "kind": "ClusterRotation", "spec": spec}
    return client.request("POST", f"{CLUSTERS.of(name)}/rotate", asked)


def _names(client: ApiClient) -> Iterator[str]:
    """The names of all clusters, read page by page."""
    going_on = ""
    while True:
        page = client.get(CLUSTERS.path, limit=str(PAGE), **{"continue": going_on})
        for item in page.get("items") or ():
            yield str(item["metadata"]["name"])
        going_on = (page.get("metadata") or {}).get("continue") or ""
        if not going_on:
            return
