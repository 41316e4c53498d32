"""When a candidate may take the lock, by its own observations and its own clock."""

from machinery.election.lock import Candidate, LockRecord


class Observation:
    """What one candidate has seen of the lock. Instants are seconds of its own monotonic clock.

    Rules (the first two are client-go's):
    - A lock without holder may be taken at once.
    - A held lock may be taken when its record has not changed for its lease since it was first seen so.
    - A lock held by this very process may be taken at once: its leadership ended without a release.
    - At its first look, a process may take a lock that an earlier process of its own name holds. That process has ended, since
      two replicas never share a name; if it still ran, its term is over. The rule is limited to the first look so that two
      processes that share a name by mistake do not take the lock from each other for ever. With `alone`, no other process can
      use this lock, so any holder seen at the first look has ended.
    """

    def __init__(self, candidate: Candidate, *, alone: bool = False) -> None:
        self._candidate = candidate
        self._alone = alone
        self._seen: LockRecord | None = None
        self._since: float | None = None
        self._inherits = False

    @property
    def record(self) -> LockRecord | None:
        """The last seen record."""
        return self._seen

    def look(self, record: LockRecord | None, now: float) -> None:
        """Record the current state of the lock."""
        first = self._since is None
        if first or record is None or self._seen is None or record.version != self._seen.version:
            self._since = now
            self._inherits = first and record is not None and (self._alone or record.holder == self._candidate.identity)
        self._seen = record

    def free_at(self) -> float:
        """Instant from which the unchanged lock may be taken; 0: at once. Call `look` first."""
        seen, since = self._seen, self._since
        if seen is None or since is None or not seen.holder or self._inherits:
            return 0.0
        if seen.incarnation == self._candidate.incarnation:
            return 0.0
        return since + seen.lease.total_seconds()

    def predecessor(self) -> str:
        """Why the lock may be taken, for logs."""
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
