"""One secret that is changed by read, modify, write: the place where a credential and a pending request are kept.

Each hub has a slot of its own, named after its id: its credential, and beside it the request for the next one. The credential
of the hub that the agent reports to, its owner, lies in the owner's secret as well, in Open Cluster Management's layout: that
one is mounted and mirrored by others.
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
from spoke.ports import Secrets, SecretSnapshot

Contents = Mapping[str, bytes]
ATTEMPTS = 5
OWNER_SECRET = "hub-kubeconfig-secret"  # noqa: S105 - the name of a secret


class Slot:
    """The secret `name`; remembers what it read last, so that the first write after a read costs no second read."""

    def __init__(self, secrets: Secrets, name: str) -> None:
        self.name = name
        self._secrets = secrets
        self._last: SecretSnapshot | None = None

    async def read(self) -> Contents:
        """What is stored now; empty when there is no such secret."""
        self._last = await self._secrets.read(self.name)
        return self._last.contents

    async def change(self, edit: Callable[[Contents], Contents]) -> Contents:
        """Stores `edit(contents)`; when others changed the secret meanwhile, reads again and edits that."""
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
        """The pending request is no more; the secret goes with it where there is no credential beside it.

        What was read before is not believed here: somebody else may have stored a credential since.
        """
        if CERTIFICATE in await self.read():
            await self.change(settled)
        else:
            await self.delete()

    async def delete(self) -> None:
        self._last = None
        await self._secrets.delete(self.name)


class OwnedSlot(Slot):
    """The slot of the owner's hub: a credential that is stored in it goes to the owner's secret as well, in this order.

    Nothing is written over the credential of another hub that became the owner meanwhile, unless this one `moves` in.
    """

    def __init__(self, slot: Slot, owner: Slot, hub: HubId, *, moves: bool) -> None:
        self.name = owner.name
        self._slot = slot
        self._owner = owner
        self._hub = hub
        self._moves = moves

    async def read(self) -> Contents:
        return await self._owner.read()

    async def change(self, edit: Callable[[Contents], Contents]) -> Contents:
        """Stores in both; what the owner's secret holds then. Raises ConflictError when the owner is another."""
        stored = credential_of(await self._slot.change(edit))
        return await self._owner.change(lambda present: self._owned(present, stored))

    def _owned(self, present: Contents, stored: Contents) -> Contents:
        owner = present.get(HUB_ID, b"").decode(errors="replace")
        if owner not in ("", self._hub) and not self._moves:
            raise ConflictError(f"hub {owner} has become the owner of this cluster, which is not {self._hub} any more")
        return owned(present, stored, self._hub)


def hub_slot(secrets: Secrets, hub: HubId) -> Slot:
    """Where the credential of a hub is kept, and a request to it while it pends."""
    return slot_at(secrets, OWNER_SECRET, hub)


def slot_at(secrets: Secrets, secret: str, hub: HubId) -> Slot:
    """Where what concerns a secret and one hub is kept: that secret's name, and the hub's."""
    return Slot(secrets, f"{secret}-{hub[:8]}")


def settled(contents: Contents) -> Contents:
    """Without a pending request."""
    return {key: content for key, content in contents.items() if key not in (PENDING_KEY, PENDING_REQUEST, REQUEST_NAME)}


def credential_of(contents: Contents) -> Contents:
    """What of a slot or of the owner's secret is the hub's credential, and nothing of the place where it lies."""
    return {key: content for key, content in settled(contents).items() if key not in (HUB_ID, EPOCH)}


def owned(present: Contents, credential: Contents, hub: HubId) -> Contents:
    """The owner's secret with the `credential` of `hub`; the epoch stays, and so does what others put there."""
    return {**without_trust(without_credential(present)), **credential, HUB_ID: hub.encode()}


def without_trust(contents: Contents) -> Contents:
    """What is left without how the hub is known: a CA of one hub is none of another's, nor of the one that takes its place."""
    return {key: content for key, content in contents.items() if key not in (KUBECONFIG, TRUST, ORIGIN)}


def without_credential(contents: Contents) -> Contents:
    """What a new credential leaves as it is; an old recovery certificate is over the old key."""
    return {key: content for key, content in contents.items() if key not in (CERTIFICATE, KEY, RECOVERY, TOKEN_FILE)}
