"""hubctl wait: waits until objects meet a condition, or until a timeout."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from math import ceil
from typing import Any

import click

from hubctl.arguments.batch import run_each
from hubctl.arguments.completion import target_words
from hubctl.arguments.selection import SELECTION, select_objects
from hubctl.arguments.targets import ObjectReference
from hubctl.client.connection import connected
from hubctl.client.http import WATCH_TIMEOUT, ApiClient
from hubctl.errors import TIMED_OUT, CommandError, ConnectionLostError, UsageError
from hubctl.options import NAMESPACE, with_options
from hubctl.output.formats import OutputFormat, output_option
from machinery.durations import parse_duration
from machinery.runtime.backoff import Backoff

POLL_SECONDS = 1.0
"""Poll interval in seconds for kinds that cannot be watched."""
CONDITION_PREFIXES = ("", "managedclustercondition", "managedcluster")
"""Prefixes that the user may omit from the type of a cluster's condition."""
RETRIABLE = frozenset(("Expired", "Gone", "ServiceUnavailable", "TooManyRequests", "Timeout", "InternalError"))
"""Reasons of errors after which a retry may succeed."""

TimeLeft = Callable[[], float]
"""Returns the seconds left; below 0: the time is over."""


@dataclass(frozen=True, slots=True)
class WaitCondition:
    words: str
    """The text that follows a name in messages, such as `is deleted`."""
    met: Callable[[Mapping[str, Any] | None], bool]
    """Returns whether an object (None: missing) meets the condition. Raises CommandError if it never can."""


DELETED = WaitCondition("is deleted", lambda document: document is None)
CREATED = WaitCondition("exists", lambda document: document is not None)


def condition_is(kind: str, status: str) -> WaitCondition:
    """Return a WaitCondition: the condition of type `kind` has this status. A status of an older generation does not count."""
    wanted = kind.lower()
    accepted = "hubacceptedmanagedcluster" if wanted in ("accepted", "hubaccepted") else wanted
    types = (accepted, *(f"{prefix}{wanted}" for prefix in CONDITION_PREFIXES))

    def met(document: Mapping[str, Any] | None) -> bool:
        found = _existing(document)
        generation = found["metadata"].get("generation") or 0
        for condition in (found.get("status") or {}).get("conditions") or ():
            if str(condition.get("type")).lower() in types:
                seen = condition.get("observedGeneration") or generation
                return seen >= generation and str(condition.get("status")).lower() == status.lower()
        return False

    return WaitCondition(f"has condition {kind}={status}", met)


def path_is(text: str) -> WaitCondition:
    """Return a WaitCondition: the path in `text` has any value (`PATH`), or this value (`PATH=VALUE`). Raises CommandError."""
    from hubctl.jsonpath import find, parse_action, parse_path, text_of  # noqa: PLC0415 - only with a path

    braced = text.startswith("{")
    end = text.rfind("}=") + 1 or len(text) if braced else (text + "=").index("=")
    shown, value = text[:end], text[end + 1 :].strip("'\"") if end < len(text) else None
    path = parse_action(shown.removeprefix("{").removesuffix("}")) if braced else parse_path(shown)

    def met(document: Mapping[str, Any] | None) -> bool:
        found = find(path, _existing(document))
        if len(found) > 1:
            raise UsageError(f"{shown} finds {len(found)} values; wait needs a single one")
        return bool(found) and (value is None or text_of(found[0]).strip() == value.strip())

    return WaitCondition(f"has {shown}" + ("" if value is None else f"={value}"), met)


def _existing(document: Mapping[str, Any] | None) -> Mapping[str, Any]:
    if document is None:
        raise CommandError("it does not exist", reason="NotFound")
    return document


