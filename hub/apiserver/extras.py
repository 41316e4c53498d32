"""What the wide columns of ManagedClusters need beside the documents: one look at the heartbeats per table."""

from collections.abc import Mapping, Sequence
from typing import Any

from hub.domain.heartbeat import LastBeat
from hub.ports import Store, Transaction
from machinery.apiserver.resource import Extras
from machinery.apiserver.storage import Key
from machinery.identity import ClusterName

FEW = 8


def heartbeat_extras(store: Store) -> Extras:
    """Per cluster: `last_beat` (an instant, or None), `session` (whether one is open), `agent` (its version, or None)."""

    async def look(keys: Sequence[Key]) -> Mapping[Key, Mapping[str, Any]]:
        beats = await store.read(_beats, [ClusterName(key.name) for key in keys])
        return {
            Key("", beat.cluster): {
                "last_beat": beat.at,
                "session": beat.session is not None,
                "agent": beat.agent_version,
            }
            for beat in beats
        }

    return look


def _beats(tx: Transaction, clusters: Sequence[ClusterName]) -> Sequence[LastBeat]:
    if len(clusters) > FEW:
        return tx.heartbeats.all()
    found = (tx.heartbeats.of(cluster) for cluster in clusters)
    return [beat for beat in found if beat is not None]
