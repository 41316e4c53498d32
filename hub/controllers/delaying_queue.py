"""A delaying queue of cluster names, and a batch runner for controllers that handle many names together."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from heapq import heappop, heappush
from typing import Generic, TypeVar

from machinery.errors import DeadlineError, UnavailableError
from machinery.identity import ClusterName
from machinery.runtime.backoff import Backoff
from machinery.runtime.clock import Clock
from machinery.runtime.controller import PartlyFailedError

R = TypeVar("R")
AWAY = (UnavailableError, DeadlineError)
GIVEN_UP = 3
"""Consecutive names that fail alone with one of these errors until the store counts as unavailable."""
SELDOM = timedelta(seconds=30)
"""Upper bound of the retry delay of a name that fails repeatedly."""
SOON = timedelta(seconds=1)
"""Upper bound of the retry delay while the store is unavailable."""
FEW = 64
"""Replaced times that may remain in the heap."""


class DelayingQueue:
    """A queue in which new names are due at once and checked names at their given time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._news: dict[ClusterName, None] = {}
        self._due: dict[ClusterName, float] = {}
        self._order: list[tuple[float, ClusterName]] = []
        self._failures: dict[ClusterName, Backoff] = {}

    def __len__(self) -> int:
        """The number of waiting names."""
        return len(self._news.keys() | self._due.keys())

    @property
    def remembered(self) -> int:
        """The size of the heap; at most a small multiple of the waiting names."""
        return len(self._order)

    def news(self, names: Iterable[ClusterName]) -> None:
        self._news |= dict.fromkeys(names)

    def take(self, at_most: int, *, ahead: timedelta = timedelta()) -> Sequence[ClusterName]:
        """Take new names, then due ones. If any is due, also take those due within `ahead`."""
        chosen = dict.fromkeys(tuple(self._news)[:at_most])
        for name in chosen:
            del self._news[name]
        self._tidy()
        now = self._clock.monotonic()
        due_by = now + ahead.total_seconds() if self._order and self._order[0][0] <= now else now
        while self._order and self._order[0][0] <= due_by and len(chosen) < at_most:
            due, name = heappop(self._order)
            if self._due.get(name) == due:
                del self._due[name]
                chosen[name] = None
        return tuple(chosen)

    def wait(self, name: ClusterName, delay: timedelta | None) -> None:
        """Requeue the name after `delay`, replacing an earlier time; None: wait for a change."""
        self._failures.pop(name, None)
        if delay is None:
            self._due.pop(name, None)
        else:
            self._add(name, delay)

    def put_off(self, failed: Mapping[ClusterName, Exception]) -> None:
        """Requeue failed names with a backoff, which `wait` resets."""
        for name, error in failed.items():
            backoff = self._failures.setdefault(name, Backoff(timedelta(milliseconds=20), SELDOM))
            self._add(name, min(backoff.next(), SOON if isinstance(error, AWAY) else SELDOM))

    def _add(self, name: ClusterName, delay: timedelta) -> None:
        due = self._due[name] = self._clock.monotonic() + delay.total_seconds()
        if len(self._order) > 2 * len(self._due) + FEW:
            self._order = sorted((due, name) for name, due in self._due.items())  # a sorted list is a heap
        else:
            heappush(self._order, (due, name))

    def pause(self) -> timedelta | None:
        """Time until a name is due; None: no name has a time."""
        if self._news:
            return timedelta()
        self._tidy()
        if not self._order:
            return None
        return timedelta(seconds=max(0.0, self._order[0][0] - self._clock.monotonic()))

    def _tidy(self) -> None:
        """Remove replaced times from the front of the heap."""
        while self._order and self._due.get(self._order[0][1]) != self._order[0][0]:
            heappop(self._order)


class BatchRunner(Generic[R]):
    """Results of many names, processed in portions, in which a failing name does not block others."""

    def __init__(self) -> None:
        self.done: dict[ClusterName, R] = {}
        self.failed: dict[ClusterName, Exception] = {}
        self.untried: list[ClusterName] = []
        self._away = 0

    async def make(
        self, names: Sequence[ClusterName], run: Callable[[Sequence[ClusterName]], Awaitable[Mapping[ClusterName, R]]]
    ) -> None:
        """Run all names in one transaction; if it fails, run each alone. Stop once the store is unavailable."""
        if self._away >= GIVEN_UP:
            self.untried += names
            return
        try:
            self.done |= await run(names)
        except Exception as error:  # noqa: BLE001 - told to the controller, which logs
            if len(names) == 1:
                self.failed[names[0]] = error
                self._away = self._away + 1 if isinstance(error, AWAY) else 0
                return
        else:
            self._away = 0
            return
        for name in names:
            await self.make((name,), run)

    def settle(self, agenda: DelayingQueue, look_again: Callable[[R], timedelta | None]) -> None:
        """Give each name its next time. If the store is unavailable, untried and failed names are due at the next step."""
        for name, found in self.done.items():
            agenda.wait(name, look_again(found))
        if self.untried:
            agenda.news((*self.untried, *self.failed))
        else:
            agenda.put_off(self.failed)

    def ended(self, pause: timedelta | None) -> timedelta | None:
        """Return `pause` if no name failed. Raises PartlyFailedError, or the last error if the store is unavailable."""
        if not self.failed:
            return pause
        name, error = next(reversed(self.failed.items()))
        if self.untried:
            raise error
        told = f"{len(self.failed)} of {len(self.failed) + len(self.done)} failed, the last of them {name}: {error}"
        failed: dict[str, Exception] = dict(self.failed.items())
        raise PartlyFailedError(told, look_again=pause, failed=failed, done=self.done.keys()) from error
