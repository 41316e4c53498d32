"""Use cases about records of requests: added at the end of a chain, removed at its beginning by age, and never changed."""

from collections.abc import Mapping, Sequence
from datetime import timedelta

from hub.domain.audit import STRANGERS
from hub.domain.chain import AuditQuery, Head, Link
from hub.ports import Transaction
from machinery.errors import AlreadyExistsError

TRIMMED_AT_ONCE = 2_000
"""Links of one chain that go in one transaction: others wait for it."""
SHORTENED_AT_ONCE = 200
STRANGERS_KEPT = 50_000
"""Refusals of strangers at one replica, some 75 MB at most."""


def append(tx: Transaction, links: Sequence[Link]) -> None:
    """Adds links of one chain. What is there already, because the answer of an earlier attempt was lost, counts as added.

    Raises AlreadyExistsError when another process has written other links at these places.
    """
    replica, first, last = links[0].replica, links[0].sequence, links[-1].sequence
    if tx.audit.head(replica).sequence < first:
        tx.audit.add(links)
        return
    present = tx.audit.links(replica, after=first - 1, limit=last - first + 1)
    if [link.hash for link in present] != [link.hash for link in links]:
        raise AlreadyExistsError(f"another process writes the chain of replica {replica}")


def head(tx: Transaction, replica: str) -> Head:
    """Where the chain of a replica ends."""
    return tx.audit.head(replica)


def find(tx: Transaction, query: AuditQuery) -> tuple[Sequence[Link], int]:
    """Records in the order of time, and the newest revision of the store."""
    return tx.audit.find(query), tx.changes.newest()


def trim(tx: Transaction, retention: timedelta) -> int:
    """Removes what is older than `retention`, and strangers' refusals above STRANGERS_KEPT, in parts; how many records went."""
    gone = tx.audit.trim(tx.now - retention, tx.now, TRIMMED_AT_ONCE)
    for replica in tx.audit.replicas():
        if replica.endswith(STRANGERS) and (first := tx.audit.links(replica, after=0, limit=1)):
            over = tx.audit.head(replica).sequence - first[0].sequence + 1 - STRANGERS_KEPT
            if over > 0:
                tx.audit.shorten(replica, min(over, TRIMMED_AT_ONCE))
                gone += min(over, TRIMMED_AT_ONCE)
    return gone


def shorten(tx: Transaction) -> int:
    """Removes a portion of the oldest records of callers that are known; the bytes that went."""
    chains = [replica for replica in tx.audit.replicas() if not replica.endswith(STRANGERS)]
    oldest = {replica: found[0].at for replica in chains if (found := tx.audit.links(replica, after=0, limit=1))}
    return tx.audit.shorten(min(oldest, key=oldest.__getitem__), SHORTENED_AT_ONCE) if oldest else 0


def chains(tx: Transaction) -> Mapping[str, Head]:
    """Every chain with its anchor: the last link that was removed because of its age."""
    anchors = tx.audit.anchors()
    return {replica: anchors.get(replica, Head()) for replica in tx.audit.replicas()}


def stretch(tx: Transaction, replica: str, after: int, limit: int) -> tuple[Sequence[Link], Head]:
    """Links of a chain from one place on, and its anchor as it is by now."""
    return tx.audit.links(replica, after=after, limit=limit), tx.audit.anchors().get(replica, Head())
