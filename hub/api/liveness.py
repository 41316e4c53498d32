"""Heartbeats, the grace and expiry of leases, coverage, and the brake.

Sources of grace and expiry: OCM's lease controller (grace = 5 x leaseDurationSeconds, expired when now >= renewal + grace); ADR
0015.

Coverage: the time in which replicas could store all beats. Only covered time counts as silence of agents. Each replica writes
marks into the database while it can store beats. A mark is fresh for a limited time. Time is covered while the fresh marks of
all replicas together leave no gap, regardless of which replicas lead, start or stop.

The brake: when many clusters become silent at the same time, a fault of the hub is more likely than a failure of them all.

The brake postpones the consequences of Unknown (taints, alarms, the marking as stale, removal), never Unknown itself. The brake
ends when few clusters are silent (`BrakeLimits.are_left`), or when an operator releases it. After a release, the brake counts
only clusters that become silent later.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec

from machinery.identity import ClusterName


@dataclass(frozen=True, slots=True)
class Beat:
    """A beat that waits for a flush. `age`: time since its arrival, at the start of the flush (replica's monotonic clock)."""

    cluster: ClusterName
    age: timedelta
    available: bool | None
    """The agent's verdict on its API server; None: no verdict."""
    epoch: int = 0
    """Epoch of the session; 0: the agent has no epochs."""


@dataclass(frozen=True, slots=True)
class LastBeat:
    """Stored state of a cluster's heartbeats."""

    cluster: ClusterName
    at: datetime | None
    available: bool | None
    session: str | None
    """Id of the open session; None if there is none."""
    agent_version: str | None = None
    epoch: int = 0
    """The highest known epoch of this cluster, from any message."""
    owner: str | None = None
    """The other hub that owns the agent, as the agent reported; "": no hub yet; None: no such report since the last beat."""

    def outdates(self, epoch: int) -> bool:
        """Return whether `epoch` is lower than the highest known epoch. Agents without epochs (0) are never outdated."""
        return 0 < epoch < self.epoch


GRACE_FACTOR = 5
DEFAULT_LEASE_DURATION = timedelta(seconds=60)
LEASE_NAME = "managed-cluster-lease"


@dataclass(frozen=True, slots=True)
class Expiry:
    """Result of a check of one cluster's silence."""

    expired: bool
    """Availability is Unknown, by this check or an earlier one."""
    look_again: timedelta | None
    """Delay of the next check. None: at the next beat or change. Zero: the grace has ended and Unknown is not set yet."""

    @property
    def is_due(self) -> bool:
        return self.look_again == timedelta()


def grace(lease_duration: timedelta) -> timedelta:
    return GRACE_FACTOR * lease_duration


def expires_at(last_beat: datetime | None, lease_duration: timedelta, *, window: timedelta, since: datetime) -> datetime:
    """Return when a cluster becomes silent: a grace and a flush `window` after the later of its last beat and `since`."""
    return max(last_beat or since, since) + grace(lease_duration) + window


FRESH = timedelta(seconds=5)
"""How long a mark is fresh. After that time beats may have been lost."""
JUMP = timedelta(seconds=2)
"""The database's clock has jumped if it differs by more than this from its expected value."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A mark, in database time: `replica` could store beats at `at`. From `since` on, some replica always could store beats."""

    replica: str
    since: datetime
    at: datetime

    def is_fresh(self, now: datetime) -> bool:
        """Whether the mark is recent and not in the future."""
        return -JUMP <= now - self.at <= FRESH

    def is_ahead(self, now: datetime) -> bool:
        """Whether the database's clock moved back since the mark was written."""
        return self.at - now > JUMP


def covered_since(marks: Iterable[Checkpoint], now: datetime) -> datetime | None:
    """Return the start of the current coverage; None: no fresh mark exists, so there is no coverage."""
    return min((mark.since for mark in marks if mark.is_fresh(now)), default=None)


def next_mark(replica: str, marks: Iterable[Checkpoint], now: datetime, *, began: bool) -> Checkpoint:
    """Return the next mark of `replica`, which can store beats now. `began`: it has just started, so its old mark is ignored.

    A replica without a fresh mark continues the coverage of the other replicas. Without fresh marks, coverage begins now.
    """
    known = tuple(marks)
    own = next((mark for mark in known if mark.replica == replica), None)
    if own is not None and not began and own.is_fresh(now):
        return Checkpoint(replica, own.since, max(own.at, now))
    others = covered_since((mark for mark in known if mark.replica != replica), now)
    return Checkpoint(replica, others or now, now)


@dataclass(frozen=True, slots=True)
class BrakeLimits:
    """Limits of the brake. It becomes active if at least `at_least` clusters became silent in `window`.

    These clusters must also be more than `share` of the clusters that were alive. A share of 0 turns the brake off.
    """

    share: float = 0.2
    at_least: int = 10
    window: timedelta = timedelta(minutes=10)

    def are_passed(self, silent: int, fleet: int) -> bool:
        return self.share > 0 and silent >= self.at_least and silent > self.share * fleet

    def are_left(self, silent: int, fleet: int) -> bool:
        """Return whether an active brake ends: `silent` is below half of `at_least`, or at most half of the share."""
        return 2 * silent < self.at_least or 2 * silent <= self.share * fleet


class Brake(msgspec.Struct, frozen=True):
    """Stored state of the brake. `since`: start of the time in which it is active; None: it is not active."""

    since: datetime | None = None
    silent: int = 0
    """Number of silent clusters when the brake became active. `fleet`: number of clusters that had been alive."""
    fleet: int = 0
    released: datetime | None = None
    """Time at which an operator last released the brake."""

    @property
    def holds(self) -> bool:
        return self.since is not None

    def counts_from(self, limits: BrakeLimits, now: datetime) -> datetime:
        """Return the instant after which a cluster must have become silent in order to count for the brake."""
        start = (self.since or now) - limits.window
        return max(start, self.released) if self.released and self.released <= now else start

    def next_state(self, limits: BrakeLimits, silent: int, fleet: int, now: datetime) -> "Brake":
        """Return the new state if `silent` clusters are silent out of `fleet` clusters that were alive."""
        if not self.holds and limits.are_passed(silent, fleet):
            return Brake(since=now, silent=silent, fleet=fleet, released=self.released)
        if self.holds and (not limits.share or limits.are_left(silent, fleet)):
            return Brake(released=self.released)
        return self

    def after_release(self, now: datetime) -> "Brake":
        """Return the state after an operator's release."""
        return Brake(released=now)


def encode_brake(brake: Brake) -> str:
    return msgspec.json.encode(brake).decode()


def decode_brake(text: str | None) -> Brake:
    return msgspec.json.decode(text, type=Brake) if text else Brake()
