"""Use cases about what agents trust, and which certificates they hold: no revision, no change-log row.

Who wants to know how far a change of CA has come reads `standing`. An agent that never said a word to a release that asks, or
that comes through the Kubernetes API alone, has no row: of such only the records of certificates tell.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hub.api.certificateauthorities.trust import AgentTrust
from hub.api.certificates.certificate import CertificateRecord
from hub.api.meta.change import MANAGED_CLUSTERS, Key
from hub.ports import Transaction


@dataclass(frozen=True, slots=True)
class TrustReport:
    """An agent came with this certificate, and trusts this."""

    record: CertificateRecord
    trusted: frozenset[str] | None


def news(tx: Transaction, words: Iterable[TrustReport]) -> Sequence[AgentTrust]:
    """What of it is not on record: a query."""
    said = [_said(tx, word) for word in words if word.record.cluster is not None and word.record.agent is not None]
    return [each for each in said if not each.is_as(_known(tx, each))]


def note(tx: Transaction, words: Iterable[TrustReport]) -> int:
    """Keeps what agents said, and returns how many rows that took; what is on record already is not written.

    The certificate that an agent came with last counts, and not the newest: it may have gone back to the one before. A cluster
    that is gone meanwhile has no row.
    """
    written = 0
    for said in news(tx, words):
        if tx.objects.get(MANAGED_CLUSTERS, Key("", said.cluster)) is not None:
            tx.trusts.put(said)
            written += 1
    return written


def standing(tx: Transaction) -> Sequence[AgentTrust]:
    """Of every agent that has said so, and whose certificate has not ended: what it trusts and which certificate it holds."""
    return [each for each in tx.trusts.all() if each.not_after > tx.now]


def _said(tx: Transaction, word: TrustReport) -> AgentTrust:
    record = word.record
    if record.cluster is None or record.agent is None:
        raise AssertionError
    return AgentTrust(
        cluster=record.cluster,
        agent=record.agent,
        trusted=word.trusted,
        serial=record.serial,
        issued_at=record.issued_at,
        not_after=record.not_after,
        signed_by=record.signed_by,
        since=tx.now,
    )


def _known(tx: Transaction, said: AgentTrust) -> AgentTrust | None:
    return tx.trusts.get(said.cluster, said.agent)
