"""A watch that reconnects, resumes by resourceVersion, and lists again when that is too old."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import click

from hubctl.client.http import ApiClient, fetch_all_pages
from hubctl.errors import CommandError, ConnectionLostError
from hubctl.output.printers import Printer
from machinery.runtime.backoff import Backoff
from machinery.runtime.closed_pipe import end_with_reader

TOO_OLD = frozenset(("Expired", "Gone"))
TEMPORARY = frozenset(("ServiceUnavailable", "TooManyRequests", "Timeout", "InternalError"))


class _ExpiredPlaceError(Exception):
    """The resourceVersion to resume from is too old."""


@dataclass(frozen=True, slots=True)
class Watched:
    """A list that was shown, with its query; the watch continues from it."""

    path: str
    query: Mapping[str, str]
    answer: Mapping[str, Any]


def follow(client: ApiClient, shown: Watched, printer: Printer) -> None:
    """Print changes after the list, until interrupted. Raises CommandError for a permanent failure, BrokenPipeError."""
    end_with_reader()
    place = str(shown.answer["metadata"]["resourceVersion"])
    pauses = Backoff(timedelta(milliseconds=200), timedelta(seconds=5))
    while True:
        try:
            for kind, found in _events(client, shown, place, printer.accept):
                pauses.reset()
                place = str(found["metadata"].get("resourceVersion") or place)
                if kind != "BOOKMARK":
                    printer.event(kind, found)
        except _ExpiredPlaceError:
            answer = fetch_all_pages(client, shown.path, shown.query, accept=printer.accept)
            place = str(answer["metadata"]["resourceVersion"])
            click.echo("hubctl: the watch was away too long to resume; all is shown again", err=True)
            printer.first(answer)
        except CommandError as error:
            if not isinstance(error, ConnectionLostError) and error.reason not in TEMPORARY:
                raise
            if not pauses.failures:
                click.echo(f"hubctl: {error.sentence}; trying again", err=True)
            time.sleep(pauses.next().total_seconds())


def _events(client: ApiClient, shown: Watched, place: str, accept: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Pairs of type and object. Raises _ExpiredPlaceError, CommandError."""
    asked = {**shown.query, "watch": "1", "allowWatchBookmarks": "true", "resourceVersion": place}
    try:
        for event in client.stream(shown.path, asked, accept=accept):
            kind, found = str(event.get("type")), event.get("object") or {}
            _check(kind, found)
            yield kind, found
    except CommandError as error:
        if error.reason in TOO_OLD:
            raise _ExpiredPlaceError from None
        raise


def _check(kind: str, found: Mapping[str, Any]) -> None:
    if kind == "ERROR":
        raise CommandError(str(found.get("message")), reason=str(found.get("reason")))
