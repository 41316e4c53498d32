"""Names that wait for a moment: what several controllers look at together, each name at its own time."""

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
"""So many names in a row that meet one of these errors alone: the store is away, and not the names are bad."""
SELDOM = timedelta(seconds=30)
"""So long a name that fails again and again waits at most."""
SOON = timedelta(seconds=1)
"""And so long one that met a store that was away: that may be back, and what is due is to be seen on time."""
FEW = 64
"""Times that were replaced and need not be forgotten."""


class DelayingQueue:
    """News is due at once; what was looked at waits for the time that it was given."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._news: dict[ClusterName, None] = {}
        self._due: dict[ClusterName, float] = {}
        self._order: list[tuple[float, ClusterName]] = []
        self._failures: dict[ClusterName, Backoff] = {}

    def __len__(self) -> int:
        """All that wait."""
        return len(self._news.keys() | self._due.keys())

    @property
    def remembered(self) -> int:
        """Times that are kept; a small multiple of what waits, however often they were replaced."""
        return len(self._order)

    def news(self, names: Iterable[ClusterName]) -> None:
        self._news |= dict.fromkeys(names)

    def take(self, at_most: int, *, ahead: timedelta = timedelta()) -> Sequence[ClusterName]:
        """What is news, then what is due by now; if anything is, also what will be due within `ahead`."""
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
        """Until `delay` is over, instead of any earlier time; None: for news."""
        self._failures.pop(name, None)
        if delay is None:
            self._due.pop(name, None)
        else:
            self._add(name, delay)

    def put_off(self, failed: Mapping[ClusterName, Exception]) -> None:
        """Those failed: each waits longer from time to time, until it is given another time."""
        for name, error in failed.items():
            backoff = self._failures.setdefault(name, Backoff(timedelta(milliseconds=20), SELDOM))
            self._add(name, min(backoff.next(), SOON if isinstance(error, AWAY) else SELDOM))

    def _add(self, name: ClusterName, delay: timedelta) -> None:
        due = self._due[name] = self._clock.monotonic() + delay.total_seconds()
        if len(self._order) > 2 * len(self._due) + FEW:
            self._order = sorted((due, name) for name, due in self._due.items())  # which is a heap
        else:
            heappush(self._order, (due, name))

    def pause(self) -> timedelta | None:
        """Until something is due; None: nothing waits for a time."""
        if self._news:
            return timedelta()
        self._tidy()
        if not self._order:
            return None
        return timedelta(seconds=max(0.0, self._order[0][0] - self._clock.monotonic()))

    def _tidy(self) -> None:
        """Forgets times that were replaced, as far as they come first."""
        while self._order and self._due.get(self._order[0][1]) != self._order[0][0]:
            heappop(self._order)


class BatchRunner(Generic[R]):
    """What became of many names, portion by portion: one that fails costs no other its turn."""

    def __init__(self) -> None:
        self.done: dict[ClusterName, R] = {}
        self.failed: dict[ClusterName, Exception] = {}
        self.untried: list[ClusterName] = []
        self._away = 0

    async def make(
        self, names: Sequence[ClusterName], run: Callable[[Sequence[ClusterName]], Awaitable[Mapping[ClusterName, R]]]
    ) -> None:
        """One transaction for all; if that fails one for each. Once the store is found to be away, names are left untried."""
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
        """Gives each name its next time. Where the store is away, that is when it is back: the names are not to blame."""
        for name, found in self.done.items():
            agenda.wait(name, look_again(found))
        if self.untried:
            agenda.news((*self.untried, *self.failed))
        else:
            agenda.put_off(self.failed)

    def ended(self, pause: timedelta | None) -> timedelta | None:
        """`pause`, if none failed; else PartlyFailedError, or, where the store is away, the last error itself."""
        if not self.failed:
            return pause
        name, error = next(reversed(self.failed.items()))
        if self.untried:
            raise error
        told = f"{len(self.failed)} of {len(self.failed) + len(self.done)} failed, the last of them {name}: {error}"
        failed: dict[str, Exception] = dict(self.failed.items())
        raise PartlyFailedError(told, look_again=pause, failed=failed, done=self.done.keys()) from error