@click.command()
@click.argument("words", nargs=-1, metavar="KIND NAME...", shell_complete=target_words)
@click.option(
    "--for", "wanted", required=True, metavar="WHAT", help="condition=TYPE[=STATUS], delete, create, jsonpath='{PATH}'[=VALUE]."
)
@click.option(
    "--timeout",
    default="30s",
    show_default=True,
    metavar="DURATION",
    help="Maximum time for all objects together; 0: check once.",
)
@with_options(*SELECTION, NAMESPACE)
@output_option(note="Print the objects at the end in this format:")
@connected
def wait(client: ApiClient, words: tuple[str, ...], wanted: str, timeout: str, output: OutputFormat, **chosen: Any) -> None:
    """Wait until clusters or other objects reach a condition. Exit code 4: the timeout has expired.

    Conditions of clusters have short names: Available, Joined, Accepted, ClockSynced.

    \b
    Examples:
      hubctl wait cluster edge1 --for=condition=Available --timeout 5m
      hubctl wait clusters -l region=eu --for=condition=Available=Unknown
      hubctl wait clusters --where 'accepted && !available' --for=condition=Available --timeout 10m
      hubctl get clusters -o name -l wave=1 | hubctl wait -f - --for=condition=Available --timeout 10m
      hubctl wait cluster edge1 --for=delete
      hubctl wait cluster edge1 --for=create --timeout 1h
      hubctl wait cluster edge1 --for=jsonpath='{.status.version.kubernetes}'=v1.31.2
      hubctl wait addon work-manager -n edge1 --for=condition=Available
    """
    goal, left = read_wanted(wanted), time_left(timeout)

    def show(ended: tuple[ObjectReference, Mapping[str, Any] | None]) -> None:
        one, document = ended
        if document is not None and output.given:
            from hubctl.output.printers import PrintOptions, printer_of  # noqa: PLC0415 - only with -o

            printer_of(PrintOptions(one.resource, output)).first(dict(document))
        else:
            click.echo(f"{one} {goal.words}")

    selection = select_objects(client, words, chosen)
    run_each(selection.objects, lambda one: (one, wait_for(client, one, goal, left)), show, counts=not selection.is_named)


def wait_for(client: ApiClient, one: ObjectReference, wanted: WaitCondition, left: TimeLeft) -> Mapping[str, Any] | None:
    """Wait until the object meets `wanted`. Return the object; None: deleted. Raises CommandError; a timeout has its code."""
    for document in _watched(client, one, left) if one.resource.watchable else _polled(client, one, left):
        if wanted.met(document):
            return document
    raise CommandError(f"{one}: timed out before it {wanted.words}", code=TIMED_OUT)


def read_wanted(text: str) -> WaitCondition:
    """Parse the value of --for. Raises CommandError."""
    word, _, rest = text.partition("=")
    if word.lower() == "condition" and rest:
        kind, _, status = rest.partition("=")
        return condition_is(kind, status or "True")
    if text.lower() == "delete":
        return DELETED
    if text.lower() == "create":
        return CREATED
    if word.lower() == "jsonpath" and rest:
        return path_is(rest)
    raise UsageError(f"--for {text}: write condition=TYPE, condition=TYPE=STATUS, delete, create or jsonpath='{{PATH}}'=VALUE")


def time_left(text: str) -> TimeLeft:
    """Start a timer for the duration `text`. Return a function for the time left. Raises CommandError for an invalid `text`."""
    try:
        duration = timedelta() if text == "0" else parse_duration(text)
    except ValueError as error:
        raise UsageError(f"--timeout: {error}") from None
    ends = time.monotonic() + duration.total_seconds()
    return lambda: ends - time.monotonic()


def _polled(client: ApiClient, one: ObjectReference, left: TimeLeft) -> Iterator[Mapping[str, Any] | None]:
    while True:
        yield client.find(one.path)
        if left() <= 0:
            return
        time.sleep(min(POLL_SECONDS, left()))


def _watched(client: ApiClient, one: ObjectReference, left: TimeLeft) -> Iterator[Mapping[str, Any] | None]:
    """Yield the object now, after each change and after each watch, until the time is over. Retry after a lost connection."""
    path, query = one.resource.within(one.namespace), {"fieldSelector": f"metadata.name={one.name}"}
    pauses, seen = Backoff(timedelta(milliseconds=200), timedelta(seconds=2)), False
    while True:
        answer = None
        try:
            answer = client.get(path, **query)
            seen = True
            yield next(iter(answer.get("items") or ()), None)
            if left() <= 0:
                return
            watch = {**query, "watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": str(ceil(left()))}
            watch["resourceVersion"] = str(answer["metadata"]["resourceVersion"])
            for change in client.stream(path, watch, silence=min(left() + 1, WATCH_TIMEOUT)):
                pauses.reset()
                if change.get("type") == "ERROR":
                    break
                if change["type"] != "BOOKMARK":
                    yield None if change["type"] == "DELETED" else change["object"]
        except CommandError as error:
            if not seen or not (isinstance(error, ConnectionLostError) or error.reason in RETRIABLE):
                raise
            time.sleep(max(0.0, min(pauses.next().total_seconds(), left())))
        if answer is None and left() <= 0:
            return
