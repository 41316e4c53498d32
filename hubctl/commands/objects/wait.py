"""hubctl wait: waits until objects meet a condition, or the time is over."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from math import ceil
from typing import Any, Protocol

import click

from hubctl.arguments.completion import target_words
from hubctl.arguments.targets import One, TargetScope, each, objects
from hubctl.client.connection import connected
from hubctl.client.http import ApiClient
from hubctl.errors import MISUSED, TIMED_OUT, CommandError, ConnectionLostError
from hubctl.options import EVERYTHING, FIELDS, NAMESPACE, SELECTOR, with_options
from hubctl.output.formats import OutputFormat, output_option
from machinery.durations import parse_duration
from machinery.runtime.backoff import Backoff

POLL_SECONDS = 1.0
"""Poll interval in seconds for kinds that cannot be watched."""
SHORT = ("", "managedclustercondition", "managedcluster")
"""Prefixes that may be omitted from the type of a cluster's condition."""
RETRIED = frozenset(("Expired", "Gone", "ServiceUnavailable", "TooManyRequests", "Timeout", "InternalError"))
"""Reasons of errors after which a retry may succeed."""

TimeLeft = Callable[[], float]
"""Returns the seconds left; below 0 when the time is over."""


class WaitCondition(Protocol):
    """The condition to wait for."""

    @property
    def words(self) -> str:
        """The text after a name in messages, as in `is gone`."""
        ...

    def met(self, document: Mapping[str, Any] | None) -> bool:
        """Whether it is met; `document` None: the object does not exist. Raises CommandError if it can never be met."""
        ...


@dataclass(frozen=True, slots=True)
class Existence:
    """The object exists, or it does not."""

    exists: bool

    @property
    def words(self) -> str:
        return "is there" if self.exists else "is gone"

    def met(self, document: Mapping[str, Any] | None) -> bool:
        return (document is not None) is self.exists


GONE = Existence(exists=False)


@dataclass(frozen=True, slots=True)
class ConditionIs:
    """A condition has a status; conditions observed at an older generation do not count."""

    type: str
    status: str = "True"

    @property
    def words(self) -> str:
        return f"has condition {self.type}={self.status}"

    def met(self, document: Mapping[str, Any] | None) -> bool:
        found = _there(document)
        generation = found["metadata"].get("generation") or 0
        for condition in (found.get("status") or {}).get("conditions") or ():
            if self._is_meant(str(condition.get("type"))):
                seen = condition.get("observedGeneration") or generation
                return seen >= generation and str(condition.get("status")).lower() == self.status.lower()
        return False

    def _is_meant(self, known: str) -> bool:
        asked = self.type.lower()
        accepted = "hubacceptedmanagedcluster" if asked in ("accepted", "hubaccepted") else asked
        return known.lower() in (accepted, *(f"{prefix}{asked}" for prefix in SHORT))


@dataclass(frozen=True, slots=True)
class PathIs:
    """A path has this value, or with None any value."""

    path: Any
    value: str | None
    text: str

    @property
    def words(self) -> str:
        return f"has {self.text}" + ("" if self.value is None else f"={self.value}")

    def met(self, document: Mapping[str, Any] | None) -> bool:
        from hubctl.jsonpath import text_of  # noqa: PLC0415 - only with a path
        from hubctl.jsonpath.evaluation import find  # noqa: PLC0415 - likewise

        found = find(self.path, _there(document))
        if len(found) > 1:
            raise CommandError(f"{self.text} finds {len(found)} values: a wait is for one", code=MISUSED)
        return bool(found) and (self.value is None or text_of(found[0]).strip() == self.value.strip())


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="KIND NAME...", shell_complete=target_words)
@click.option(
    "--for",
    "wanted",
    required=True,
    metavar="WHAT",
    help="condition=TYPE[=STATUS], delete, create, jsonpath='{PATH}'[=VALUE].",
)
@click.option(
    "--timeout",
    default="30s",
    show_default=True,
    metavar="DURATION",
    help="Maximum time for all objects together; 0: check once.",
)
@with_options(SELECTOR, FIELDS, EVERYTHING, NAMESPACE)
@output_option(note="Print the objects at the end in this format:")
@connected
def wait(client: ApiClient, words: tuple[str, ...], wanted: str, timeout: str, output: OutputFormat, **chosen: Any) -> None:
    """Wait until clusters or other objects reach a condition. Exit code 4: the timeout has expired.

    Conditions of clusters have short names: Available, Joined, Accepted, ClockSynced.

    \b
    Examples:
      hubctl wait cluster edge1 --for=condition=Available --timeout 5m
      hubctl wait clusters -l region=eu --for=condition=Available=Unknown
      hubctl wait cluster edge1 --for=delete
      hubctl wait cluster edge1 --for=create --timeout 1h
      hubctl wait cluster edge1 --for=jsonpath='{.status.version.kubernetes}'=v1.31.2
      hubctl wait addon work-manager -n edge1 --for=condition=Available
    """
    goal, left = read_wanted(wanted), time_left(timeout)
    place = TargetScope(chosen["namespace"], chosen["selector"], chosen["field_selector"], everything=chosen["everything"])
    each(objects(client, words, place), lambda one: wait_for(client, one, goal, left, output))


