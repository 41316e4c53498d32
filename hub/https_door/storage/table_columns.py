"""Values for the wide columns of ManagedClusters: one read of heartbeats and flaps per table."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from hub.api.liveness import LastBeat
from hub.ports import Store, Transaction
from machinery.apiserver.resource import Extras
from machinery.apiserver.storage import Key
from machinery.identity import ClusterName

FEW = 8
FLAPS_OF = timedelta(days=1)


def heartbeat_extras(store: Store) -> Extras:
    """Returns per cluster `last_beat` (an instant, or None), `session` (whether one is open), `agent` (its version, or None).

    `flaps`: how often Available was lost within a day.
    """

    async def look(keys: Sequence[Key]) -> Mapping[Key, Mapping[str, Any]]:
        beats, falls = await store.read(_look, [ClusterName(key.name) for key in keys])
        return {
            Key("", beat.cluster): {
                "last_beat": beat.at,
                "session": beat.session is not None,
                "agent": beat.agent_version,
                "flaps": len(falls.get(beat.cluster, ())),
            }
            for beat in beats
        }

    return look


def _look(
    tx: Transaction, clusters: Sequence[ClusterName]
) -> tuple[Sequence[LastBeat], Mapping[ClusterName, Sequence[datetime]]]:
    return _beats(tx, clusters), tx.transitions.falls(tx.now - FLAPS_OF, clusters)


def _beats(tx: Transaction, clusters: Sequence[ClusterName]) -> Sequence[LastBeat]:
    if len(clusters) > FEW:
        return tx.heartbeats.all()
    found = (tx.heartbeats.of(cluster) for cluster in clusters)
    return [beat for beat in found if beat is not None]
