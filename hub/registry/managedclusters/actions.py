"""Operators' orders to agents (move to another hub, renew certificates), and the subresources for these orders."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from hub.api.certificates import CertificateRecord, Purpose
from hub.api.managed_fields import HUB_WRITER
from hub.api.managedclusters import agent_annotations, availability, cluster as cluster_rules
from hub.api.managedclusters.agent_annotations import LONGEST_RENEWAL, RenewalOrder
from hub.api.meta import document as doc
from hub.ports import HUB_ID, Store, Transaction
from hub.registry.generic.definition import action
from hub.registry.managedclusters import service as clusters
from machinery.apiserver.resource import Question, Subresource
from machinery.errors import Cause, InvalidError, invalid_value, required
from machinery.identity import AgentId, ClusterName
from machinery.meta.objects import Document
from machinery.meta.timestamps import format_time


def order_move(tx: Transaction, cluster: ClusterName, word: str, actor: str, *, dry_run: bool = False) -> dict[str, Any]:
    """Order the agent to move to the hub `word` (id, name, URL). Return its list entry. Raises NotFoundError, InvalidError."""
    stored = clusters.find(tx, cluster)
    available = cluster_rules.availability(stored.document)
    if available is not None and availability.has_parted(available):
        raise InvalidError(f'the agent of cluster "{cluster}" uses another hub: {available.message} Order the move there')
    hub = agent_annotations.destination(stored.document, word, tx.facts.get(HUB_ID) or "")
    if not dry_run and agent_annotations.move_to(stored.document) != hub["id"]:
        clusters.put(tx, agent_annotations.ordered(stored.document, hub["id"]), stored, actor, writer=HUB_WRITER)
    return hub


def cancel_move(tx: Transaction, cluster: ClusterName, actor: str, *, dry_run: bool = False) -> str:
    """Cancel the move. Returns the id of its destination; "": no move was ordered. Raises NotFoundError."""
    stored = clusters.find(tx, cluster)
    before = agent_annotations.move_to(stored.document)
    if before and not dry_run:
        clusters.put(tx, agent_annotations.ordered(stored.document, ""), stored, actor, writer=HUB_WRITER)
    return before


RenewalProgress = tuple[RenewalOrder | None, Sequence[CertificateRecord]]
"""The current renewal order, and the newest valid certificate of each agent."""


def order_renewal(
    tx: Transaction, cluster: ClusterName, within: timedelta, actor: str, *, dry_run: bool = False
) -> RenewalProgress:
    """Order agents to renew, `within` this time, all certificates issued until now. Raises NotFoundError, InvalidError."""
    stored = clusters.find(tx, cluster)
    given = RenewalOrder(tx.now, agent_annotations.check_renewal_interval(within))
    if not dry_run:
        clusters.put(tx, agent_annotations.with_renewal_order(stored.document, given), stored, actor, writer=HUB_WRITER)
    return given, _newest(tx, cluster)


def renewal_progress(tx: Transaction, cluster: ClusterName) -> RenewalProgress:
    """Return the renewal order (None: no order), and each agent's newest certificate, renewed or not. Raises NotFoundError."""
    return agent_annotations.renewal_order(clusters.find(tx, cluster).document), _newest(tx, cluster)


def wanted_renewal(tx: Transaction, cluster: ClusterName) -> tuple[RenewalOrder | None, datetime]:
    """Return the cluster's renewal order (None: no order) and the database's time. Raises NotFoundError."""
    return agent_annotations.renewal_order(clusters.find(tx, cluster).document), tx.now


def _newest(tx: Transaction, cluster: ClusterName) -> Sequence[CertificateRecord]:
    newest: dict[AgentId, CertificateRecord] = {}
    for held in tx.certificates.of_cluster(cluster):
        if held.purpose is Purpose.AGENT and held.agent is not None and held.is_open(tx.now):
            known = newest.get(held.agent, held)
            newest[held.agent] = max(known, held, key=lambda each: (each.issued_at, each.serial))
    return [held for _, held in sorted(newest.items())]


def cluster_move(store: Store, own_group: str) -> Subresource:
    async def answer(question: Question) -> Document:
        name, actor = ClusterName(question.name), question.actor.user
        spec = doc.mapping(question.document, "spec")
        if spec.get("cancel") is True:
            status = {"hubID": await store.run(cancel_move, name, actor, dry_run=question.dry_run)}
        else:
            hub = await store.run(order_move, name, str(spec.get("to")), actor, dry_run=question.dry_run)
            status = {"hubID": str(hub["id"]), "hubName": str(hub.get("name") or "")}
        return {**question.document, "status": {field: value for field, value in status.items() if value}}

    return action(own_group, "move", answer, "clustermoves.hub", _move_violations)


def _move_violations(new: Document, _old: Document | None) -> Sequence[Cause]:
    spec = doc.mapping(new, "spec")
    if spec.get("cancel") is True or spec.get("to"):
        return ()
    return (required("spec.to", "one of the hubs that the agent reports, or cancel"),)


def cluster_rotation(store: Store, own_group: str) -> Subresource:
    async def answer(question: Question) -> Document:
        name, spec = ClusterName(question.name), doc.mapping(question.document, "spec")
        if spec.get("show") is True:
            return {**question.document, "status": _renewal_status(*await store.read(renewal_progress, name))}
        within = timedelta(seconds=int(spec.get("withinSeconds") or 0))
        progress = await store.run(order_renewal, name, within, question.actor.user, dry_run=question.dry_run)
        return {**question.document, "status": _renewal_status(*progress)}

    return action(own_group, "rotate", answer, "clusterrotations.hub", _rotation_violations)


def _renewal_status(order: RenewalOrder | None, newest: Sequence[CertificateRecord]) -> Document:
    agents = [
        {
            "name": each.agent,
            "renewed": order is None or not order.asks(each.issued_at),
            "issuedTime": format_time(each.issued_at),
            "endTime": format_time(each.not_after),
            "signedBy": each.signed_by,
        }
        for each in newest
    ]
    status: dict[str, Any] = {"agents": agents} if agents else {}
    if order is not None:
        status |= {"before": format_time(order.before), "withinSeconds": order.within // timedelta(seconds=1)}
    return status


def _rotation_violations(new: Document, _old: Document | None) -> Sequence[Cause]:
    within, longest = doc.mapping(new, "spec").get("withinSeconds"), LONGEST_RENEWAL // timedelta(seconds=1)
    if within is None or (isinstance(within, int) and 0 <= within <= longest):
        return ()
    return (invalid_value("spec.withinSeconds", within, f"between 0 and {longest}"),)
