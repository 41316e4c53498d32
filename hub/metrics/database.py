"""Metrics of this replica's database transactions and of the audit records on their way."""

from collections.abc import Callable, Mapping
from typing import Any

from hub.audit import Auditor
from hub.store import SqlStore
from machinery.observability.metrics import Registry, counter, gauge, histogram

SECONDS = histogram(
    "hub_database_transaction_seconds", "How long transactions took, with their wait for a turn; kind: read or write.", "kind"
)
FAILED = counter("hub_database_failures_total", "Transactions that the database would not have.", "kind")
UNDER_WAY = gauge("hub_database_transactions", "Transactions under way, those included that wait for their turn.", "kind")
REVISION = gauge(
    "hub_database_revision", "The newest revision that this replica knows of: every change of an object takes one."
)
WRITTEN = counter(
    "hub_audit_events_total", "Audit records, by what came of them: written, dropped (no room), late.", "sink", "result"
)
WAITING = gauge("hub_audit_waiting", "Audit records that are not kept yet.", "sink")
CAPACITY = gauge(
    "hub_audit_capacity", "Audit records that may wait; what comes beyond is dropped, and a record says how many.", "sink"
)
FAILURES = counter("hub_audit_failures_total", "Attempts to keep audit records that failed; they are tried again.", "sink")
METRICS = (SECONDS, FAILED, UNDER_WAY, REVISION, WRITTEN, WAITING, CAPACITY, FAILURES)


def add_database(registry: Registry, store: SqlStore, auditor: Auditor) -> None:
    kinds = {"read": store.counts.reading, "write": store.counts.writing}
    registry.bind(SECONDS, lambda: {kind: work.seconds for kind, work in kinds.items()})
    registry.bind(FAILED, lambda: {kind: work.failures for kind, work in kinds.items()})
    registry.bind(UNDER_WAY, lambda: {kind: work.under_way for kind, work in kinds.items()})
    registry.bind(REVISION, lambda: store.newest)
    registry.bind(WRITTEN, lambda: _records(auditor))
    registry.bind(WAITING, _of_each(auditor, "waiting"))
    registry.bind(CAPACITY, _of_each(auditor, "capacity"))
    registry.bind(FAILURES, _of_each(auditor, "failures"))


def _records(auditor: Auditor) -> Mapping[tuple[str, str], int]:
    trails, results = auditor.snapshot(), ("written", "dropped", "late")
    return {(str(trail["sink"]), result): trail[result] for trail in trails for result in results}


def _of_each(auditor: Auditor, what: str) -> Callable[[], Mapping[str, Any]]:
    return lambda: {str(trail["sink"]): trail[what] for trail in auditor.snapshot()}
