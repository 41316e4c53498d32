"""The brake: when a large part of the fleet falls silent at once, it is likelier that the hub has lost it than that it is gone.

It holds what follows from Unknown (taints, stale marking, removal), never Unknown itself. It lets go by itself when so many
have come back that half of what puts it on is not reached any more, and when an operator says so: then it counts only who falls
silent later.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec


@dataclass(frozen=True, slots=True)
class BrakeLimits:
    """More than `share` of the living fleet, and `at_least` clusters, within `window`. A share of 0: no brake."""

    share: float = 0.2
    at_least: int = 10
    window: timedelta = timedelta(minutes=10)

    def are_passed(self, silent: int, fleet: int) -> bool:
        return self.share > 0 and silent >= self.at_least and silent > self.share * fleet

    def are_left(self, silent: int, fleet: int) -> bool:
        """Half of them are left behind: not so near the edge that it would be put on again at once."""
        return 2 * silent < self.at_least or 2 * silent <= self.share * fleet


class Brake(msgspec.Struct, frozen=True):
    """What is kept of it. `since` None: it does not hold."""

    since: datetime | None = None
    silent: int = 0
    """Clusters that had fallen silent when it was put on, of `fleet` that lived before."""
    fleet: int = 0
    released: datetime | None = None
    """When an operator released it last."""

    @property
    def holds(self) -> bool:
        return self.since is not None

    def counts_from(self, limits: BrakeLimits, now: datetime) -> datetime:
        """Who fell silent after this instant, and is so still, counts."""
        start = (self.since or now) - limits.window
        return max(start, self.released) if self.released else start

    def judged(self, limits: BrakeLimits, silent: int, fleet: int, now: datetime) -> "Brake":
        """What it is now, with `silent` of a living `fleet`."""
        if not self.holds and limits.are_passed(silent, fleet):
            return Brake(since=now, silent=silent, fleet=fleet, released=self.released)
        if self.holds and (not limits.share or limits.are_left(silent, fleet)):
            return Brake(released=self.released)
        return self

    def let_go(self, now: datetime) -> "Brake":
        """By an operator."""
        return Brake(released=now)


def encoded(brake: Brake) -> str:
    return msgspec.json.encode(brake).decode()


def decoded(text: str | None) -> Brake:
    return msgspec.json.decode(text, type=Brake) if text else Brake()
