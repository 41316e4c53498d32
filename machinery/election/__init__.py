"""Leader election: a lock that several processes share, and the elector that acquires and renews it."""

from machinery.election.elector import Elector
from machinery.election.leader_term import ElectionCounts, Leadership, Term, TermEnd
from machinery.election.lock import KUBERNETES, OPENSHIFT, Candidate, Lock, LockRecord, Timings

__all__ = [
    "KUBERNETES",
    "OPENSHIFT",
    "Candidate",
    "ElectionCounts",
    "Elector",
    "Leadership",
    "Lock",
    "LockRecord",
    "Term",
    "TermEnd",
    "Timings",
]
