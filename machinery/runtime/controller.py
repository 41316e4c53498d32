"""Controller: takes keys from a work queue and reconciles them. Hub and agent use it.

A failing key is retried with a growing delay, and does not delay other keys. A BatchReconciler gets up to `at_most` keys, which
it handles in one transaction. If the transaction fails, each key is tried alone.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from datetime import timedelta
from random import Random
from typing import Generic, Protocol, TypeVar

import structlog

from machinery.errors import DeadlineError, MusterError, UnavailableError
from machinery.observability.metrics import Distribution
from machinery.runtime.backoff import Backoff
from machinery.runtime.clock import Clock
from machinery.runtime.work_queue import WorkQueue

K = TypeVar("K", bound=Hashable)
KeyT_contra = TypeVar("KeyT_contra", bound=Hashable, contravariant=True)

FIRST_BACKOFF, MAX_BACKOFF = timedelta(milliseconds=20), timedelta(seconds=30)
"""Bounds of the retry delay of a failing key."""
LONGEST_PAUSE = timedelta(seconds=1)
"""Upper bound of a controller's pause while the database is unavailable to its BatchReconciler."""
STORE_ERRORS = (UnavailableError, DeadlineError)
GIVE_UP_AFTER = 3
"""If this many keys of a batch in a row fail with one of STORE_ERRORS when tried alone, the database counts as unavailable."""

log = structlog.get_logger(__name__)


class Reconciler(Protocol[KeyT_contra]):
    """Brings one object, or one condition in its status, to the desired state."""

    async def reconcile(self, key: KeyT_contra) -> timedelta | None:
        """Make one step for `key`. Return the delay until the next step; None: no next step.

        The step must be safe to repeat. After an error the controller retries it with a growing delay.
        """


class Batch(Generic[K]):
    """Results of a BatchReconciler for many keys. A failing key does not prevent the results of other keys."""

    def __init__(self) -> None:
        self.done: dict[K, timedelta | None] = {}
        """Delay until the next step of each key; None: no next step. `work` may also return delays of other keys."""
        self.failed: dict[K, Exception] = {}
        self.tried: set[K] = set()
        self.untried: list[K] = []
        """Keys that were not tried, because the database is unavailable."""
        self._store_errors = 0

    async def run(
        self,
        keys: Sequence[K],
        work: Callable[[Sequence[K]], Awaitable[Mapping[K, timedelta | None]]],
        *,
        at_once: int | None = None,
    ) -> None:
        """Run `work`, which returns delays, for portions of `at_once` keys (None: all keys together).

        If `work` fails for a portion, run it for each key of the portion alone.
        """
        size = at_once or len(keys) or 1
        for start in range(0, len(keys), size):
            portion = keys[start : start + size]
            if self._store_errors >= GIVE_UP_AFTER:
                self.untried += portion
                continue
            try:
                self.done |= await work(portion)
            except Exception as error:  # noqa: BLE001 - the controller logs it
                if len(portion) > 1:
                    await self.run(portion, work, at_once=1)
                else:
                    self.done.pop(portion[0], None)
                    self.failed[portion[0]] = error
                    self.tried.add(portion[0])
                    self._store_errors = self._store_errors + 1 if isinstance(error, STORE_ERRORS) else 0
            else:
                self._store_errors = 0
                self.tried.update(portion)

    @property
    def is_store_unavailable(self) -> bool:
        only_store_errors = all(isinstance(error, STORE_ERRORS) for error in self.failed.values())
        return bool(self.untried) or (bool(self.failed) and not self.done and only_store_errors)


class BatchReconciler(Generic[K]):
    """Reconciles many keys in one transaction, because a commit costs more than a step."""

    at_most = 50
    ahead = timedelta()
    """Keys that are due within this time are handled together with those that are due now."""

    async def reconcile_all(self, keys: Sequence[K]) -> Batch[K]:
        """Make one step for each key. The step must be safe to repeat. Put errors into the Batch."""
        raise NotImplementedError


