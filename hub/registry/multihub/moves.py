"""Use cases about an agent's reported hubs and operators' orders to move."""

from typing import Any

from hub.api.managedclusters import agent_annotations as reported
from hub.api.managedclusters import availability as parting
from hub.api.managedclusters import cluster as rules
from hub.api.meta import document as doc
from hub.api.objects.managed_fields import AGENT_WRITER, HUB_WRITER
from hub.ports import Transaction
from hub.registry.managedclusters import service as clusters
from hub.registry.multihub import owners
from machinery.errors import InvalidError
from machinery.identity import ClusterName

HUB_ID = "hub-id"
"""Fact: this hub's id."""


def report_hubs(tx: Transaction, cluster: ClusterName, epoch: int, annotation: str, actor: str) -> None:
    """Store the agent's encoded hub list; no write if unchanged. Raises NotFoundError, StaleEpochError."""
    owners.check(tx, cluster, epoch)
    stored = clusters.find(tx, cluster)
    new = reported.with_hubs(stored.document, annotation)
    if doc.differs(new, stored.document):
        clusters.put(tx, new, stored, actor, writer=AGENT_WRITER)


def order(tx: Transaction, cluster: ClusterName, word: str, actor: str, *, dry_run: bool = False) -> dict[str, Any]:
    """Order the agent to move to one of its reported hubs; return that hub. Raises NotFoundError, InvalidError."""
    stored = clusters.find(tx, cluster)
    if parting.has_parted(rules.availability(stored.document)):
        available = rules.availability(stored.document)
        said = available.message if available else ""
        raise InvalidError(f'cluster "{cluster}" is not with this hub: {said} Ask the hub that it reports to')
    hub = reported.destination(stored.document, word, tx.facts.get(HUB_ID) or "")
    if not dry_run and reported.move_to(stored.document) != hub["id"]:
        clusters.put(tx, reported.ordered(stored.document, hub["id"]), stored, actor, writer=HUB_WRITER)
    return hub


def cancel(tx: Transaction, cluster: ClusterName, actor: str, *, dry_run: bool = False) -> str:
    """Remove the order; return the id of its hub, or "". Raises NotFoundError."""
    stored = clusters.find(tx, cluster)
    before = reported.move_to(stored.document)
    if before and not dry_run:
        clusters.put(tx, reported.ordered(stored.document, ""), stored, actor, writer=HUB_WRITER)
    return before
