"""One secret that holds a credential and a pending request; changed by read, modify, write.

Each hub has a slot named after its id, with its credential and the request for the next one. The credential of the owner is
also in the owner's secret, in Open Cluster Management's layout: other programs mount and mirror that one.
"""

from collections.abc import Callable, Mapping

from machinery.errors import AlreadyExistsError, ConflictError
from machinery.identity import HubId
from spoke.domain.credential import (
    CERTIFICATE,
    EPOCH,
    HUB_ID,
    KEY,
    KUBECONFIG,
    ORIGIN,
    PENDING_KEY,
    PENDING_REQUEST,
    RECOVERY,
    REQUEST_NAME,
    TOKEN_FILE,
    TRUST,
)
from spoke.ports.cluster import Secrets, SecretSnapshot

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
        for attempt in range(1, ATTEMPTS + 1):
            present = self._last or await self._secrets.read(self.name)
            self._last = None
            try:
                self._last = await self._secrets.write(self.name, edit(present.contents), present.version)
            except (ConflictError, AlreadyExistsError):
                if attempt == ATTEMPTS:
                    raise
            else:
                return self._last.contents
        raise AssertionError  # the loop returns or raises

    async def forget(self) -> None:
        """Delete the pending request; delete the secret if it holds no credential.

        It reads again instead of using the cache, because another process may have stored a credential since.
        """
        if CERTIFICATE in await self.read():
            await self.change(settled)
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
        return await self._owner.change(lambda present: self._owned(present, stored))

    def _owned(self, present: Contents, stored: Contents) -> Contents:
        owner = present.get(HUB_ID, b"").decode(errors="replace")
        if owner not in ("", self._hub):
            raise ConflictError(f"hub {owner} has become the owner of this cluster, which is not {self._hub} any more")
        return owned(present, stored, self._hub)


def hub_slot(secrets: Secrets, hub: HubId) -> Slot:
    """The slot with a hub's credential and a pending request to it."""
    return slot_at(secrets, OWNER_SECRET, hub)


def slot_at(secrets: Secrets, secret: str, hub: HubId) -> Slot:
    """The slot of a secret's data for one hub, named after both."""
    return Slot(secrets, f"{secret}-{hub[:8]}")


def settled(contents: Contents) -> Contents:
    """The contents without a pending request."""
    return {key: content for key, content in contents.items() if key not in (PENDING_KEY, PENDING_REQUEST, REQUEST_NAME)}


def credential_of(contents: Contents) -> Contents:
    """The credential in a slot or in the owner's secret, without the keys of the owner."""
    return {key: content for key, content in settled(contents).items() if key not in (HUB_ID, EPOCH)}


def owned(present: Contents, credential: Contents, hub: HubId) -> Contents:
    """The owner's secret with the `credential` of `hub`. The epoch and the keys of others stay."""
    return {**without_trust(without_credential(present)), **credential, HUB_ID: hub.encode()}


def without_trust(contents: Contents) -> Contents:
    """The contents without the trust in the hub: a CA of one hub is not valid for another hub or for its replacement."""
    return {key: content for key, content in contents.items() if key not in (KUBECONFIG, TRUST, ORIGIN)}


def without_credential(contents: Contents) -> Contents:
    """The contents that a new credential keeps. An old recovery certificate belongs to the old key, so it is removed."""
    return {key: content for key, content in contents.items() if key not in (CERTIFICATE, KEY, RECOVERY, TOKEN_FILE)}
