"""Use case: diagnose one cluster from everything on record, read in one transaction."""

from collections.abc import Sequence
from datetime import timedelta

from hub.api import bootstrapcredentials as credentials
from hub.api.certificates import Purpose
from hub.api.certificatesigningrequests.request import ADDON_LABEL
from hub.api.clusterdiagnoses import ClusterFacts, Diagnosis, Lead, Offer, diagnose
from hub.api.meta import document as doc
from hub.api.meta.change import ADDONS, MANAGED_CLUSTERS, REQUESTS, Document, Key, Query
from hub.ports import Transaction
from hub.registry.liveness import brake
from machinery.identity import CLUSTER_LABEL, ClusterName
from machinery.meta.selectors import parse_label_selector

FALLS_OF = timedelta(hours=1)


def of_cluster(tx: Transaction, name: ClusterName) -> Diagnosis:
    """Also for an unknown cluster: from its bootstrap credentials."""
    return diagnose(facts(tx, name))


def facts(tx: Transaction, name: ClusterName) -> ClusterFacts:
    stored = tx.objects.get(MANAGED_CLUSTERS, Key("", name))
    records = tx.certificates.of_cluster(name)
    return ClusterFacts(
        name=name,
        now=tx.now,
        cluster=None if stored is None else stored.document,
        offers=() if any(record.purpose is Purpose.AGENT for record in records) else _offers(tx, name),
        requests=_requests(tx, name),
        records=records,
        beat=tx.heartbeats.of(name),
        sessions=tx.agent_sessions.of(name),
        replicas={replica.name: replica for replica in tx.replicas.all()},
        lead=_lead(tx),
        addons=[each.document for each in tx.objects.find(ADDONS, Query(namespace=name)).items],
        brake=brake.now(tx),
        falls=len(tx.transitions.falls(tx.now - FALLS_OF, [name]).get(name, ())),
    )


def _offers(tx: Transaction, name: ClusterName) -> Sequence[Offer]:
    """Called only if no certificate was ever issued, since it reads every credential."""
    tallies = tx.credentials.tallies()
    found = []
    for record in tx.credentials.all():
        if record.admits(name) and not record.is_hidden:
            issued = tallies[record.id].issued if record.id in tallies else 0
            found.append(Offer(record, credentials.phase(record, issued, tx.now)))
    return found


def _requests(tx: Transaction, name: ClusterName) -> Sequence[Document]:
    labels = parse_label_selector(f"{CLUSTER_LABEL}={name},!{ADDON_LABEL}")
    found = [each.document for each in tx.objects.find(REQUESTS, Query(labels=labels.requirements)).items]
    return sorted(found, key=lambda request: str(doc.mapping(request, "metadata").get("creationTimestamp")))


def _lead(tx: Transaction) -> Lead | None:
    record = tx.leaders.record()
    return Lead(record.holder, record.renewed_at, record.lease) if record else None
