"""Replicas of the hub, their agent sessions, the log level that an operator orders for all of them, and leader terms."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import msgspec

from hub.api.events import EventRecord
from machinery.durations import format_duration
from machinery.errors import Cause, InvalidError
from machinery.identity import AgentId, ClusterName
from machinery.meta.timestamps import format_time

BEAT = timedelta(seconds=2)
"""How often a replica updates its row."""
LOST_AFTER = timedelta(seconds=10)
"""A replica that has not updated its row for this long counts as lost; its sessions have ended."""
FORGOTTEN_AFTER = timedelta(minutes=10)
"""A replica that has not updated its row for this long is no longer listed."""


@dataclass(frozen=True, slots=True)
class Load:
    """A replica's load at its last update."""

    watches: int
    """Open watches at the HTTPS door."""
    cpu: float
    """Processor seconds per second since the previous update."""
    memory: int
    """Resident memory in bytes."""
    ahead: timedelta
    """How far the replica's clock is ahead of the database's clock."""


@dataclass(frozen=True, slots=True)
class Replica:
    """Database row of one process of this hub."""

    name: str
    home: str
    """Its data directory. Only one process can lock the directory, so a new process that has locked it may take the name."""
    instance: str
    """Identifies one start of the process."""
    version: str
    grpc: str
    https: str
    """Listen addresses of the two doors: `grpc` and `https`."""
    started: datetime
    seen: datetime
    sessions: int = 0
    ready: bool = False
    draining: bool = False
    """The process is shutting down."""
    drained: bool = False
    """An operator has drained this replica. The drain lasts until `hubctl uncordon` or the end of the process."""
    load: Load = Load(0, 0.0, 0, timedelta())

    def is_lost(self, now: datetime) -> bool:
        """Whether the last update is too old, or too far in the future because it was written while a clock was ahead."""
        return abs(now - self.seen) > LOST_AFTER

    def state(self, now: datetime) -> str:
        """Return the displayed state: Starting, Ready, Draining, Drained or Lost."""
        if self.is_lost(now):
            return "Lost"
        if self.draining:
            return "Draining"
        if self.drained:
            return "Draining" if self.sessions else "Drained"
        return "Ready" if self.ready else "Starting"

    def takes_sessions(self, now: datetime) -> bool:
        return self.ready and not (self.draining or self.drained or self.is_lost(now))

    def is_forgotten(self, now: datetime) -> bool:
        return abs(now - self.seen) > FORGOTTEN_AFTER


@dataclass(frozen=True, slots=True)
class AgentSession:
    """The newest session of one agent on any replica. `at`: its start in database time."""

    cluster: ClusterName
    agent: AgentId
    session: str
    replica: str
    at: datetime

    def is_newer_than(self, session: str, at: datetime) -> bool:
        """Return whether this session replaces `session`, begun at `at`. For equal times, the greater id wins everywhere."""
        return self.session != session and (self.at, self.session) > (at, session)


def could_report(since: datetime | None, now: datetime) -> bool:
    """Whether every replica had time to update its row. Until then no replica counts as lost.

    `since`: start of the time in which the database accepted writes without a gap; None: it accepts none now.
    """
    return since is not None and now - since > LOST_AFTER


def alive(replicas: Iterable[Replica], now: datetime) -> frozenset[str]:
    """Return the names of the replicas that are not lost."""
    return frozenset(replica.name for replica in replicas if not replica.is_lost(now))


LEVELS = ("debug", "info", "warning", "error")
LONGEST_LOG_LEVEL = timedelta(days=7)
USUAL_LOG_LEVEL = timedelta(minutes=15)
"""Duration of a LogLevelOrder if the operator gives none, so that `debug` does not stay forever."""


class LogLevelOrder(msgspec.Struct, frozen=True):
    """A log level that the operator `by` has ordered for all replicas."""

    level: str
    until: datetime
    by: str

    def is_due(self, now: datetime) -> bool:
        """Whether the order is still in force."""
        return now < self.until


def order_log_level(level: str, lasts: timedelta, by: str, now: datetime) -> LogLevelOrder:
    """Return the order of the operator `by` for `level` during `lasts`. Raises InvalidError for a wrong level or duration."""
    if level not in LEVELS:
        message = f'there is no log level "{level[:20]}": use {", ".join(LEVELS)}'
        raise InvalidError(message, causes=(Cause("FieldValueNotSupported", message, "level"),))
    if not timedelta() < lasts <= LONGEST_LOG_LEVEL:
        message = f"the duration must be positive and at most {format_duration(LONGEST_LOG_LEVEL)}"
        raise InvalidError(message, causes=(Cause("FieldValueInvalid", message, "for"),))
    return LogLevelOrder(level, now + lasts, by)


def encode_log_level(order: LogLevelOrder | None) -> str:
    return msgspec.json.encode(order).decode()


def decode_log_level(text: str | None) -> LogLevelOrder | None:
    return msgspec.json.decode(text, type=LogLevelOrder | None) if text else None


UNREPORTED_TERMS = "unreported-terms"
"""Name of the database entry with the leader terms that have no Event yet. The next leader writes the Events."""
MOST_TERMS = 100
"""Number of terms that are reported individually; earlier terms are only counted."""


@dataclass(frozen=True, slots=True)
class TermStart:
    """A leader term: its number, its holder, and its start by the database's clock."""

    term: int
    holder: str
    at: datetime


@dataclass(frozen=True, slots=True)
class UnreportedTerms:
    """Leader terms without an Event, oldest first. `left_out`: number of earlier terms that were dropped."""

    terms: tuple[TermStart, ...] = ()
    left_out: int = 0

    def followed_by(self, began: TermStart) -> "UnreportedTerms":
        terms = (*self.terms, began)
        return UnreportedTerms(terms[-MOST_TERMS:], self.left_out + max(0, len(terms) - MOST_TERMS))

    def news(self, term: int, ours: EventRecord) -> Iterator[EventRecord]:
        """Yield the Events that the leader of `term` must write. `ours`: the Event of `term`, with the election's cause."""
        if self.left_out:
            yield replace(ours, message=f"{self.left_out} changes of leader before term {self.terms[0].term} are not listed")
        for each in self.terms:
            began = f"{each.holder} became leader in term {each.term}, at {format_time(each.at)}"
            late = replace(ours, message=f"{began}; the term ended before its cause was recorded")
            yield ours if each.term == term else late


def encode_terms(terms: UnreportedTerms) -> str:
    return msgspec.json.encode(terms).decode()


def decode_terms(text: str | None) -> UnreportedTerms:
    return msgspec.json.decode(text, type=UnreportedTerms) if text else UnreportedTerms()
