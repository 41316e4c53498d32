"""Owns the condition ManagedClusterStale: marks clusters that stay silent, and removes them later if configured.

It marks and removes nothing while the brake holds, before every cluster had a whole grace since beats could last be stored, or
while the database's clock is not trusted: if it were a year ahead, every silent cluster would be stale.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta

import structlog

from hub.api.liveness import BrakeLimits, grace
from hub.api.managedclusters import availability as stale
from hub.api.managedclusters import cluster as cluster_rules
from hub.api.managedclusters.availability import StalenessPolicy, StalenessStep
from hub.api.meta.change import MANAGED_CLUSTERS
from hub.api.query.selection import CONDITIONS
from hub.controllers import ACTOR
from hub.controllers.clock_guard import Steadiness
from hub.controllers.delaying_queue import BatchRunner
from hub.ports import Store, Transaction
from hub.registry.liveness import brake
from hub.registry.liveness import taints as aftermath
from machinery.identity import ClusterName
from machinery.meta import conditions
from machinery.meta.objects import Document, Key, Query
from machinery.meta.selectors import Operator, Requirement
from machinery.runtime.controller import Reconciler

NAME = "staleness"
PAGE, WRITTEN = 200, 50
"""Clusters per reading and per writing transaction."""
PERIOD = timedelta(minutes=1)
MARKED = Requirement(CONDITIONS + stale.STALE, Operator.EQUALS, (conditions.TRUE,))
SILENT = Requirement(CONDITIONS + conditions.AVAILABLE, Operator.EQUALS, (conditions.UNKNOWN,))

log = structlog.get_logger(__name__)

Since = Callable[[Transaction], datetime | None]


class Staleness(Reconciler[str]):
    """`since`: returns since when beats could be stored without a gap; None: they cannot be stored now."""

    def __init__(self, store: Store, policy: StalenessPolicy, limits: BrakeLimits, *, since: Since, steady: Steadiness) -> None:
        self._store = store
        self._policy = policy
        self._limits = limits
        self._since = since
        self._steady = steady

    async def reconcile(self, key: str) -> timedelta | None:  # noqa: ARG002 - there is only one
        """Check all silent or marked clusters. A failing cluster does not block others."""
        attempts: BatchRunner[StalenessStep | None] = BatchRunner()
        for chosen in (MARKED,) if self._policy.is_off else (MARKED, SILENT):
            after: Key | None = None
            while True:
                due, after = await self._store.read(self._due, chosen, after)
                for start in range(0, len(due), WRITTEN):
                    await attempts.make(due[start : start + WRITTEN], self._write)
                if after is None:
                    break
        return attempts.ended(None)

    async def _write(self, names: Sequence[ClusterName]) -> Mapping[ClusterName, StalenessStep | None]:
        done = await self._store.run(self._age, names)
        self._tell(done)
        return done

    def _due(self, tx: Transaction, chosen: Requirement, after: Key | None) -> tuple[Sequence[ClusterName], Key | None]:
        """The due clusters of one page, and the start of the next page."""
        page = tx.objects.find(MANAGED_CLUSTERS, Query(fields=(chosen,), limit=PAGE, after=after))
        policy = self._policy_at(tx)
        due = [ClusterName(stored.key.name) for stored in page.items if self._is_due(tx, stored.document, policy)]
        return due, page.after

    def _policy_at(self, tx: Transaction) -> StalenessPolicy:
        """The policy; off while the database's clock is not trusted, so that marks can only be removed."""
        return self._policy if self._steady.believes(tx.now) else StalenessPolicy()

    def _is_due(self, tx: Transaction, cluster: Document, policy: StalenessPolicy) -> bool:
        due = stale.staleness_step(cluster, policy, tx.now)
        if due in (None, StalenessStep.CLEAR):
            return due is not None
        since = self._since(tx)
        return since is not None and tx.now - since >= grace(cluster_rules.lease_duration(cluster))

    def _age(self, tx: Transaction, names: Sequence[ClusterName]) -> Mapping[ClusterName, StalenessStep | None]:
        policy = StalenessPolicy() if brake.judge(tx, self._limits).holds else self._policy_at(tx)
        return {name: aftermath.age(tx, name, policy, f"{ACTOR}:{NAME}") for name in names}

    def _tell(self, done: Mapping[ClusterName, StalenessStep | None]) -> None:
        for name, step in done.items():
            if step is not None:
                level = "warning" if step is StalenessStep.REMOVE else "info"
                getattr(log, level)(f"stale cluster: {step.value}", cluster=name)
