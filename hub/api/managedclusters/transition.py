"""Transitions: recorded changes of a cluster's availability, and the damping of clusters that flap."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from hub.api.managedclusters.detach import PARTED
from machinery.identity import ClusterName
from machinery.meta import conditions
from machinery.meta.conditions import Condition

DELETED = "Deleted"
"""Reason of the last transition of a deleted cluster; it has no availability afterwards."""


@dataclass(frozen=True, slots=True)
class Transition:
    """One change of ManagedClusterConditionAvailable. `before`, `status`: "" if the condition is absent."""

    cluster: ClusterName
    uid: str
    """Uid of the ManagedCluster; a later cluster of the same name has another one."""
    at: datetime
    before: str
    status: str
    reason: str
    actor: str

    @property
    def is_fall(self) -> bool:
        """Whether the cluster ceased to be available without an announced departure. Falls are counted for damping."""
        fell = self.before == conditions.TRUE and self.status in (conditions.FALSE, conditions.UNKNOWN)
        return fell and self.reason not in PARTED


@dataclass(frozen=True, slots=True)
class TransitionSubject:
    """The cluster of a transition."""

    cluster: ClusterName
    uid: str


def transition(
    subject: TransitionSubject, before: Condition | None, after: Condition | None, at: datetime, actor: str
) -> Transition | None:
    """The transition that a write causes; None if status and reason are unchanged."""
    old = (before.status, before.reason) if before else ("", "")
    new = (after.status, after.reason) if after else ("", DELETED)
    if old == new or (before is None and after is None):
        return None
    return Transition(subject.cluster, subject.uid, at, old[0], *new, actor)


@dataclass(frozen=True, slots=True)
class Damping:
    """A cluster flaps after `threshold` falls within `window`. Taints and alarms then wait for `hold`."""

    threshold: int = 3
    window: timedelta = timedelta(hours=1)
    hold: timedelta = timedelta(minutes=5)

    def flaps_until(self, falls: Sequence[datetime]) -> datetime | None:
        """End of the flapping; None if the cluster does not flap. A threshold of 0 disables damping.

        `falls`: falls within the window, oldest first.
        """
        return falls[-self.threshold] + self.window if 0 < self.threshold <= len(falls) else None
