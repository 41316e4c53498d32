"""Writes audit records to the hub's database."""

from collections.abc import Sequence

from hub.api.auditrecords import STRANGERS, AuditEntry, Numbering
from hub.audit.trail import AuditSink
from hub.ports import Store
from hub.registry import auditrecords as audit


class StoreSink(AuditSink):
    """`suffix`: see `Numbering`."""

    def __init__(self, store: Store, replica: str, suffix: str = "") -> None:
        self.numbering = Numbering(replica, suffix)
        self._store = store
        self._name = "database, strangers" if suffix == STRANGERS else "database"

    @property
    def name(self) -> str:
        return self._name

    async def open(self) -> None:
        """Does nothing: the database is open."""

    async def write(self, entries: Sequence[AuditEntry]) -> None:
        await self._store.run(audit.append, entries)
