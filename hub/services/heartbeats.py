"""Use cases about heartbeats and sessions: what is written without being news, and the two moments when it is."""

from collections.abc import Iterable
from datetime import datetime, timedelta

from hub.domain.heartbeat import Beat
from hub.domain.lease import Expiry
from hub.ports import Transaction, Written
from machinery.identity import ClusterName


def flush(tx: Transaction, beats: Iterable[Beat]) -> None:
    """Stores the newest beats in one statement."""
    tx.heartbeats.store(beats)


def expire(tx: Transaction, cluster: ClusterName, *, window: timedelta, since: datetime, actor: str) -> Expiry:
    """Turns availability Unknown when no beat is stored for grace + `window`; else tells when to look again.

    `since`: the database time from which beats could be stored; time before it counts towards nobody's grace.
    """
    raise NotImplementedError


def revive(tx: Transaction, beat: Beat, actor: str) -> Written | None:
    """Stores the beat that ends a silence and restores the agent's own verdict; None: the cluster was not Unknown."""
    raise NotImplementedError


def open_session(tx: Transaction, cluster: ClusterName, session: str, agent_version: str) -> None:
    """Records the open session in place of any other."""
    raise NotImplementedError


def close_session(tx: Transaction, cluster: ClusterName, session: str) -> None:
    """Records that `session` ended, unless another has taken its place."""
    raise NotImplementedError
