"""Builds the audit from the hub's settings."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from hub.api.auditrecords import STRANGERS
from hub.audit.auditor import Auditor
from hub.audit.default_policy import default_policy
from hub.audit.file_sink import FileSink
from hub.audit.policy_file import read_policy
from hub.audit.store_sink import StoreSink
from hub.audit.trail import Trail
from hub.ports import Store
from hub.settings import HubSettings
from machinery.runtime.clock import Clock
from machinery.runtime.tasks import GuardedTasks, TaskEndedError


@asynccontextmanager
async def auditing(
    settings: HubSettings,
    store: Store,
    replica: str,
    clock: Clock,
    *,
    on_end: Callable[[TaskEndedError], object],
) -> AsyncGenerator[Auditor]:
    """Runs the audit while the block runs; at its end all offered records are stored.

    Raises InvalidError for an invalid policy, and MusterError if records cannot be stored.
    """
    auditor = auditor_of(settings, store, replica, clock)
    await auditor.open()
    async with GuardedTasks("audit", on_end=on_end) as tasks:
        tasks.start("delivery", auditor.run())
        try:
            yield auditor
        finally:
            await auditor.finish()


def auditor_of(settings: HubSettings, store: Store, replica: str, clock: Clock) -> Auditor:
    """Builds the auditor: records go to the database, and to a file if the settings name one. Raises InvalidError."""
    file = settings.audit_policy_file
    policy = default_policy(settings.api_group_suffix) if file is None else read_policy(file)
    database, strangers = StoreSink(store, replica), StoreSink(store, replica, STRANGERS)
    lines = [] if settings.audit_log_path is None else [Trail(FileSink(settings.audit_log_path), clock)]
    return Auditor(
        policy,
        [Trail(database, clock), *lines],
        clock,
        strangers=[Trail(strangers, clock), *lines],
        numbering=database.numbering,
    )
