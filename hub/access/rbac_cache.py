"""Cache of the hub's RBAC roles and bindings, kept current from the change log.

`run` follows the log and checks at every `CHECK_INTERVAL` that no change was missed. If the last successful check is older than
`MAX_AGE`, `check` raises UnavailableError.
"""

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta

import msgspec
import structlog

from hub.api.meta.change import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, ROLE_BINDINGS, ROLES, Change, Kind
from hub.ports import Store, Transaction
from machinery.apiserver.authz.rbac import RoleIndex, Roles
from machinery.apiserver.storage import GroupResource
from machinery.errors import MusterError, UnavailableError
from machinery.meta.objects import ChangeType, Query, StoredObject
from machinery.observability.logs import LogOnce
from machinery.runtime.clock import Clock
from machinery.runtime.event_loop import until_tick
from machinery.runtime.informer import Informer

KINDS = (CLUSTER_ROLES, CLUSTER_ROLE_BINDINGS, ROLES, ROLE_BINDINGS)
CHECK_INTERVAL = timedelta(seconds=2)
MAX_AGE = timedelta(seconds=10)
"""Longest time since the last successful check; older roles are not used for decisions."""

log = structlog.get_logger(__name__)


class RBACCache(Roles):
    """The hub's roles in memory. One per process. For each change of any kind, updates the roles, then calls the watchers."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._index = RoleIndex()
        self._watchers: list[Callable[[Change], None]] = []
        self.position = -1
        """The revision of the last change that was processed; -1: none."""
        self._proven_at: float | None = None
        self._moved = asyncio.Condition()
        self._failure = LogOnce(log)

    @property
    def index(self) -> RoleIndex:
        return self._index

    def watch(self, watcher: Callable[[Change], None]) -> None:
        self._watchers.append(watcher)

    def check(self) -> None:
        proven = self._proven_at
        if proven is None or self._clock.monotonic() - proven > MAX_AGE.total_seconds():
            raise UnavailableError(
                "roles cannot be evaluated now: the hub's database cannot be read", retry_after=CHECK_INTERVAL
            )

    async def seen(self, resource: GroupResource, revision: int) -> None:
        del resource  # all resources have one change log
        await self._reach(revision)

    async def load(self) -> int:
        """Reads all roles and bindings again. Returns the newest revision of the change log. Raises UnavailableError."""
        began = self._clock.monotonic()
        index = RoleIndex()
        revision, found = await self._store.read(_all)
        for kind, stored in found:
            index.put(_resource(kind), stored.key, stored.document)
        self._index = index
        self._proven_at = began
        await self._move(revision)
        return revision

    async def run(self) -> None:
        """Follows the change log and checks it until cancelled."""
        informer = Informer("roles", self._store.follow, self.load, self._take)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(informer.run(self.position if self.position >= 0 else None), name="roles")
            tasks.create_task(self._prove_always(), name="roles' age")

    async def _take(self, changes: Sequence[Change]) -> None:
        for change in changes:
            if change.kind in KINDS:
                document = None if change.type is ChangeType.DELETED else msgspec.json.decode(change.encoded)
                self._index.put(_resource(change.kind), change.key, document)
            for watcher in self._watchers:
                watcher(change)
        if changes:
            await self._move(changes[-1].revision)

    async def _prove_always(self) -> None:
        while True:
            try:
                async with asyncio.timeout(MAX_AGE.total_seconds()):
                    await self.prove()
                self._failure.reset()
            except (TimeoutError, MusterError) as error:
                self._failure.warning("the RBAC cache cannot be compared with the database", str(error) or "too slow")
            await asyncio.sleep(until_tick(CHECK_INTERVAL))

    async def prove(self) -> None:
        """Reads the newest revision and waits until the cache has processed it. Raises UnavailableError."""
        began = self._clock.monotonic()
        await self._reach(await self._store.look(_newest))
        self._proven_at = began

    async def _reach(self, revision: int) -> None:
        async with self._moved:
            await self._moved.wait_for(lambda: self.position >= revision)

    async def _move(self, revision: int) -> None:
        async with self._moved:
            self.position = revision
            self._moved.notify_all()


def _resource(kind: Kind) -> str:
    return kind.partition(".")[0]


def _newest(tx: Transaction) -> int:
    return tx.changes.newest()


def _all(tx: Transaction) -> tuple[int, Sequence[tuple[Kind, StoredObject]]]:
    return tx.changes.newest(), [(kind, stored) for kind in KINDS for stored in tx.objects.find(kind, Query()).items]
