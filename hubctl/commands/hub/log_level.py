"""hubctl log-level: changes the hub's log level at run time."""

import click

from hubctl.client.connection import connected
from hubctl.client.http import ApiClient

PATH = "/debug/flags/v"


@click.command("log-level")
@click.argument("level", required=False, type=click.Choice(["debug", "info", "warning", "error", "reset"]))
@click.option("--for", "lasts", metavar="DURATION", help="Back to what it was after this time.  [default: 15m]")
@connected
def log_level(client: ApiClient, level: str | None, lasts: str | None) -> None:
    """Show how much the hub logs, or change it on all replicas for a time; `reset` takes that back.

    Each replica follows within three seconds, and goes back by itself. Where the database is away, SIGUSR2 to the process does
    it: the first asks for everything, the second takes that back.

    \b
    Examples:
      hubctl log-level
      hubctl log-level debug --for 10m
      hubctl log-level reset
    """
    if level is None:
        told = client.get(PATH)
    elif level == "reset":
        told = client.request("DELETE", PATH)
    else:
        told = client.request("PUT", PATH, {"level": level, **({"for": lasts} if lasts else {})})
    click.echo(_sentence(told))


def _sentence(told: dict[str, str]) -> str:
    if not told.get("ordered"):
        return f"{told['started']}, as it was started"
    return f"{told['ordered']} until {told['until']}, ordered by {told['by']}; started with {told['started']}"
