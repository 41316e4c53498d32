"""Use cases about an operator's order to renew certificates early."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from hub.api.certificates import CertificateRecord, Purpose
from hub.api.managedclusters import agent_annotations
from hub.api.managedclusters.agent_annotations import RenewalOrder
from hub.api.objects.managed_fields import HUB_WRITER
from hub.ports import Transaction
from hub.registry.managedclusters import service as clusters
from machinery.identity import AgentId, ClusterName


@dataclass(frozen=True, slots=True)
class RenewingAgent:
    """An agent and its newest valid certificate."""

    agent: AgentId
    issued_at: datetime
    not_after: datetime
    signed_by: str | None
    renewed: bool


@dataclass(frozen=True, slots=True)
class RenewalProgress:
    """The current order and the state of the agents."""

    order: RenewalOrder | None
    holders: Sequence[RenewingAgent]


def order(tx: Transaction, cluster: ClusterName, within: timedelta, actor: str, *, dry_run: bool = False) -> RenewalProgress:
    """Order the renewal of all certificates issued until now. Raises NotFoundError, InvalidError."""
    stored = clusters.find(tx, cluster)
    given = RenewalOrder(tx.now, agent_annotations.check_renewal_interval(within))
    if not dry_run:
        clusters.put(tx, agent_annotations.with_renewal_order(stored.document, given), stored, actor, writer=HUB_WRITER)
    return RenewalProgress(given, _holders(tx, cluster, given))


def progress(tx: Transaction, cluster: ClusterName) -> RenewalProgress:
    """The state of a cluster's agents for the current order. Raises NotFoundError."""
    standing = agent_annotations.renewal_order(clusters.find(tx, cluster).document)
    return RenewalProgress(standing, _holders(tx, cluster, standing))


def wanted_of(tx: Transaction, cluster: ClusterName) -> tuple[RenewalOrder | None, datetime]:
    """The current order and the database's time. Raises NotFoundError."""
    return agent_annotations.renewal_order(clusters.find(tx, cluster).document), tx.now


def _holders(tx: Transaction, cluster: ClusterName, standing: RenewalOrder | None) -> Sequence[RenewingAgent]:
    newest: dict[AgentId, CertificateRecord] = {}
    for record in tx.certificates.of_cluster(cluster):
        if record.purpose is Purpose.AGENT and record.agent is not None and record.is_open(tx.now):
            known = newest.get(record.agent, record)
            newest[record.agent] = max(known, record, key=lambda each: (each.issued_at, each.serial))
    return [
        RenewingAgent(
            agent,
            record.issued_at,
            record.not_after,
            record.signed_by,
            renewed=standing is None or not standing.asks(record.issued_at),
        )
        for agent, record in sorted(newest.items())
    ]
