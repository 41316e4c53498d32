"""The agent's own secrets: a slot for each hub, and the owner's secret.

Each hub has a slot, named after the hub's id. The slot contains the credential for this hub and the pending request for the
next credential. Slots are changed by read-modify-write. The credential of the owner is also in the owner's secret, which has
the layout of Open Cluster Management, because other programs mount and mirror it. If a secret is deleted, the agent recreates
it from memory.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import timedelta

import structlog

from machinery.errors import AlreadyExistsError, ConflictError, MusterError, NotLeaderError
from machinery.identity import HubId
from machinery.observability.logs import LogOnce
from machinery.runtime.tasks import retried
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
    """Reads and writes the secret `name`. A Slot keeps the last content of the secret, so that the next write needs no read."""

    def __init__(self, secrets: Secrets, name: str) -> None:
        self.name = name
        self._secrets = secrets
        self._last: SecretSnapshot | None = None

    async def read(self) -> Contents:
        """Return the stored contents; empty if the secret does not exist."""
        self._last = await self._secrets.read(self.name)
        return self._last.contents

    async def change(self, edit: Callable[[Contents], Contents]) -> Contents:
        """Store `edit(contents)` and return it. After a concurrent change, read the secret again and edit the new contents."""

        async def attempt() -> Contents:
            present, self._last = self._last or await self._secrets.read(self.name), None
            self._last = await self._secrets.write(self.name, edit(present.contents), present.version)
            return self._last.contents

        return await retried(attempt, (ConflictError, AlreadyExistsError), ATTEMPTS)

    async def forget(self) -> None:
        """Delete the pending request. Delete the secret if it has no credential.

        This method reads the secret again, because another process may have stored a credential since the last read.
        """
        if CERTIFICATE in await self.read():
            await self.change(without_request)
        else:
            await self.delete()

    async def delete(self) -> None:
        self._last = None
        await self._secrets.delete(self.name)


class OwnedSlot(Slot):
    """The slot of the owner. A new credential is stored first in the slot, and then also in the owner's secret.

    If another hub has become the owner meanwhile, that hub's credential is not overwritten.
    """

    def __init__(self, slot: Slot, owner: Slot, hub: HubId) -> None:
        self.name = owner.name
        self._slot = slot
        self._owner = owner
        self._hub = hub

    async def read(self) -> Contents:
        return await self._owner.read()

    async def change(self, edit: Callable[[Contents], Contents]) -> Contents:
        """Change both secrets; return the contents of the owner's secret. Raises ConflictError if another hub is the owner."""
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
    """Return the slot with the name `secret`, a hyphen, and the first eight characters of the id `hub`."""
    return Slot(secrets, f"{secret}-{hub[:8]}")


def without_request(contents: Contents) -> Contents:
    """Return the contents without a pending request."""
    return {key: content for key, content in contents.items() if key not in (PENDING_KEY, PENDING_REQUEST, REQUEST_NAME)}


def credential_of(contents: Contents) -> Contents:
    """Return the credential in a slot or in the owner's secret: no pending request, no `hub-id`, no `epoch`."""
    return {key: content for key, content in without_request(contents).items() if key not in (HUB_ID, EPOCH)}


def owned(present: Contents, credential: Contents, hub: HubId) -> Contents:
    """Return the contents `present` of the owner's secret with the `credential` of `hub`. Epoch and other entries stay."""
    return {**without_trust(without_credential(present)), **credential, HUB_ID: hub.encode()}


def without_trust(contents: Contents) -> Contents:
    """Return the contents without the kubeconfig and the CAs, because another or a reinstalled hub has other CAs."""
    return {key: content for key, content in contents.items() if key not in (KUBECONFIG, ORIGIN)}


def without_credential(contents: Contents) -> Contents:
    """Return the contents that stay when a new credential is stored.

    The recovery certificate is removed, because it belongs to the old key.
    """
    return {key: content for key, content in contents.items() if key not in (CERTIFICATE, KEY, RECOVERY, TOKEN_FILE)}


RESTORE_PERIOD = timedelta(seconds=30)


class RestoringSecrets(Secrets):
    """Wraps `inner`. Recreates the owner's secret and the slots from memory if they are deleted.

    Exceptions: after `spoke leave`, in a namespace that is being deleted, and in a process without the Lease (`inner` refuses
    its writes). After a restoration, it calls `record_event` with the reason and the message of an Event.
    """

    def __init__(self, inner: Secrets, record_event: Callable[[str, str], None]) -> None:
        self._inner = inner
        self._record_event = record_event
        self._known: dict[str, Mapping[str, bytes]] = {}
        self._one = asyncio.Lock()
        self._log = LogOnce(log)

    async def read(self, name: str) -> SecretSnapshot:
        """Read a secret. If it is missing, and this process has its contents in memory, recreate it first."""
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
        """Recreate a secret and return it; None if it was not recreated."""
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
