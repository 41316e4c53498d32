"""Changes of a cluster's availability, as they are kept: when, from what to what, why, and by whom."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from hub.api.managedclusters.detach import PARTED
from machinery.identity import ClusterName
from machinery.meta import conditions
from machinery.meta.conditions import Condition

DELETED = "Deleted"
"""The reason of the last transition of a cluster that was deleted: it has no availability any more."""


@dataclass(frozen=True, slots=True)
class Transition:
    """One step of ManagedClusterConditionAvailable. `before`, `status`: "" where there is no such condition."""

    cluster: ClusterName
    uid: str
    """Of the ManagedCluster: a later one of the same name has another."""
    at: datetime
    before: str
    status: str
    reason: str
    actor: str

    @property
    def is_fall(self) -> bool:
        """It was Available, and is no more, without having said that it would go: what flaps are counted by."""
        fell = self.before == conditions.TRUE and self.status in (conditions.FALSE, conditions.UNKNOWN)
        return fell and self.reason not in PARTED


@dataclass(frozen=True, slots=True)
class TransitionSubject:
    """Whose availability it is."""

    cluster: ClusterName
    uid: str


def transition(
    subject: TransitionSubject, before: Condition | None, after: Condition | None, at: datetime, actor: str
) -> Transition | None:
    """What is to be kept of a write; None: neither status nor reason has changed."""
    old = (before.status, before.reason) if before else ("", "")
    new = (after.status, after.reason) if after else ("", DELETED)
    if old == new or (before is None and after is None):
        return None
    return Transition(subject.cluster, subject.uid, at, old[0], *new, actor)


@dataclass(frozen=True, slots=True)
class Damping:
    """When a cluster flaps: it fell `threshold` times or more within `window`. Then what follows of a change waits `hold`."""

    threshold: int = 3
    window: timedelta = timedelta(hours=1)
    hold: timedelta = timedelta(minutes=5)

    def flaps_until(self, falls: Sequence[datetime]) -> datetime | None:
        """`falls`: of the window, oldest first. None: it does not flap. A threshold of 0 damps nobody."""
        return falls[-self.threshold] + self.window if 0 < self.threshold <= len(falls) else None
