"""HubReplicas: the processes that serve this hub, computed from their rows on read."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import NAMESPACE_OID, uuid5

import msgspec

from hub.api.hubreplicas import Load, Replica
from hub.https_door.storage.virtual import CountedStorage
from hub.ports import Transaction
from machinery.apiserver.storage import Key, Stored
from machinery.meta.timestamps import format_time

KIND = "HubReplica"
MEBIBYTE = 2**20


class ReplicaStorage(CountedStorage):
    """Each answer is one read of the database; every resourceVersion is the store's revision."""

    async def everything(self) -> tuple[Sequence[Stored], int]:
        seen = await self._store.read(_look)
        return [self._stored(each, seen) for each in seen.replicas], seen.revision

    def _stored(self, replica: Replica, seen: "_Seen") -> Stored:
        metadata = {
            "name": replica.name,
            "uid": str(uuid5(NAMESPACE_OID, f"{KIND}/{replica.instance}")),
            "creationTimestamp": format_time(replica.started),
            "resourceVersion": str(seen.revision),
        }
        document = {"apiVersion": self._api_version, "kind": KIND, "metadata": metadata, "status": _status(replica, seen)}
        return Stored(Key("", replica.name), seen.revision, msgspec.json.encode(document))


@dataclass(frozen=True, slots=True)
class _Seen:
    replicas: Sequence[Replica]
    leader: str
    now: datetime
    revision: int


def _look(tx: Transaction) -> _Seen:
    record = tx.leaders.record()
    return _Seen(tx.replicas.all(), record.holder if record else "", tx.now, tx.changes.newest())


def _status(replica: Replica, seen: _Seen) -> dict[str, Any]:
    return {
        "state": replica.state(seen.now),
        "drained": replica.drained,
        "leader": replica.name == seen.leader,
        "sessions": 0 if replica.is_lost(seen.now) else replica.sessions,
        "version": replica.version,
        "grpcAddress": replica.grpc,
        "httpsAddress": replica.https,
        "startTime": format_time(replica.started),
        "lastSeenTime": format_time(replica.seen),
        **_load(replica.load),
    }


def _load(load: Load | None) -> dict[str, Any]:
    if load is None:
        return {}
    return {
        "watches": load.watches,
        "cpu": f"{round(load.cpu * 1_000)}m",
        "memory": f"{load.memory // MEBIBYTE}Mi",
        "clockAheadSeconds": round(load.ahead.total_seconds(), 3),
    }
