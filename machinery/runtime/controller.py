"""Work queue and controller: keys are queued, and `reconcile(key)` makes one step. Used by hub and agent.

Semantics of client-go's work queue: one worker at a time handles a key; a key added during its own step is handled again
afterwards; a failing key is retried with growing delay and does not delay other keys.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping
from datetime import timedelta
from random import Random
from typing import Generic, Protocol, TypeVar

import structlog

from machinery.errors import MusterError
from machinery.observability.metrics import Distribution
from machinery.runtime.backoff import Backoff

K = TypeVar("K", bound=Hashable)
KeyT_contra = TypeVar("KeyT_contra", bound=Hashable, contravariant=True)

FIRST, LONGEST = timedelta(milliseconds=20), timedelta(seconds=30)
"""Bounds of the retry delay of a failing key."""

log = structlog.get_logger(__name__)


class PartlyFailedError(Exception):
    """Some parts of a key failed and the reconciler schedules their retry itself; the other parts are done.

    `look_again`: as the return value of `reconcile`. `failed`: the failed parts with their errors. `done`: the parts that
    succeeded. `__cause__` is the last failure.
    """

    def __init__(
        self,
        message: str,
        *,
        look_again: timedelta | None,
        failed: Mapping[str, Exception] | None = None,
        done: Collection[str] = (),
    ) -> None:
        super().__init__(message)
        self.look_again = look_again
        self.failed = failed or {}
        self.done = done


class Reconciler(Protocol[KeyT_contra]):
    """Brings one condition or one object into its desired state."""

    async def reconcile(self, key: KeyT_contra) -> timedelta | None:
        """Make one step for `key`; it must be safe to repeat. Return the delay until the next step, None for no next step.

        After an error the controller retries with growing delay; a PartlyFailedError states the delay itself.
        """


class WorkQueue(Generic[K]):
    """Queue of unique keys, some of them delayed."""

    def __init__(self) -> None:
        self._ready: dict[K, None] = {}
        self._active: set[K] = set()
        self._again: set[K] = set()
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        return len(self._ready)

    def add(self, key: K) -> None:
        """Make `key` due now and cancel its delay."""
        if timer := self._timers.pop(key, None):
            timer.cancel()
        if key in self._active:
            self._again.add(key)
        else:
            self._ready[key] = None
            self._wake.set()

    def add_after(self, key: K, delay: timedelta) -> None:
        """Make `key` due after `delay`, unless it is due earlier."""
        loop = asyncio.get_running_loop()
        due = loop.time() + max(delay.total_seconds(), 0)
        pending = self._timers.get(key)
        if key in self._ready or key in self._again or (pending and pending.when() <= due):
            return
        if pending:
            pending.cancel()
        self._timers[key] = loop.call_at(due, self.add, key)

    async def get(self) -> K:
        """Wait for the next key. The caller must call `done` after its work on the key."""
        while not self._ready:
            self._wake.clear()
            await self._wake.wait()
        key = next(iter(self._ready))
        del self._ready[key]
        self._active.add(key)
        return key

    def done(self, key: K) -> None:
        self._active.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    def close(self) -> None:
        """Drop all delayed keys."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()


class Controller(Generic[K]):
    """Runs a reconciler on a queue until it is cancelled. A cancellation waits for the step in progress.

    `grace`: a step that runs longer than this after the cancellation is cancelled too, for steps that wait on others.
    `longest`: upper bound of the retry delay of a failing key.
    """

    def __init__(
        self,
        name: str,
        reconciler: Reconciler[K],
        *,
        workers: int = 1,
        observe: Callable[[str, str], None] | None = None,
        grace: timedelta | None = None,
        longest: timedelta = LONGEST,
    ) -> None:
        self.name = name
        self.queue: WorkQueue[K] = WorkQueue()
        self._reconciler = reconciler
        self._workers = workers
        self._grace = grace
        self._longest = longest
        self._failures: dict[K, Backoff] = {}
        self._troubles: dict[K, Mapping[str, str]] = {}
        """Logged failures by key and part. A failure is logged as a warning again only when it changes."""
        self._observe = observe or (lambda _name, _outcome: None)
        self._random = Random()  # noqa: S311 - spreads retries
        self.outcomes: Counter[str] = Counter(success=0, error=0)
        """Number of steps by outcome."""
        self.seconds = Distribution()
        """Durations of steps."""

    def enqueue(self, key: K) -> None:
        self.queue.add(key)

    async def run(self) -> None:
        """Work until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(self._workers):
                    group.create_task(self._work(), name=f"{self.name}-{number}")
        finally:
            self.queue.close()

    async def _work(self) -> None:
        while True:
            key = await self.queue.get()
            step = asyncio.create_task(self._step(key), name=f"{self.name} step")
            await _finish(step, self._grace)

    async def _step(self, key: K) -> None:
        began = time.monotonic()
        try:
            again = await self._reconciler.reconcile(key)
        except PartlyFailedError as error:
            self._tell_of_parts(key, error)
            self._wait(key, error.look_again)
        except Exception as error:  # noqa: BLE001 - one failing key must not end the controller
            self._retry(key, error)
        else:
            self._tally("success")
            self._troubles.pop(key, None)
            self._wait(key, again)
        finally:
            self.seconds.observe(time.monotonic() - began)
            self.queue.done(key)

    def _wait(self, key: K, delay: timedelta | None) -> None:
        self._failures.pop(key, None)
        if delay is not None:
            self.queue.add_after(key, delay)

    def _tell_of_parts(self, key: K, error: PartlyFailedError) -> None:
        self._tally("error")
        self._tell(key, "reconcile failed in part", error, error.__cause__ or error)

    def _tally(self, outcome: str) -> None:
        self.outcomes[outcome] += 1
        self._observe(self.name, outcome)

    def _retry(self, key: K, error: Exception) -> None:
        backoff = self._failures.setdefault(key, Backoff(FIRST, self._longest, random=self._random))
        delay = backoff.next()
        self._tally("error")
        how = {"attempt": backoff.failures, "retry_in_seconds": round(delay.total_seconds(), 3)}
        self._tell(key, "reconcile failed", error, error, **how)
        self.queue.add_after(key, delay)

    def _tell(self, key: K, what: str, error: Exception, because: BaseException, **how: float) -> None:
        """Log a warning if the reason is new for this key, otherwise at debug level."""
        before, now = self._troubles.get(key, {}), _troubles_of(error, because)
        gone = error.done if isinstance(error, PartlyFailedError) else before.keys()
        self._troubles[key] = {part: told for part, told in before.items() if part and part not in gone} | now
        if now.items() <= before.items():
            log.debug("reconcile failed again", controller=self.name, key=str(key), error=str(error), **how)
            return
        stack = None if isinstance(because, MusterError) else error
        log.warning(what, controller=self.name, key=str(key), error=str(error), **how, exc_info=stack)


def _troubles_of(error: Exception, because: BaseException) -> dict[str, str]:
    """Failure of each part; the part "" is the whole key."""
    failed = error.failed if isinstance(error, PartlyFailedError) else {}
    return {part: _named(each) for part, each in failed.items()} or {"": _named(because)}


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


async def _finish(step: asyncio.Task[None], grace: timedelta | None) -> None:
    """Wait for `step` even when the caller is cancelled meanwhile, then raise the cancellation."""
    try:
        await asyncio.shield(step)
    except asyncio.CancelledError:
        await asyncio.wait([step], timeout=None if grace is None else grace.total_seconds())
        if not step.done():
            step.cancel()
            await asyncio.wait([step])
        raise
