"""A watch that reconnects, resumes by resourceVersion, and lists again when that is too old."""

import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import click

from hubctl.client.http import ApiClient, join_pages, pages
from hubctl.errors import CommandError, ConnectionLostError
from hubctl.output.printers import Printer
from machinery.runtime.backoff import Backoff
from machinery.runtime.closed_pipe import end_with_reader

TOO_OLD = frozenset(("Expired", "Gone"))
TEMPORARY = frozenset(("ServiceUnavailable", "TooManyRequests", "Timeout", "InternalError"))


def follow(client: ApiClient, printer: Printer, path: str, query: Mapping[str, str], place: str) -> None:
    """Print the changes of a list after the resourceVersion `place`, until interrupted.

    Raises CommandError for a permanent failure, BrokenPipeError.
    """
    end_with_reader()
    pauses = Backoff(timedelta(milliseconds=200), timedelta(seconds=5))
    while True:
        watch = {**query, "watch": "1", "allowWatchBookmarks": "true", "resourceVersion": place}
        try:
            for event in client.stream(path, watch, accept=printer.accept):
                kind, found = str(event.get("type")), event.get("object") or {}
                _check(kind, found)
                pauses.reset()
                place = str(found["metadata"].get("resourceVersion") or place)
                if kind != "BOOKMARK":
                    printer.event(kind, found)
        except CommandError as error:
            if error.reason not in TOO_OLD:
                if not isinstance(error, ConnectionLostError) and error.reason not in TEMPORARY:
                    raise
                if not pauses.failures:
                    click.echo(f"hubctl: {error.sentence}; trying again", err=True)
                time.sleep(pauses.next().total_seconds())
                continue
            answer = join_pages(pages(client, path, query, accept=printer.accept))
            place = str(answer["metadata"]["resourceVersion"])
            click.echo("hubctl: the watch was away too long to resume; all is shown again", err=True)
            printer.first(answer)


def _check(kind: str, found: Mapping[str, Any]) -> None:
    """Raises CommandError for an error in place of a change."""
    if kind == "ERROR":
        raise CommandError(str(found.get("message")), reason=str(found.get("reason")))
