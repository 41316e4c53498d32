"""Use cases about the CAs that agents trust and the certificates they hold. No write adds a change-log row.

An agent has no row if it never reported to a release that stores this, or uses the Kubernetes API only. For such agents only
certificate records exist.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hub.api.certificateauthorities.authority import AgentTrust
from hub.api.certificates import CertificateRecord
from hub.api.meta.change import MANAGED_CLUSTERS, Key
from hub.ports import Transaction


@dataclass(frozen=True, slots=True)
class TrustReport:
    """The certificate that an agent presented, and the CAs that it trusts."""

    record: CertificateRecord
    trusted: frozenset[str] | None


def news(tx: Transaction, words: Iterable[TrustReport]) -> Sequence[AgentTrust]:
    """Reports that differ from the stored rows. Read-only."""
    said = [_said(tx, word) for word in words if word.record.cluster is not None and word.record.agent is not None]
    return [each for each in said if not each.is_as(_known(tx, each))]


def note(tx: Transaction, words: Iterable[TrustReport]) -> int:
    """Store reports and return the number of written rows. Unchanged reports are not written.

    The certificate presented last counts, not the newest: an agent may have returned to an earlier one. Deleted clusters get no
    row.
    """
    written = 0
    for said in news(tx, words):
        if tx.objects.get(MANAGED_CLUSTERS, Key("", said.cluster)) is not None:
            tx.trusts.put(said)
            written += 1
    return written


def standing(tx: Transaction) -> Sequence[AgentTrust]:
    """Rows of all agents whose certificate has not expired."""
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
