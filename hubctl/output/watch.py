"""A watch that reconnects and resumes by resourceVersion. If the resourceVersion is too old, it lists again."""

import time
from collections.abc import Mapping
from datetime import timedelta
from threading import Thread
from typing import Any

import click

from hubctl.client.http import TABLE, ApiClient
from hubctl.client.resources import SESSIONS, join_pages, pages
from hubctl.errors import CommandError, ConnectionLostError
from hubctl.output.printers import Printer
from machinery.runtime.backoff import Backoff
from machinery.runtime.closed_pipe import end_with_reader

TOO_OLD = frozenset(("Expired", "Gone"))
RETRIABLE = frozenset(("ServiceUnavailable", "TooManyRequests", "Timeout", "InternalError"))

NO_SESSIONS = frozenset(("Forbidden", "NotFound", "MethodNotAllowed"))
"""Errors if the hub does not serve sessions, or if the user may not read them."""
LIST_FROM = 20
"""If at least this many rows have changed, they are read with one list request."""


def follow(client: ApiClient, printer: Printer, path: str, query: Mapping[str, str], place: str) -> None:
    """Print the changes of a list after the resourceVersion `place`, until interrupted.

    Raises CommandError for a permanent failure, and BrokenPipeError if the reader of the output has ended.
    """
    end_with_reader()
    pauses = Backoff(timedelta(milliseconds=200), timedelta(seconds=5))
    while True:
        try:
            if not place:
                answer = join_pages(pages(client, path, query, accept=printer.accept))
                place = str(answer["metadata"]["resourceVersion"])
                click.echo("hubctl: the watch cannot resume after so long a gap; all objects are shown again", err=True)
                printer.first(answer)
            watch = {**query, "watch": "1", "allowWatchBookmarks": "true", "resourceVersion": place}
            for event in client.stream(path, watch, accept=printer.accept):
                kind, found = str(event.get("type")), event.get("object") or {}
                _check(kind, found)
                pauses.reset()
                place = str(found["metadata"].get("resourceVersion") or place)
                if kind != "BOOKMARK":
                    printer.event(kind, found)
        except CommandError as error:
            if error.reason in TOO_OLD and place:
                place = ""
                continue
            if not isinstance(error, ConnectionLostError) and error.reason not in RETRIABLE | TOO_OLD:
                raise
            if not pauses.failures:
                click.echo(f"hubctl: {error.sentence}; trying again", err=True)
            time.sleep(pauses.next().total_seconds())


def _check(kind: str, found: Mapping[str, Any]) -> None:
    """Raises CommandError if the event is an error."""
    if kind == "ERROR":
        raise CommandError(str(found.get("message")), reason=str(found.get("reason")))


class SessionFollower:
    """Prints the row of a cluster again when its session has opened or ended. `query` selects the clusters."""

    def __init__(self, client: ApiClient, printer: Printer, path: str, query: Mapping[str, str]) -> None:
        """Read the open sessions. Raises CommandError. Create it before the rows are listed, so that no change is missed."""
        self._client = client
        self._printer = printer
        self._path = path
        self._query = query
        try:
            self._open: dict[str, Any] | None = self._listed()[0]
        except CommandError as error:
            if error.reason not in NO_SESSIONS:
                raise
            self._open = None

    def start(self) -> None:
        """Print rows from a thread until the process ends. Do nothing if the user may not read sessions."""
        if self._open is not None:
            Thread(target=self._follow, args=(self._open,), name="sessions", daemon=True).start()

    def _listed(self) -> tuple[dict[str, Any], str]:
        """Return the shown facts of each open session by cluster, and the resourceVersion."""
        answer = join_pages(pages(self._client, SESSIONS.path, {}))
        sessions = {each["metadata"]["name"]: _shown_of(each) for each in answer.get("items") or ()}
        return sessions, str(answer["metadata"]["resourceVersion"])

    def _follow(self, shown: dict[str, Any]) -> None:
        """Follow the sessions. `shown`: the facts that the printed rows show, by cluster."""
        pauses = Backoff(timedelta(milliseconds=200), timedelta(seconds=5))
        while True:
            try:
                found, place = self._listed()
                self._show({name for name in shown.keys() | found.keys() if shown.get(name) != found.get(name)})
                shown = found
                watch = {"watch": "1", "allowWatchBookmarks": "true", "resourceVersion": place}
                for event in self._client.stream(SESSIONS.path, watch):
                    kind, session = str(event.get("type")), event.get("object") or {}
                    _check(kind, session)
                    pauses.reset()
                    if kind != "BOOKMARK":
                        name, now = session["metadata"]["name"], None if kind == "DELETED" else _shown_of(session)
                        if now != shown.get(name):  # otherwise the agent only changed to another session
                            self._show({name})
                        shown[name] = now
            except CommandError as error:
                if error.reason in NO_SESSIONS:
                    return
                time.sleep(pauses.next().total_seconds())

    def _show(self, names: set[str]) -> None:
        for name in sorted(names) if len(names) < LIST_FROM else ("",):
            chosen = ",".join(filter(None, (self._query.get("fieldSelector"), name and f"metadata.name={name}")))
            answer = join_pages(pages(self._client, self._path, {**self._query, "fieldSelector": chosen}, accept=TABLE))
            rows = [row for row in answer.get("rows") or () if row["object"]["metadata"]["name"] in names]
            self._printer.event("MODIFIED", {**answer, "rows": rows})


def _shown_of(session: Mapping[str, Any]) -> str:
    return str(session["status"].get("agentVersion"))
