"""Leader election: a lock that several processes share, and the elector that acquires and renews it.

The lock is a port; the leader's work is a coroutine that receives its term. No database and no cluster is used here.
"""

from machinery.election.config import KUBERNETES, OPENSHIFT, Timings
from machinery.election.elector import Elector
from machinery.election.leader_term import ElectionCounts, Term, TermEnd
from machinery.election.leadership import Leadership
from machinery.election.lock import Candidate, Lock, LockRecord

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
