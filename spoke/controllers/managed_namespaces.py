"""Creates and labels the namespaces that the hub's cluster sets want on this cluster, and records the results."""

from collections.abc import Callable, Sequence
from datetime import timedelta

import structlog

from machinery.errors import MusterError
from machinery.meta.conditions import TRUE, Condition
from machinery.runtime.controller import Reconciler
from spoke.domain.report import (
    NOT_WANTED,
    WANTED,
    ManagedNamespace,
    NamespaceReport,
    namespace_applied_condition,
    namespace_failed_condition,
    unwanted_namespaces,
)
from spoke.ports.cluster import Cluster

KEY = "namespaces"
RETRY = timedelta(seconds=5)

log = structlog.get_logger(__name__)


class ManagedNamespaceController(Reconciler[str]):
    """Maintains the namespaces that one hub wants. `label`: the hub's label key. `changed`: called for new reports."""

    def __init__(self, cluster: Cluster, label: str, changed: Callable[[], None]) -> None:
        self._cluster = cluster
        self._label = label
        self._changed = changed
        self._wanted: tuple[ManagedNamespace, ...] | None = None
        self._deleting = False
        self._reports: tuple[NamespaceReport, ...] = ()

    def want(self, wanted: Sequence[ManagedNamespace], *, deleting: bool) -> bool:
        """Set the namespaces that the hub wants. Return whether this is a change. `deleting`: the hub deletes the cluster."""
        before = (self._wanted, self._deleting)
        self._wanted, self._deleting = tuple(wanted), deleting
        return before != (self._wanted, self._deleting)

    @property
    def reports(self) -> tuple[NamespaceReport, ...]:
        """The reports of the last `reconcile`, for those namespaces that the hub still wants."""
        return tuple(report for report in self._reports if report.namespace in (self._wanted or ()))

    async def reconcile(self, key: str) -> timedelta | None:
        """Reconcile all namespaces; a failure of one does not affect the others."""
        del key
        if self._wanted is None:
            return None
        wanted = () if self._deleting else self._wanted
        labelled = await self._cluster.labelled_namespaces(self._label)
        reports = [NamespaceReport(one, await self._apply(one.name, there=one.name in labelled)) for one in wanted]
        for name in unwanted_namespaces(labelled, wanted, deleting=self._deleting):
            await self._cluster.label_namespace(name, self._label, NOT_WANTED, create=False)
            log.info("namespace.released", namespace=name)
        if tuple(reports) != self._reports:
            self._reports = tuple(reports)
            self._changed()
        return RETRY if any(report.condition.status != TRUE for report in reports) else None

    async def _apply(self, name: str, *, there: bool) -> Condition:
        try:
            if not there:
                await self._cluster.label_namespace(name, self._label, WANTED, create=True)
                log.info("namespace.applied", namespace=name)
        except MusterError as error:
            log.warning("namespace.failed", namespace=name, error=error.message)
            return namespace_failed_condition(name, error.message)
        return namespace_applied_condition(name)