class Controller(Generic[K]):
    """Runs a reconciler on a queue until it is cancelled. A cancellation waits for the step in progress.

    `grace`: time after the cancellation in which the step in progress must end, or it is cancelled too; None: no limit.
    `observe`: called after each step with the controller's name and `success` or `error`. `clock`: as in WorkQueue.
    """

    def __init__(
        self,
        name: str,
        reconciler: Reconciler[K] | BatchReconciler[K],
        *,
        workers: int = 1,
        observe: Callable[[str, str], None] | None = None,
        grace: timedelta | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.name = name
        self.queue: WorkQueue[K] = WorkQueue(clock)
        self._reconciler = reconciler
        self._workers = workers
        self._grace = grace
        self._failures: dict[K, Backoff] = {}
        self._logged: dict[K, str] = {}
        """Logged failures by key. A failure is logged as a warning again only if it changes."""
        self._store_failure = ""
        self._pauses = Backoff(FIRST_BACKOFF, LONGEST_PAUSE)
        self._observe = observe or (lambda _name, _outcome: None)
        self._random = Random()  # noqa: S311 - spreads retries
        self.outcomes: Counter[str] = Counter(success=0, error=0)
        self.seconds = Distribution()

    def enqueue(self, key: K) -> None:
        self.queue.add(key)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(self._workers):
                group.create_task(self._work(), name=f"{self.name}-{number}")

    async def _work(self) -> None:
        while True:
            await self.queue.wait()
            pause = await _finish(asyncio.create_task(self.step(), name=f"{self.name} step"), self._grace)
            if pause is not None:
                await asyncio.sleep(pause.total_seconds())

    async def step(self) -> timedelta | None:
        """Take due keys and reconcile them. Return how long to pause, because the database is unavailable; None: no pause."""
        many = self._reconciler if isinstance(self._reconciler, BatchReconciler) else None
        keys = self.queue.take(many.at_most, ahead=many.ahead) if many else self.queue.take()
        if not keys:
            return None
        began = time.monotonic()
        batch = Batch[K]()
        try:
            if isinstance(self._reconciler, BatchReconciler):
                batch = await self._reconciler.reconcile_all(keys)
            else:
                batch.done[keys[0]] = await self._reconciler.reconcile(keys[0])
        except Exception as error:  # noqa: BLE001 - one failing key must not end the controller
            batch.failed = dict.fromkeys(keys, error)
        finally:
            self.seconds.observe(time.monotonic() - began)
            self.queue.done(keys)
        outcome = "error" if batch.failed else "success"
        self.outcomes[outcome] += 1
        self._observe(self.name, outcome)
        for key in {*keys, *batch.done}.difference(batch.failed, batch.untried):
            self._failures.pop(key, None)
            self._logged.pop(key, None)
        for key, delay in batch.done.items():
            if delay is not None:
                self.queue.add_after(key, delay)
        if many and batch.is_store_unavailable:
            return self._pause(batch)
        self._store_failure = ""
        self._pauses.reset()
        if batch.failed:
            self._retry(batch)
        return None

    def _pause(self, batch: Batch[K]) -> timedelta:
        """Requeue all keys of the batch, and log the failure of the database once. Return how long to pause."""
        error = next(reversed(batch.failed.values()))
        for key in (*batch.untried, *batch.failed):
            self.queue.add(key)
        level = log.debug if self._store_failure == _text(error) else log.warning
        self._store_failure = _text(error)
        level("reconcile failed", controller=self.name, keys=len(batch.failed) + len(batch.untried), error=str(error))
        return self._pauses.next()

    def _retry(self, batch: Batch[K]) -> None:
        """Requeue failed keys with growing delays. Log a warning if one of the failures is new."""
        for key in batch.failed:
            backoff = self._failures.setdefault(key, Backoff(FIRST_BACKOFF, MAX_BACKOFF, random=self._random))
            self.queue.add_after(key, backoff.next())
        key, error = next(reversed(batch.failed.items()))
        failures = {each: _text(cause) for each, cause in batch.failed.items()}
        level = log.debug if failures.items() <= self._logged.items() else log.warning
        self._logged |= failures
        if len(batch.tried) > 1:
            text = f"{len(batch.failed)} of {len(batch.tried)} failed, the last of them {key}: {error}"
            level("reconcile failed in part", controller=self.name, key=str(key), error=text, exc_info=_stack(error))
        else:
            text, attempt = str(error), self._failures[key].failures
            level("reconcile failed", controller=self.name, key=str(key), error=text, attempt=attempt, exc_info=_stack(error))


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _stack(error: Exception) -> Exception | None:
    """Return the error, so that the log contains a stack trace; None if it is an expected error."""
    return None if isinstance(error, MusterError) else error


async def _finish(step: "asyncio.Task[timedelta | None]", grace: timedelta | None) -> timedelta | None:
    """Wait for `step`, even if the caller is cancelled meanwhile; then raise the cancellation."""
    try:
        return await asyncio.shield(step)
    except asyncio.CancelledError:
        await asyncio.wait([step], timeout=None if grace is None else grace.total_seconds())
        if not step.done():
            step.cancel()
            await asyncio.wait([step])
        raise
