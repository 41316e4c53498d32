"""hubctl audit: the hub's audit records."""

from datetime import UTC, datetime

import click

from hubctl.client.connection import connected
from hubctl.client.http import ApiClient
from hubctl.client.paging import whole
from hubctl.client.resources import AUDIT
from hubctl.errors import CommandError
from hubctl.output.formats import OutputFormat, output_option
from hubctl.output.printers import TableLayout, printer_of

ROOMY = ("Name", "Age")
"""Columns shown only with `-o wide`."""


@click.command()
@click.option("--user", default="", metavar="NAME", help="Who really asked, as in the certificate or token.")
@click.option("--verb", default="", metavar="VERB", help="create, update, patch, delete, deletecollection, get, connect, ...")
@click.option("--resource", default="", metavar="PLURAL", help="What was asked about, such as managedclusters.")
@click.option("--name", default="", metavar="NAME", help="Of the object that was asked about.")
@click.option("-n", "--namespace", default="", metavar="NAMESPACE", help="Of the object that was asked about.")
@click.option("--since", default="24h", show_default=True, metavar="TIME", help="A duration back from now, or an instant.")
@click.option("--until", default="", metavar="TIME", help="Likewise; without it: until now.")
@click.option("--limit", type=click.IntRange(min=1), metavar="NUMBER", help="Show so many at most, beginning with the oldest.")
@output_option()
@connected
def audit(client: ApiClient, output: OutputFormat, limit: int | None, **chosen: str) -> None:
    """Show who did what: one line per request that changed something or read a secret, oldest first.

    \b
    Examples:
      hubctl audit
      hubctl audit --verb delete --since 7d
      hubctl audit --user admin --resource managedclusters -o wide
      hubctl audit --since 2026-11-21T08:00:00Z --until 2026-11-21T09:00:00Z -o json
    """
    printer = printer_of(TableLayout(AUDIT, output))
    found = whole(client, AUDIT.path, {"fieldSelector": _selector(chosen)}, accept=printer.accept, limit=limit)
    if not output.given:
        for column in found.get("columnDefinitions") or ():
            column["priority"] = 1 if column["name"] in ROOMY else column["priority"]
    printer.first(found)


def _selector(chosen: dict[str, str]) -> str:
    times = {name: _instant(name, chosen.pop(name)) for name in ("since", "until")}
    for name, value in chosen.items():
        if "," in value or "=" in value:
            raise CommandError(f'--{name}: "{value}" cannot be searched for: it has a comma or an equals sign', code=2)
    return ",".join(f"{name}={value}" for name, value in (*chosen.items(), *times.items()) if value)


def _instant(name: str, text: str) -> str:
    """The instant in the hub's format. Raises CommandError."""
    if not text:
        return ""
    from machinery.durations import parse_duration  # noqa: PLC0415 - likewise
    from machinery.runtime.clock import SystemClock  # noqa: PLC0415 - start-up time

    try:
        return f"{SystemClock().now() - parse_duration(text):%Y-%m-%dT%H:%M:%S.%fZ}"
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise CommandError(
            f'--{name}: "{text}" is neither a duration such as 2h nor an instant as in ISO 8601', code=2
        ) from None
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"
