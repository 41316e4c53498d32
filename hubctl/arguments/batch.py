"""Acts on many objects: asks for confirmation, uses several connections, shows the progress, and reports failures."""

import sys
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

import click

from hubctl.arguments.selection import Selection
from hubctl.arguments.targets import ObjectReference
from hubctl.client.http import ApiClient
from hubctl.errors import FAILED, UNREACHABLE, CommandError, ConnectionLostError, UsageError

T = TypeVar("T")
R = TypeVar("R")
WORKERS = 8
CONFIRM_ABOVE = 10
"""Above this number of objects, hubctl asks for confirmation on a terminal, and shows the progress there."""
ATTEMPTS = 5
"""Attempts of a change that conflicts with other changes."""
CLEAR_LINE = "\r\x1b[K"


def run_batch(
    selection: Selection,
    act: Callable[[ObjectReference], R],
    chosen: Mapping[str, Any],
    order: str,
    show: Callable[[R], object] | None = None,
    *,
    is_destructive: bool = False,
) -> None:
    """Call `confirm`, then `run_each` with `act` for the selected objects. `chosen`: option values. Raises CommandError."""
    confirm(selection, chosen, order, is_destructive=is_destructive)
    run_each(selection.objects, act, show, counts=not selection.is_named or len(selection.objects) > CONFIRM_ABOVE)


def confirm(selection: Selection, chosen: Mapping[str, Any], order: str, *, is_destructive: bool = False) -> None:
    """Ask for confirmation before `order` (such as "delete") on many objects, unless --yes or --dry-run is set.

    Confirmation is needed above CONFIRM_ABOVE objects. If `is_destructive`, confirmation is needed for two or more objects
    that the user has not named. Raises CommandError if the user declines. Without a terminal there is no question: raises
    UsageError if `is_destructive` requires the confirmation, else returns.
    """
    count = len(selection.objects)
    is_required = is_destructive and not selection.is_named and count > 1
    if chosen.get("yes") or chosen.get("dry_run") or not (is_required or count > CONFIRM_ABOVE):
        return
    if sys.stdin.isatty() and sys.stderr.isatty():
        click.echo(f"This will {order} {selection}", err=True)
        if not click.confirm("Continue?", err=True):
            raise CommandError("nothing was changed")
    elif is_required:
        raise UsageError(f"this would {order} {selection}. Add --yes, or --dry-run=server to try it")


def run_each(
    items: Sequence[T],
    act: Callable[[T], R],
    show: Callable[[R], object] | None = None,
    *,
    named: Callable[[T], str] = str,
    workers: int = WORKERS,
    counts: bool = False,
) -> None:
    """Call `act` for each item, even after failures. Call `show` with the results in order; default: print the text.

    Raises CommandError at the end if items failed. If all failures have the same exit code, the error has this exit code.
    Raises CommandError early if the hub stays unreachable. `named`: returns the name of an item for messages, such as
    `cluster "edge1"`. `counts`: print the number of items if all succeeded. `act` runs in several threads.
    """
    is_many = len(items) > CONFIRM_ABOVE and sys.stderr.isatty()
    failed: list[CommandError] = []
    lost = 0
    with (
        click.progressbar(length=len(items), show_pos=True, file=sys.stderr, hidden=not is_many) as bar,
        closing(_outcomes(items, act, workers, lambda: bar.update(1))) as outcomes,
    ):
        for item, outcome in zip(items, outcomes, strict=True):
            if is_many:
                click.echo(CLEAR_LINE, nl=False, err=True)
            if not isinstance(outcome, CommandError):
                lost = 0
                (show or _print)(outcome)
                continue
            failed.append(_with_name(named(item), outcome))
            if len(items) > 1:
                click.echo(f"error: {failed[-1].sentence}", err=True)
            lost = lost + 1 if isinstance(outcome, ConnectionLostError) else 0
            if lost > WORKERS:
                raise CommandError(f"the hub cannot be reached: given up after {named(item)}", code=UNREACHABLE)
    if len(items) > 1 and failed:
        codes = {error.code for error in failed}
        code = codes.pop() if len(codes) == 1 else FAILED
        raise CommandError(f"{len(failed)} of {len(items)} failed, {len(items) - len(failed)} done", code=code)
    if failed:
        raise failed[0]
    if counts:
        click.echo(f"{len(items)} of {len(items)} done", err=True)


def _print(result: object) -> None:
    if result:
        click.echo(result)


def _with_name(name: str, error: CommandError) -> CommandError:
    """Return the error with the name of its object, unless the message already contains it."""
    if name[max(name.find('"'), 0) :] not in error.sentence:
        error.sentence = f"{name}: {error.sentence}"
    return error


def _outcomes(
    items: Sequence[T], act: Callable[[T], R], workers: int, done: Callable[[], object]
) -> Generator[R | CommandError]:
    """Yield the result or the CommandError of each item, in order. Call `done` after each. Raises other errors."""
    if min(workers, len(items)) == 1:
        for item in items:
            outcome = _attempt(act, item)
            done()
            yield outcome
        return
    waiting, ended = deque(enumerate(items)), SimpleQueue[tuple[int, Any, BaseException | None]]()
    for _ in range(min(workers, len(items))):
        # Daemon threads, so that an interrupted command does not wait for them.
        Thread(target=_work, args=(act, waiting, ended), daemon=True).start()
    early: dict[int, Any] = {}
    try:
        for place in range(len(items)):
            while place not in early:
                at, early[at], error = ended.get()
                if error is not None:
                    raise error
                done()
            yield early.pop(place)
    finally:
        waiting.clear()


def _work(act: Callable[[T], R], waiting: deque[tuple[int, T]], ended: SimpleQueue[Any]) -> None:
    """Call `act` for each waiting item. Put the item's place and outcome into `ended`."""
    with suppress(IndexError):
        while True:
            place, item = waiting.popleft()
            try:
                ended.put((place, _attempt(act, item), None))
            except BaseException as error:  # noqa: BLE001 - raised again in the thread of the command
                ended.put((place, None, error))


def _attempt(act: Callable[[T], R], item: T) -> R | CommandError:
    try:
        return act(item)
    except CommandError as error:
        return error


def retried(change: Callable[[], T]) -> T:
    """Call `change`, which reads and writes an object. After a conflict, call it again. Raises CommandError."""
    for _ in range(ATTEMPTS - 1):
        try:
            return change()
        except CommandError as error:
            if error.reason != "Conflict":
                raise
    return change()


def patch_object(
    client: ApiClient, one: ObjectReference, change: Callable[[Mapping[str, Any]], dict[str, Any] | None]
) -> tuple[bool, Mapping[str, Any]]:
    """Apply the merge patch that `change` returns for the object; None: no patch. Raises CommandError.

    Return whether the object was changed, and the object afterwards. A listed object is read again only after a conflict,
    because the patch fails if the object has changed since it was listed.
    """
    listed = [one.listed]

    def attempt() -> tuple[bool, Mapping[str, Any]]:
        document = (listed.pop() if listed else None) or client.get(one.path)
        patch = change(document)
        if patch is None:
            return False, document
        metadata = {**(patch.get("metadata") or {}), "resourceVersion": document["metadata"]["resourceVersion"]}
        return True, client.patch(one.path, {**patch, "metadata": metadata})

    return retried(attempt)
