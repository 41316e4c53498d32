"""Sets ManagedClusterConditionAvailable to Unknown when the grace of a silent cluster ends.

A silent cluster is Unknown, not False. The transaction that stores the next beat ends the silence, not this controller.

One transaction reads many clusters that are due together, and one transaction writes many silent clusters. So thousands of
clusters that become silent together cost dozens of commits.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial

from hub.api.liveness import Expiry
from hub.api.meta.change import MANAGED_CLUSTERS
from hub.controllers import ACTOR
from hub.controllers.builder import ControllerBuilder, Since
from hub.ports import Store, Transaction
from hub.registry.liveness import heartbeats
from machinery.identity import ClusterName
from machinery.meta.objects import Key
from machinery.runtime.controller import Batch, BatchReconciler

NAME = "availability"

UNSURE = timedelta(seconds=1)
"""Interval between checks while beats cannot be stored. No cluster counts as silent during this time."""
AHEAD = timedelta(seconds=5)
"""Clusters due within this time are checked together with clusters due now. Most of them have sent a beat and are next due a
grace period later. With 1,000 clusters, the hub wakes up every five seconds instead of three times a second."""
READ, WRITTEN = 500, 100
"""Clusters per reading and per writing transaction."""
GATHER = timedelta(milliseconds=250)
"""Delay of a check. A joining cluster changes several times in a short time, and hundreds may join together."""


class AvailabilityReconciler(BatchReconciler[str]):
    """Checks a cluster when its grace period ends, in database time. `window`: flush window; `since`: see Since."""

    at_most, ahead = READ, AHEAD

    def __init__(self, store: Store, *, window: timedelta, since: Since) -> None:
        self._store = store
        self._window = window
        self._since = since

    async def reconcile_all(self, keys: Sequence[str]) -> Batch[str]:
        """Check all clusters in a reading transaction: most have a beat. Check the silent ones again in the writing one."""
        batch, silent = Batch[str](), list[str]()

        async def read(names: Sequence[str]) -> Mapping[str, timedelta | None]:
            found = await self._store.read(self._judge, names, heartbeats.silence)
            silent.extend(name for name, expiry in found.items() if expiry.is_due)
            return {name: expiry.look_again for name, expiry in found.items()}

        async def write(names: Sequence[str]) -> Mapping[str, timedelta | None]:
            found = await self._store.run(self._judge, names, partial(heartbeats.expire, actor=f"{ACTOR}:{NAME}"))
            return {name: expiry.look_again for name, expiry in found.items()}

        await batch.run(keys, read)
        await batch.run(silent, write, at_once=WRITTEN)
        return batch

    def _judge(self, tx: Transaction, names: Sequence[str], judge: Callable[..., Expiry]) -> Mapping[str, Expiry]:
        since = self._since(tx)
        if since is None:
            return dict.fromkeys(names, Expiry(expired=False, look_again=UNSURE))
        tx.objects.read_ahead(MANAGED_CLUSTERS, [Key("", name) for name in names])
        return {name: judge(tx, ClusterName(name), window=self._window, since=since) for name in names}


def register(builder: ControllerBuilder) -> None:
    reconciler = AvailabilityReconciler(builder.store, window=builder.settings.flush_window, since=builder.since)
    builder.watch_names(MANAGED_CLUSTERS, builder.add(NAME, reconciler), delay=GATHER)
