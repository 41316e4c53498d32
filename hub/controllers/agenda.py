"""Names that wait for a moment: what several controllers look at together, each name at its own time."""

from collections.abc import Iterable, Sequence
from datetime import timedelta
from heapq import heappop, heappush

from machinery.clock import Clock
from machinery.identity import ClusterName


class Agenda:
    """News is due at once; what was looked at waits for the time that it was given."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._news: dict[ClusterName, None] = {}
        self._due: dict[ClusterName, float] = {}
        self._order: list[tuple[float, ClusterName]] = []

    def __len__(self) -> int:
        """All that wait."""
        return len(self._news.keys() | self._due.keys())

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
        if delay is None:
            self._due.pop(name, None)
            return
        due = self._due[name] = self._clock.monotonic() + delay.total_seconds()
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
