"""One of several processes leads: a lock that they share, and the elector that holds it, or waits for it.

The lock is a port; what a leader does is a coroutine that is told its term. Nothing here knows a database or a cluster.
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
