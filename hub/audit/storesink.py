"""Records in the hub's database, in the chain of this replica."""

from collections.abc import Sequence
from uuid import uuid4

from hub.audit.trail import Sink
from hub.domain.audit import STRANGERS
from hub.domain.chain import Head, Link
from hub.ports import Store
from hub.services import audit


class StoreSink(Sink):
    """`replica`: this process's name among all that ever wrote to the database, the same after a restart."""

    def __init__(self, store: Store, replica: str) -> None:
        self._store = store
        self._replica = replica

    @property
    def name(self) -> str:
        return "database, strangers" if self._replica.endswith(STRANGERS) else "database"

    @property
    def replica(self) -> str:
        return self._replica

    async def open(self) -> Head:
        return await self._store.read(audit.head, self._replica)

    async def write(self, links: Sequence[Link]) -> None:
        await self._store.run(audit.append, links)

    async def renamed(self) -> Head:
        self._replica = str(uuid4()) + (STRANGERS if self._replica.endswith(STRANGERS) else "")
        return Head()
