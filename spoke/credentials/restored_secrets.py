"""Recreates the agent's own secrets from memory when they are deleted by others."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import timedelta

import structlog

from machinery.errors import AlreadyExistsError, MusterError, NotLeaderError
from machinery.observability.log_once import LogOnce
from spoke.credentials.slot import OWNER_SECRET
from spoke.domain.credential import LEFT
from spoke.ports.cluster import Secrets, SecretSnapshot

PERIOD = timedelta(seconds=30)

log = structlog.get_logger(__name__)


class RememberedSecrets(Secrets):
    """`inner`, with a memory of the last contents of the owner's secret and the hubs' slots.

    Nothing is recreated after `spoke leave`, or by a process that does not hold the Lease (`inner` refuses its writes), or in a
    namespace that is being deleted. `tell` is called with a reason and a message for an Event.
    """

    def __init__(self, inner: Secrets, tell: Callable[[str, str], None]) -> None:
        self._inner = inner
        self._tell = tell
        self._known: dict[str, Mapping[str, bytes]] = {}
        self._one = asyncio.Lock()
        self._log = LogOnce(log)

    async def read(self, name: str) -> SecretSnapshot:
        """Read a secret; recreate it first if it is missing and known."""
        snapshot = await self._inner.read(name)
        if snapshot.version is None and name in self._known:
            return await self._restored(name) or snapshot
        return self._noted(name, snapshot)

    async def write(self, name: str, contents: Mapping[str, bytes], version: str | None) -> SecretSnapshot:
        return self._noted(name, await self._inner.write(name, contents, version))

    async def delete(self, name: str) -> None:
        async with self._one:
            await self._inner.delete(name)
            self._known.pop(name, None)

    async def named(self, prefix: str) -> Sequence[str]:
        return await self._inner.named(prefix)

    def changes(self, name: str) -> AsyncIterator[SecretSnapshot]:
        return self._inner.changes(name)

    async def run(self) -> None:
        """Check for missing secrets until cancelled."""
        while True:
            await asyncio.sleep(PERIOD.total_seconds())
            for name in tuple(self._known):
                try:
                    await self.read(name)
                except MusterError as error:
                    log.debug("secret.not_looked_at", secret=name, error=error.message)

    def _noted(self, name: str, snapshot: SecretSnapshot) -> SecretSnapshot:
        if snapshot.version is not None and name.startswith(OWNER_SECRET):
            self._known[name] = snapshot.contents
        return snapshot

    async def _restored(self, name: str) -> SecretSnapshot | None:
        """The recreated secret; None when it was not recreated."""
        async with self._one:
            if LEFT in (await self._inner.read(OWNER_SECRET)).contents:
                self._known.clear()
            contents = self._known.get(name)
            if contents is None:
                return None
            try:
                written = await self._inner.write(name, contents, None)
            except NotLeaderError:
                return None
            except AlreadyExistsError:
                return await self._inner.read(name)
            except MusterError as error:
                self._log.warning("secret.not_restored", error.message, secret=name)
                return None
        self._log.reset()
        log.warning("secret.restored", secret=name, because="somebody has deleted it")
        self._tell(
            "SecretRestored", f'secret "{name}" was deleted, and is there again: `spoke rejoin` has the agent register anew'
        )
        return written
