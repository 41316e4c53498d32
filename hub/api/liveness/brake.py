"""The brake: when many clusters become silent at once, the hub has more likely lost them than they have failed.

The brake postpones the consequences of Unknown (taints, stale marks, removal), never Unknown itself. It ends when so many
clusters are back that less than half of its thresholds is reached, or when an operator releases it. After a release only
clusters that become silent later count.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec


@dataclass(frozen=True, slots=True)
class BrakeLimits:
    """Thresholds: more than `share` of the living fleet and `at_least` clusters within `window`. A share of 0: no brake."""

    share: float = 0.2
    at_least: int = 10
    window: timedelta = timedelta(minutes=10)

    def are_passed(self, silent: int, fleet: int) -> bool:
        return self.share > 0 and silent >= self.at_least and silent > self.share * fleet

    def are_left(self, silent: int, fleet: int) -> bool:
        """Whether less than half of either threshold is reached; this hysteresis prevents frequent switching."""
        return 2 * silent < self.at_least or 2 * silent <= self.share * fleet


class Brake(msgspec.Struct, frozen=True):
    """Stored state of the brake. `since` None: it does not hold."""

    since: datetime | None = None
    silent: int = 0
    """Number of silent clusters when the brake began to hold, of `fleet` living ones."""
    fleet: int = 0
    released: datetime | None = None
    """Time of an operator's last release."""

    @property
    def holds(self) -> bool:
        return self.since is not None

    def counts_from(self, limits: BrakeLimits, now: datetime) -> datetime:
        """Clusters that became silent after this instant, and still are, count."""
        start = (self.since or now) - limits.window
        return max(start, self.released) if self.released else start

    def judged(self, limits: BrakeLimits, silent: int, fleet: int, now: datetime) -> "Brake":
        """The new state, with `silent` clusters of a living `fleet`."""
        if not self.holds and limits.are_passed(silent, fleet):
            return Brake(since=now, silent=silent, fleet=fleet, released=self.released)
        if self.holds and (not limits.share or limits.are_left(silent, fleet)):
            return Brake(released=self.released)
        return self

    def let_go(self, now: datetime) -> "Brake":
        """The state after an operator's release."""
        return Brake(released=now)


def encoded(brake: Brake) -> str:
    return msgspec.json.encode(brake).decode()


def decoded(text: str | None) -> Brake:
    return msgspec.json.decode(text, type=Brake) if text else Brake()
