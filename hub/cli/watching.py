"""`hubctl get … -w`: a table that goes on, across broken connections and restarts of the hub."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

from hub.cli.connection import TABLE, Door
from hub.cli.errors import CliError, RefusedError

RETRY_SECONDS = 0.5
TOO_OLD = frozenset(("Expired", "Gone"))


def tables(door: Door, path: str, query: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """The list as a Table, then a Table per change, without end. Raises CliError when the first list fails."""
    first = door.get(path, query, accept=TABLE)
    yield first
    revision = first["metadata"]["resourceVersion"]
    while True:
        try:
            for event in door.watch(path, {**query, "resourceVersion": revision, "allowWatchBookmarks": "true"}, accept=TABLE):
                table = event["object"]
                _check(event)
                revision = _revision(table) or revision
                if event["type"] != "BOOKMARK":
                    yield table
        except RefusedError as error:
            if error.reason not in TOO_OLD:
                raise
            again = door.get(path, query, accept=TABLE)
            revision = again["metadata"]["resourceVersion"]
            yield again
        except CliError:
            time.sleep(RETRY_SECONDS)


def _check(event: Mapping[str, Any]) -> None:
    if event["type"] == "ERROR":
        status = event["object"]
        raise RefusedError(str(status.get("message")), str(status.get("reason")))


def _revision(table: Mapping[str, Any]) -> str | None:
    for row in table.get("rows") or ():
        revision = (row.get("object") or {}).get("metadata", {}).get("resourceVersion")
        if revision:
            return str(revision)
    found = (table.get("metadata") or {}).get("resourceVersion")
    return str(found) if found else None
