"""hubctl audit: who did what, from the hub's audit records."""

from datetime import UTC, datetime
from typing import Any

import click

from hub.cli.client import HubClient
from hub.cli.connection import connected
from hub.cli.failures import CommandError
from hub.cli.getting import FORMATS, Documents, Rows, Wish
from hub.cli.resources import AUDIT

PAGE = 500
ROOMY = ("Name", "Age")
"""Columns that only `-o wide` has room for."""


@click.command()
@click.option("--user", default="", metavar="NAME", help="Who really asked, as in the certificate or token.")
@click.option("--verb", default="", metavar="VERB", help="create, update, patch, delete, deletecollection, get, connect, ...")
@click.option("--resource", default="", metavar="PLURAL", help="What was asked about, such as managedclusters.")
@click.option("--name", default="", metavar="NAME", help="Of the object that was asked about.")
@click.option("-n", "--namespace", default="", metavar="NAMESPACE", help="Of the object that was asked about.")
@click.option("--since", default="24h", show_default=True, metavar="TIME", help="A duration back from now, or an instant.")
@click.option("--until", default="", metavar="TIME", help="Likewise; without it: until now.")
@click.option("--limit", type=click.IntRange(min=1), metavar="NUMBER", help="Show so many at most, beginning with the oldest.")
@click.option("-o", "--output", type=click.Choice(FORMATS), help="Another form than the table; json and yaml show all of it.")
@connected
def audit(client: HubClient, output: str | None, limit: int | None, **chosen: str) -> None:
    """Show who did what: one line per request that changed something or read a secret, oldest first.

    \b
    Examples:
      hubctl audit
      hubctl audit --verb delete --since 7d
      hubctl audit --user admin --resource managedclusters -o wide
      hubctl audit --since 2026-11-21T08:00:00Z --until 2026-11-21T09:00:00Z -o json
    """
    wish = Wish(AUDIT, output=output)
    printer: Rows | Documents = Rows(wish) if wish.is_table else Documents(wish)
    part = "rows" if wish.is_table else "items"
    query = {"fieldSelector": _selector(chosen)}
    whole: dict[str, Any] = {}
    while True:
        left = PAGE if limit is None else min(PAGE, limit - len(whole.get(part) or ()))
        answer = client.get(AUDIT.path, accept=printer.accept, limit=str(left), **query)
        whole = {**answer, **whole, part: [*(whole.get(part) or ()), *(answer.get(part) or ())]}
        query["continue"] = str((answer.get("metadata") or {}).get("continue") or "")
        if not query["continue"] or len(whole[part]) == limit:
            break
    if output != "wide":
        for column in whole.get("columnDefinitions") or ():
            column["priority"] = 1 if column["name"] in ROOMY else column["priority"]
    printer.first(whole)


def _selector(chosen: dict[str, str]) -> str:
    times = {name: _instant(name, chosen.pop(name)) for name in ("since", "until")}
    for name, value in chosen.items():
        if "," in value or "=" in value:
            raise CommandError(f'--{name}: "{value}" cannot be searched for: it has a comma or an equals sign', code=2)
    return ",".join(f"{name}={value}" for name, value in (*chosen.items(), *times.items()) if value)


def _instant(name: str, text: str) -> str:
    """As the hub wants it. Raises CommandError."""
    if not text:
        return ""
    from machinery.clock import SystemClock  # noqa: PLC0415 - start-up time
    from machinery.durations import parse_duration  # noqa: PLC0415 - likewise

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
