"""The owner's secret: the hub that holds the agent's session, the epoch and the credential.

Before the agent connects to a new owner, it writes the secret once. The write stores the hub's id, its credential and a higher
epoch, and fails if the secret has changed since it was read. So the agent never connects to two hubs with the same epoch, even
after a crash. If two processes of the agent write, one write fails, and its process reads the secret again.

OCM's agent writes the secret without a hub's id. Then the hub in the secret's kubeconfig is the owner.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime

import structlog

from machinery.errors import ConflictError, InvalidError, MusterError
from machinery.identity import HubId
from machinery.runtime.clock import Clock
from spoke.credentials.kubeconfigs import stored_hub, view_stored
from spoke.credentials.slot import OWNER_SECRET, Contents, Slot, credential_of, hub_slot, owned, without_request
from spoke.domain.credential import CERTIFICATE, EPOCH, HUB_ID, damage
from spoke.domain.hubs import is_accepted_epoch, next_epoch
from spoke.ports.cluster import Secrets

log = structlog.get_logger(__name__)


def owner_of(contents: Contents) -> HubId | None:
    """Return the stored id of the owner, else the id of the hub in the kubeconfig. None: no id, and no readable credential."""
    if named := contents.get(HUB_ID, b"").decode(errors="replace").strip():
        return HubId(named)
    with suppress(InvalidError):
        return stored_hub(contents) if CERTIFICATE in contents else None
    return None


async def agreed(owner: Slot, slot: Slot, hub: HubId, *, held: Contents, kept: Contents) -> Contents:
    """Store the newer one of two credentials in the owner's secret and in the slot. Return the content of the owner's secret.

    `held`: the content of the owner's secret; `kept`: the content of the slot. If another hub is the owner, nothing changes.
    The contents differ after a crash between the writes, and if the owner's secret was written by OCM's agent, deleted or
    restored from a backup.
    """
    if owner_of(held) not in (None, hub):
        return held
    ours, theirs = _begun(held), _begun(kept)
    if theirs is not None and (ours is None or theirs > ours) and owner_of(credential_of(kept)) == hub:
        finding = damage(view_stored(held))
        because = finding.message if finding is not None else "the stored credential is an older one"
        log.warning("credential.restored", secret=owner.name, source=slot.name, because=because)
        return await owner.change(lambda present: owned(present, credential_of(kept), hub))
    if ours is None:
        return held
    if kept.get(CERTIFICATE) != held[CERTIFICATE]:
        await slot.change(lambda present: {**credential_of(held), **_pending_of(present)})
    if HUB_ID not in held:
        return await owner.change(lambda present: {**present, HUB_ID: hub.encode()})
    return held


def _pending_of(contents: Contents) -> Contents:
    return {key: content for key, content in contents.items() if key not in without_request(contents)}


def _begun(contents: Contents) -> datetime | None:
    """Return the start of the credential's validity; None if there is no complete credential."""
    seen = view_stored(contents)
    return seen.chain[0].not_before if seen.chain and damage(seen) is None else None


@dataclass(frozen=True, slots=True)
class Owner:
    contents: Contents = field(default_factory=dict, repr=False)
    hub_id: HubId | None = None
    epoch: int = 0

    def same_order(self, other: "Owner") -> bool:
        return (self.hub_id, self.epoch) == (other.hub_id, other.epoch)


class OwnerConflictError(MusterError):
    """Another process of this agent has changed the owner's secret."""

    reason = "Conflict"


class OwnerRecord:
    """Reads and changes the owner's secret. `hub_clock` returns the hub's time, `clock` the time of this machine."""

    def __init__(self, secrets: Secrets, hub_clock: Clock, clock: Clock) -> None:
        self._secrets = secrets
        self._hub_clock = hub_clock
        self._clock = clock

    async def read(self) -> Owner:
        return _parsed((await self._secrets.read(OWNER_SECRET)).contents)

    async def give(self, known: Owner, hub: HubId, credential: Contents, *, reported_epoch: int = 0) -> Owner:
        """Make `hub` the owner. Increase the epoch if another hub was the owner, or if hubs do not accept the stored epoch.

        `reported_epoch`: the highest epoch that a hub has reported. Raises OwnerConflictError if another process has stored a
        newer owner than `known`. A deleted secret, or a secret restored from a backup, is overwritten.
        """
        same = known.epoch and hub == known.hub_id and self.has_accepted_epoch(known)
        epoch = known.epoch if same else self._above(known, reported_epoch)
        if known.hub_id is not None and hub != known.hub_id:
            await self._keep(known)
        return await self._write(known, lambda present: owned(present, credential_of(credential), hub), epoch)

    async def raise_epoch(self, known: Owner, *, reported_epoch: int = 0) -> Owner:
        """Raise the epoch above `reported_epoch`. Keep owner and credential. Raises OwnerConflictError like `give`.

        If the secret was deleted, or a restored secret names an earlier owner, it is rewritten from `known`.
        """
        if known.hub_id is None:
            raise ConflictError("no owner is stored whose epoch could be raised")
        hub = known.hub_id

        def same(present: Contents) -> Contents:
            return present if owner_of(present) == hub else owned(present, credential_of(known.contents), hub)

        return await self._write(known, same, self._above(known, reported_epoch))

    def has_accepted_epoch(self, known: Owner) -> bool:
        """Whether hubs accept the epoch in `known`. They refuse one that was stored while the agent's clock was far ahead."""
        return is_accepted_epoch(known.epoch, self._clock.now())

    async def confirm(self, known: Owner) -> None:
        """Raise OwnerConflictError if another process has stored a newer owner than `known`. An older owner raises nothing."""
        _check_owner(known, await self.read())

    def _above(self, known: Owner, reported_epoch: int) -> int:
        return next_epoch(known.epoch, reported_epoch, self._hub_clock.now(), self._clock.now())

    async def _write(self, known: Owner, edit: Callable[[Contents], Contents], epoch: int) -> Owner:
        def checked(present: Contents) -> Contents:
            _check_owner(known, _parsed(present))
            return {**edit(present), EPOCH: str(epoch).encode()}

        return _parsed(await Slot(self._secrets, OWNER_SECRET).change(checked))

    async def _keep(self, known: Owner) -> None:
        """Store the credential of the previous owner in its slot, unless the slot has a newer credential."""
        chain = view_stored(known.contents).chain
        if known.hub_id is None or not chain:
            return
        slot = hub_slot(self._secrets, known.hub_id)
        kept = view_stored(await slot.read()).chain
        if not kept or kept[0].not_before < chain[0].not_before:
            await slot.change(lambda present: {**credential_of(known.contents), **_pending_of(present)})


def _check_owner(known: Owner, present: Owner) -> None:
    older = present.hub_id is None or present.epoch < known.epoch
    if not older and not present.same_order(known):
        raise OwnerConflictError(
            f"another copy of this agent has made the hub {present.hub_id} the owner, with the epoch {present.epoch}"
        )


def _parsed(contents: Contents) -> Owner:
    text = contents.get(EPOCH, b"").decode(errors="replace").strip()
    return Owner(contents, owner_of(contents), int(text) if text.isdecimal() else 0)