def wait_for(client: ApiClient, one: One, wanted: WaitCondition, left: TimeLeft, form: OutputFormat) -> None:
    """Wait, and print the result. Raises CommandError, with a separate exit code when the time is over."""
    looks = _watched(client, one, left) if one.resource.watchable else _polled(client, one, left)
    for document in looks:
        if wanted.met(document):
            _show(one, wanted, document, form)
            return
    raise CommandError(f'{one.resource.noun} "{one.name}": the time is over before it {wanted.words}', code=TIMED_OUT)


def read_wanted(text: str) -> WaitCondition:
    """Parse --for. Raises CommandError."""
    word, _, rest = text.partition("=")
    if word.lower() == "condition" and rest:
        kind, _, status = rest.partition("=")
        return ConditionIs(kind, status or "True")
    if text.lower() == "delete":
        return GONE
    if text.lower() == "create":
        return Existence(exists=True)
    if word.lower() == "jsonpath" and rest:
        return _path_wanted(rest)
    raise CommandError(
        f"--for {text}: write condition=TYPE, condition=TYPE=STATUS, delete, create or jsonpath='{{PATH}}'=VALUE", code=MISUSED
    )


def time_left(text: str) -> TimeLeft:
    """Start the timer. Raises CommandError for an invalid duration."""
    try:
        duration = timedelta() if text == "0" else parse_duration(text)
    except ValueError as error:
        raise CommandError(f"--timeout: {error}", code=MISUSED) from None
    ends = time.monotonic() + duration.total_seconds()
    return lambda: ends - time.monotonic()


def _path_wanted(text: str) -> PathIs:
    from hubctl.jsonpath import parse_path  # noqa: PLC0415 - only with a path
    from hubctl.jsonpath.parsing import parse_action  # noqa: PLC0415 - likewise

    braced = text.startswith("{")
    end = text.rfind("}=") + 1 or len(text) if braced else (text + "=").index("=")
    shown, value = text[:end], text[end + 1 :].strip("'\"") if end < len(text) else None
    path = parse_action(shown.removeprefix("{").removesuffix("}")) if braced else parse_path(shown)
    return PathIs(path, value, shown)


def _there(document: Mapping[str, Any] | None) -> Mapping[str, Any]:
    if document is None:
        raise CommandError("it is not there", reason="NotFound")
    return document


def _show(one: One, wanted: WaitCondition, document: Mapping[str, Any] | None, form: OutputFormat) -> None:
    if document is not None and form.given:
        from hubctl.output.printers import TableLayout, printer_of  # noqa: PLC0415 - only with -o

        printer_of(TableLayout(one.resource, form)).first(dict(document))
        return
    click.echo(f'{one.resource.noun} "{one.name}" {wanted.words}')


def _polled(client: ApiClient, one: One, left: TimeLeft) -> Iterator[Mapping[str, Any] | None]:
    while True:
        try:
            yield client.get(one.path)
        except CommandError as error:
            if error.reason != "NotFound":
                raise
            yield None
        if left() <= 0:
            return
        time.sleep(min(POLL_SECONDS, left()))


def _watched(client: ApiClient, one: One, left: TimeLeft) -> Iterator[Mapping[str, Any] | None]:
    """Yield the object now and after every change until the time is over. Reconnects when the hub is unreachable."""
    path, query = one.resource.within(one.namespace), {"fieldSelector": f"metadata.name={one.name}"}
    pauses, seen = Backoff(timedelta(milliseconds=200), timedelta(seconds=2)), False
    while True:
        try:
            answer = client.get(path, **query)
            seen = True
            yield next(iter(answer.get("items") or ()), None)
            if left() <= 0:
                return
            asked = {**query, "watch": "1", "resourceVersion": str(answer["metadata"]["resourceVersion"])}
            for change in client.stream(path, {**asked, "timeoutSeconds": str(ceil(left()))}, silence=left() + 1):
                pauses.reset()
                if change.get("type") == "ERROR":
                    break
                yield None if change["type"] == "DELETED" else change["object"]
        except CommandError as error:
            if not seen or not (isinstance(error, ConnectionLostError) or error.reason in RETRIED):
                raise
            time.sleep(max(0.0, min(pauses.next().total_seconds(), left())))
        if left() <= 0:
            return
