"""ClusterDiagnosis, a kind of this project: why a cluster is not Available, step by step, and what to do; computed on read."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from hub.api import bootstrapcredentials as credentials
from hub.api.bootstrapcredentials import UseCount
from hub.api.certificates import Purpose
from hub.api.certificatesigningrequests import ADDON_LABEL
from hub.api.clusterdiagnoses import ClusterFacts, CredentialState, Diagnosis, DiagnosisFinding, LeaderLease, diagnose
from hub.api.meta import document as doc
from hub.api.meta.change import ADDONS, MANAGED_CLUSTERS, REQUESTS
from hub.ports import Transaction
from hub.registry.generic import declared
from hub.registry.generic.definition import computed
from hub.registry.generic.virtual import ComputedObject, ComputedStorage
from hub.registry.liveness import brake
from machinery.apiserver.storage import GroupResource
from machinery.errors import MethodNotAllowedError, NotFoundError
from machinery.identity import CLUSTER_LABEL, ClusterName, cluster_name
from machinery.meta.objects import Document, Key, Page, Query, StoredObject
from machinery.meta.selectors import parse_label_selector

FALLS_OF = timedelta(hours=1)


def facts(tx: Transaction, name: ClusterName) -> ClusterFacts:
    stored = tx.objects.get(MANAGED_CLUSTERS, Key("", name))
    records, lock = tx.certificates.of_cluster(name), tx.leaders.record()
    return ClusterFacts(
        name=name,
        now=tx.now,
        cluster=None if stored is None else stored.document,
        # reads every credential, so only if no certificate was ever issued
        offers=() if any(record.purpose is Purpose.AGENT for record in records) else _offers(tx, name),
        requests=_requests(tx, name),
        records=records,
        beat=tx.heartbeats.of(name),
        sessions=tx.agent_sessions.of(name),
        replicas={replica.name: replica for replica in tx.replicas.all()},
        lead=LeaderLease(lock.holder, lock.renewed_at, lock.lease) if lock else None,
        addons=[each.document for each in tx.objects.find(ADDONS, Query(namespace=name)).items],
        brake=brake.now(tx),
        falls=len(tx.transitions.falls(tx.now - FALLS_OF, [name]).get(name, ())),
    )


def _offers(tx: Transaction, name: ClusterName) -> Sequence[CredentialState]:
    counts = tx.credentials.use_counts()
    found = [each for each in tx.credentials.all() if each.admits(name) and not each.is_hidden]
    return [CredentialState(each, credentials.phase(each, counts.get(each.id, UseCount()).issued, tx.now)) for each in found]


def _requests(tx: Transaction, name: ClusterName) -> Sequence[Document]:
    labels = parse_label_selector(f"{CLUSTER_LABEL}={name},!{ADDON_LABEL}")
    found = [each.document for each in tx.objects.find(REQUESTS, Query(labels=labels.requirements)).items]
    return sorted(found, key=lambda request: str(doc.mapping(request, "metadata").get("creationTimestamp")))


class DiagnosisStorage(ComputedStorage):
    async def get(self, resource: GroupResource, key: Key) -> StoredObject:
        """Diagnose the cluster with this name. Raises NotFoundError if no cluster can have the name."""
        try:
            name = cluster_name(key.name)
        except ValueError as error:
            raise NotFoundError(f'{resource} "{key.name}" not found: {error}') from None
        found, revision = await self._store.read(lambda tx: (diagnose(facts(tx, name)), tx.changes.newest()))
        return self.stored(ComputedObject(name, f"ClusterDiagnosis/{name}", {"status": _status(found)}), revision)

    async def list(self, resource: GroupResource, query: Query) -> Page:
        """Raise MethodNotAllowedError, because diagnoses cannot be listed."""
        del query
        raise MethodNotAllowedError(f"{resource} cannot be listed: get one by the name of its cluster")


def _status(found: Diagnosis) -> dict[str, Any]:
    cause = {"cause": _step(found.cause)} if found.cause is not None else {}
    steps = list(map(_step, found.findings))
    return {"well": found.is_well, "available": found.available or "Unknown", **cause, "steps": steps}


def _step(finding: DiagnosisFinding) -> dict[str, str]:
    step = {"step": finding.step, "state": str(finding.state), "reason": finding.reason, "message": finding.said}
    return {**step, "advice": finding.advice} if finding.advice else step


CLUSTER_DIAGNOSIS = computed(declared("clusterdiagnoses.hub"), storage=DiagnosisStorage)
