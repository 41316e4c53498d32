"""When a candidate may take the lock: judged by what it saw itself and for how long, never by another's clock."""

from machinery.election.lock import Candidate, LockRecord


class Observation:
    """What one candidate has seen of the lock. Instants are its own monotonic clock's, in seconds.

    Rules (client-go's, and two of ours):
    - a lock that nobody holds may be taken at once;
    - a lock that somebody holds may be taken when its record has not changed for its lease since it was first seen so;
    - ours: a lock held by this very process may be taken at once: its leadership ended, and the record did not say so;
    - ours: at its first look a process may take what an earlier process of its own name holds. That one is gone, as two
      replicas of one name never run; and were it still there, its term is over. Only at the first look: two that were given
      one name by mistake do not take it from each other for ever. `alone` says that no other process can use this lock at
      all: then whoever held it before the first look is gone.
    """

    def __init__(self, candidate: Candidate, *, alone: bool = False) -> None:
        self._candidate = candidate
        self._alone = alone
        self._seen: LockRecord | None = None
        self._since: float | None = None
        self._inherits = False

    @property
    def record(self) -> LockRecord | None:
        """What was seen last."""
        return self._seen

    def look(self, record: LockRecord | None, now: float) -> None:
        """Takes in what the lock says now."""
        first = self._since is None
        if first or record is None or self._seen is None or record.version != self._seen.version:
            self._since = now
            self._inherits = first and record is not None and (self._alone or record.holder == self._candidate.identity)
        self._seen = record

    def free_at(self) -> float:
        """The instant from which on the lock may be taken, unless it changes; 0: at once. To be asked after a look."""
        seen, since = self._seen, self._since
        if seen is None or since is None or not seen.holder or self._inherits:
            return 0.0
        if seen.incarnation == self._candidate.incarnation:
            return 0.0
        return since + seen.lease.total_seconds()

    def predecessor(self) -> str:
        """Why the lock may be taken, for people."""
        seen = self._seen
        if seen is None:
            return "nobody held the lock before"
        if not seen.holder:
            return "it was released"
        if seen.incarnation == self._candidate.incarnation:
            return "this replica held it before"
        if self._inherits:
            return "an earlier process of this replica held it"
        return f"{seen.holder} did not renew it for {seen.lease.total_seconds():g} s"
