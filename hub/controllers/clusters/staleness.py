"""Owns the condition ManagedClusterStale: marks clusters that stay silent, and removes them later if configured.

The controller neither marks nor removes clusters while the brake is active. After an outage of the database, it waits for a
whole grace period of the cluster. It also waits until the database's clock is trusted: if the clock were a year ahead, every
silent cluster would be stale.
"""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta

import structlog

from hub.api.liveness import BrakeLimits, grace
from hub.api.managedclusters import availability, cluster as cluster_rules
from hub.api.managedclusters.availability import StalenessPolicy, StalenessStep
from hub.api.meta.change import MANAGED_CLUSTERS
from hub.api.query.selection import CONDITIONS
from hub.controllers import ACTOR
from hub.controllers.builder import PERIODIC, ControllerBuilder, Since
from hub.controllers.clock_guard import SETTLED, ClockGuard
from hub.ports import Store, Transaction
from hub.registry.liveness import brake, taints as service
from machinery.identity import ClusterName
from machinery.meta import conditions
from machinery.meta.objects import Document, Key, Query
from machinery.meta.selectors import Operator, Requirement
from machinery.runtime.controller import Batch, BatchReconciler

NAME = "staleness"
PAGE, WRITTEN = 200, 50
"""Clusters per reading and per writing transaction."""
PERIOD = timedelta(minutes=1)
MARKED = Requirement(CONDITIONS + availability.STALE, Operator.EQUALS, (conditions.TRUE,))
SILENT = Requirement(CONDITIONS + conditions.AVAILABLE, Operator.EQUALS, (conditions.UNKNOWN,))

log = structlog.get_logger(__name__)


@dataclass(eq=False)
class Staleness(BatchReconciler[str]):
    """Marks and removes stale clusters. The key PERIODIC examines silent and marked clusters. Other keys are names to retry."""

    store: Store
    policy: StalenessPolicy
    limits: BrakeLimits
    _: KW_ONLY
    since: Since
    clock_guard: ClockGuard

    async def reconcile_all(self, keys: Sequence[str]) -> Batch[str]:
        batch = Batch[str]()
        await batch.run([key for key in keys if key != PERIODIC], self._write)
        if PERIODIC not in keys:
            return batch
        for chosen in (MARKED,) if self.policy.is_off else (MARKED, SILENT):
            after: Key | None = None
            while True:
                due, after = await self.store.read(self._due, chosen, after)
                await batch.run(due, self._write, at_once=WRITTEN)
                if after is None:
                    break
        return batch

    async def _write(self, names: Sequence[str]) -> Mapping[str, timedelta | None]:
        for name, step in (await self.store.run(self._age, names)).items():
            if step is not None:
                level = "warning" if step is StalenessStep.REMOVE else "info"
                getattr(log, level)(f"stale cluster: {step.value}", cluster=name)
        return dict.fromkeys(names)

    def _due(self, tx: Transaction, chosen: Requirement, after: Key | None) -> tuple[Sequence[str], Key | None]:
        page = tx.objects.find(MANAGED_CLUSTERS, Query(fields=(chosen,), limit=PAGE, after=after))
        policy = self._policy_at(tx)
        due = [stored.key.name for stored in page.items if self._is_due(tx, stored.document, policy)]
        return due, page.after

    def _policy_at(self, tx: Transaction) -> StalenessPolicy:
        """The policy; off while the database's clock is not trusted, so that marks can only be removed."""
        return self.policy if self.clock_guard.trusts_clock(tx.now) else StalenessPolicy()

    def _is_due(self, tx: Transaction, cluster: Document, policy: StalenessPolicy) -> bool:
        due = availability.staleness_step(cluster, policy, tx.now)
        if due in (None, StalenessStep.CLEAR):
            return due is not None
        since = self.since(tx)
        return since is not None and tx.now - since >= grace(cluster_rules.lease_duration(cluster))

    def _age(self, tx: Transaction, names: Sequence[str]) -> Mapping[str, StalenessStep | None]:
        policy = StalenessPolicy() if brake.evaluate(tx, self.limits).holds else self._policy_at(tx)
        return {name: service.apply_staleness_policy(tx, ClusterName(name), policy, f"{ACTOR}:{NAME}") for name in names}


def register(builder: ControllerBuilder) -> None:
    settings = builder.settings
    policy = StalenessPolicy(mark=settings.stale_after, remove=settings.stale_removal_after)
    # both clocks must agree for SETTLED, or for `stale_after` if that is shorter
    clock_guard = ClockGuard(builder.clock, min(SETTLED, policy.mark))
    reconciler = Staleness(builder.store, policy, builder.brake_limits, since=builder.since, clock_guard=clock_guard)
    builder.every(PERIOD, builder.add(NAME, reconciler))
