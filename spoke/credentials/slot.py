"""The agent's own secrets: a slot for each hub, and the owner's secret.

A slot holds a credential and a pending request; it is changed by read, modify, write. Each hub has one, named after its id,
with its credential and the request for the next one. The credential of the owner is also in the owner's secret, in Open
Cluster Management's layout: other programs mount and mirror that one. Secrets that others delete are recreated from memory.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import timedelta

import structlog

from machinery.errors import AlreadyExistsError, ConflictError, MusterError, NotLeaderError
from machinery.identity import HubId
from machinery.observability.logs import LogOnce
from machinery.runtime.backoff import retried
from spoke.domain.credential import (
    CERTIFICATE,
    EPOCH,
    HUB_ID,
    KEY,
    KUBECONFIG,
    LEFT,
    ORIGIN,
    PENDING_KEY,
    PENDING_REQUEST,
    RECOVERY,
    REQUEST_NAME,
    TOKEN_FILE,
)
from spoke.ports.cluster import Secrets, SecretSnapshot

log = structlog.get_logger(__name__)


Contents = Mapping[str, bytes]
ATTEMPTS = 5
OWNER_SECRET = "hub-kubeconfig-secret"  # noqa: S105 - the name of a secret


class Slot:
    """The secret `name`. It caches the last read, so that the first write after a read needs no second read."""

    def __init__(self, secrets: Secrets, name: str) -> None:
        self.name = name
        self._secrets = secrets
        self._last: SecretSnapshot | None = None

    async def read(self) -> Contents:
        """The stored contents; empty when the secret does not exist."""
        self._last = await self._secrets.read(self.name)
        return self._last.contents

    async def change(self, edit: Callable[[Contents], Contents]) -> Contents:
        """Store `edit(contents)`; after a concurrent change, read again and edit that."""

        async def attempt() -> Contents:
            present, self._last = self._last or await self._secrets.read(self.name), None
            self._last = await self._secrets.write(self.name, edit(present.contents), present.version)
            return self._last.contents

        return await retried(attempt, (ConflictError, AlreadyExistsError), ATTEMPTS)

    async def forget(self) -> None:
        """Delete the pending request; delete the secret if it holds no credential.

        It reads again instead of using the cache, because another process may have stored a credential since.
        """
        if CERTIFICATE in await self.read():
            await self.change(without_request)
        else:
            await self.delete()

    async def delete(self) -> None:
        self._last = None
        await self._secrets.delete(self.name)


class OwnedSlot(Slot):
    """The slot of the owner's hub: a credential stored in it is then stored in the owner's secret, too.

    The credential of another hub that became the owner meanwhile is not overwritten.
    """

    def __init__(self, slot: Slot, owner: Slot, hub: HubId) -> None:
        self.name = owner.name
        self._slot = slot
        self._owner = owner
        self._hub = hub

    async def read(self) -> Contents:
        return await self._owner.read()

    async def change(self, edit: Callable[[Contents], Contents]) -> Contents:
        """Store in both; return the contents of the owner's secret. Raises ConflictError when another hub is the owner."""
        stored = credential_of(await self._slot.change(edit))

        def update(present: Contents) -> Contents:
            owner = present.get(HUB_ID, b"").decode(errors="replace")
            if owner not in ("", self._hub):
                raise ConflictError(f"hub {owner} has become the owner of this cluster, which is not {self._hub} any more")
            return owned(present, stored, self._hub)

        return await self._owner.change(update)


def hub_slot(secrets: Secrets, hub: HubId) -> Slot:
    return slot_at(secrets, OWNER_SECRET, hub)


def slot_at(secrets: Secrets, secret: str, hub: HubId) -> Slot:
    """The slot of a secret's data for one hub, named after both."""
    return Slot(secrets, f"{secret}-{hub[:8]}")


def without_request(contents: Contents) -> Contents:
    """The contents without a pending request."""
    return {key: content for key, content in contents.items() if key not in (PENDING_KEY, PENDING_REQUEST, REQUEST_NAME)}


def credential_of(contents: Contents) -> Contents:
    """The credential in a slot or in the owner's secret, without the keys of the owner."""
    return {key: content for key, content in without_request(contents).items() if key not in (HUB_ID, EPOCH)}


def owned(present: Contents, credential: Contents, hub: HubId) -> Contents:
    """The owner's secret with the `credential` of `hub`. The epoch and the keys of others stay."""
    return {**without_trust(without_credential(present)), **credential, HUB_ID: hub.encode()}


def without_trust(contents: Contents) -> Contents:
    """The contents without the trust in the hub: a CA of one hub is not valid for another hub or for its replacement."""
    return {key: content for key, content in contents.items() if key not in (KUBECONFIG, ORIGIN)}


def without_credential(contents: Contents) -> Contents:
    """The contents that a new credential keeps. An old recovery certificate belongs to the old key, so it is removed."""
    return {key: content for key, content in contents.items() if key not in (CERTIFICATE, KEY, RECOVERY, TOKEN_FILE)}


RESTORE_PERIOD = timedelta(seconds=30)


class RestoringSecrets(Secrets):
    """`inner`, with a memory of the last contents of the owner's secret and the hubs' slots.

    Nothing is recreated after `spoke leave`, or by a process that does not hold the Lease (`inner` refuses its writes), or in a
    namespace that is being deleted. `record_event` is called with a reason and a message for an Event.
    """

    def __init__(self, inner: Secrets, record_event: Callable[[str, str], None]) -> None:
        self._inner = inner
        self._record_event = record_event
        self._known: dict[str, Mapping[str, bytes]] = {}
        self._one = asyncio.Lock()
        self._log = LogOnce(log)

    async def read(self, name: str) -> SecretSnapshot:
        """Read a secret; recreate it first if it is missing and known."""
        snapshot = await self._inner.read(name)
        if snapshot.version is None and name in self._known:
            return await self._restore(name) or snapshot
        return self._remember(name, snapshot)

    async def write(self, name: str, contents: Mapping[str, bytes], version: str | None) -> SecretSnapshot:
        return self._remember(name, await self._inner.write(name, contents, version))

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
            await asyncio.sleep(RESTORE_PERIOD.total_seconds())
            for name in tuple(self._known):
                try:
                    await self.read(name)
                except MusterError as error:
                    log.debug("secret.not_looked_at", secret=name, error=error.message)

    def _remember(self, name: str, snapshot: SecretSnapshot) -> SecretSnapshot:
        if snapshot.version is not None and name.startswith(OWNER_SECRET):
            self._known[name] = snapshot.contents
        return snapshot

    async def _restore(self, name: str) -> SecretSnapshot | None:
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
        log.warning("secret.restored", secret=name, because="it was deleted")
        self._record_event(
            "SecretRestored", f'secret "{name}" was deleted and is restored: `spoke rejoin` makes the agent register again'
        )
        return written
