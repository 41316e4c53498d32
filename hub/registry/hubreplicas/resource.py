"""HubReplica, ClusterSession and HubLeader, kinds of this project: processes of this hub, agents' sessions, the leader lock."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from hub.api.hubreplicas import AgentSession, Replica
from hub.api.meta import document as doc
from hub.ports import Store, Transaction
from hub.registry.generic import declared
from hub.registry.generic.definition import ResourceDefinition, action, computed
from hub.registry.generic.virtual import ComputedObject, ComputedStorage
from hub.registry.hubreplicas import service as replicas
from machinery.apiserver.resource import Question, Resource, TableRow
from machinery.durations import format_duration
from machinery.meta.objects import Document
from machinery.meta.timestamps import format_micro_time, format_time


def _leader(row: TableRow) -> str:
    return "*" if doc.mapping(row.document, "status").get("leader") else ""


def _replicas(tx: Transaction) -> Sequence[ComputedObject]:
    lock = tx.leaders.record()
    leader = lock.holder if lock else ""
    return [
        ComputedObject(each.name, f"HubReplica/{each.instance}", {"status": _status(each, leader, tx.now)}, each.started)
        for each in tx.replicas.all()
    ]


def _status(replica: Replica, leader: str, now: datetime) -> dict[str, Any]:
    load = replica.load
    return {
        "state": replica.state(now),
        "drained": replica.drained,
        "leader": replica.name == leader,
        "sessions": 0 if replica.is_lost(now) else replica.sessions,
        "version": replica.version,
        "grpcAddress": replica.grpc,
        "httpsAddress": replica.https,
        "startTime": format_time(replica.started),
        "lastSeenTime": format_time(replica.seen),
        "watches": load.watches,
        "cpu": f"{round(load.cpu * 1_000)}m",
        "memory": f"{load.memory // 2**20}Mi",
        "clockAheadSeconds": round(load.ahead.total_seconds(), 3),
    }


def _bound(shown: Resource, store: Store, own: str) -> Resource:
    async def answer(question: Question) -> Document:
        spec, asked = doc.mapping(question.document, "spec"), (question.name, question.actor.user)
        if spec.get("cancel") is True:
            replica = await store.run(replicas.end_drain, *asked, dry_run=question.dry_run)
        else:
            force = spec.get("force") is True
            replica = await store.run(replicas.order_drain, *asked, force=force, dry_run=question.dry_run)
        status = {"drained": replica.drained, "sessions": replica.sessions, "version": replica.version}
        return {**question.document, "status": status}

    drain = action(own, "drain", answer, "replicadrains.hub")
    return replace(shown, storage=ComputedStorage(store, shown, _replicas), subresources=(drain,))


def session_object(session: AgentSession, version: str | None, *, connected: bool = True) -> ComputedObject:
    """Return the object of a session. `version`: the agent's version, if known. All sessions of a cluster have one uid."""
    status: dict[str, Any] = {
        "connected": connected,
        "replica": session.replica,
        "connectedSince": format_micro_time(session.at),
        "agent": session.agent,
    }
    status |= {"agentVersion": version} if version else {}
    return ComputedObject(session.cluster, f"ClusterSession/{session.cluster}", {"status": status}, session.at)


NOBODY = "<nobody>"


def _lock(tx: Transaction) -> Sequence[ComputedObject]:
    lock = tx.leaders.record()
    if lock is None:
        return ()
    status = {
        "holder": lock.holder,
        "term": lock.term,
        "transitions": lock.transitions,
        "leaseDuration": format_duration(lock.lease),
        "acquireTime": format_micro_time(lock.acquired_at),
        "renewTime": format_micro_time(lock.renewed_at),
    }
    return (ComputedObject("hub", "HubLeader/hub", {"status": status}),)


def _holder(row: TableRow) -> str:
    return doc.mapping(row.document, "status").get("holder") or NOBODY


HUB_REPLICA = ResourceDefinition(declared("hubreplicas.hub", {"Leader": _leader}), bind=_bound, stored=False)
CLUSTER_SESSION = computed(declared("clustersessions.hub"))
HUB_LEADER = computed(declared("hubleaders.hub", {"Holder": _holder}), _lock)
