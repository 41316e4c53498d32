"""The owner's secret: the hub that holds the agent's session, the epoch and the credential.

Each change of owner is one write with the read version as precondition. It names the hub, stores its credential and raises the
epoch, before the hub is dialled. So no two hubs are dialled with one epoch, even after a crash; and of two copies of the agent
one fails and finds the other owner.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from machinery.errors import AlreadyExistsError, ConflictError, MusterError
from machinery.identity import HubId
from machinery.runtime.clock import Clock
from spoke.credentials.kubeconfigs import view_stored
from spoke.credentials.reconciliation import owner_of
from spoke.credentials.slot import ATTEMPTS, OWNER_SECRET, Contents, credential_of, hub_slot, owned, settled
from spoke.domain.credential import EPOCH, HUB_ID, present_keys
from spoke.domain.hubs import keeps, next_epoch
from spoke.ports import Secrets

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Owner:
    """The content of the owner's secret."""

    contents: Contents = field(default_factory=dict, repr=False)
    hub_id: HubId | None = None
    epoch: int = 0

    def same_order(self, other: "Owner") -> bool:
        return (self.hub_id, self.epoch) == (other.hub_id, other.epoch)


class OvertakenError(MusterError):
    """Another copy of this agent has changed the owner's secret."""

    reason = "Conflict"


class OwnerRecord:
    """Reads and changes the owner's secret. `hub_clock` shows the hub's time, `clock` this machine's."""

    def __init__(self, secrets: Secrets, hub_clock: Clock, clock: Clock) -> None:
        self._secrets = secrets
        self._hub_clock = hub_clock
        self._clock = clock

    async def read(self) -> Owner:
        return _seen((await self._secrets.read(OWNER_SECRET)).contents)

    async def give(self, known: Owner, hub: HubId, credential: Contents, *, reported_epoch: int = 0) -> Owner:
        """Make `hub` the owner, with a higher epoch if it was not; `reported_epoch`: the highest epoch that a hub knows.

        Raises OvertakenError unless the secret equals `known` or is older. A deleted secret, or one restored from a backup, is
        overwritten.
        """
        same = known.epoch and hub == known.hub_id and self.keeps(known)
        epoch = known.epoch if same else self._above(known, reported_epoch)
        if known.hub_id is not None and hub != known.hub_id:
            await self._keep(known)
        return await self._write(known, lambda present: owned(present, credential_of(credential), hub), epoch)

    async def raise_epoch(self, known: Owner, *, reported_epoch: int = 0) -> Owner:
        """Raise the epoch of the same owner above a hub's; keep the stored credential. Raises OvertakenError as `give` does.

        A secret that was deleted, or restored from the time of another owner, is rewritten from `known`.
        """
        if known.hub_id is None:
            raise ConflictError("there is no owner whose epoch could be raised")
        hub = known.hub_id

        def same(present: Contents) -> Contents:
            return present if owner_of(present) == hub else owned(present, credential_of(known.contents), hub)

        return await self._write(known, same, self._above(known, reported_epoch))

    def keeps(self, known: Owner) -> bool:
        """Whether hubs accept its epoch; otherwise an earlier version or a wrong clock produced it."""
        return keeps(known.epoch, self._clock.now())

    async def confirm(self, known: Owner) -> None:
        """Raises OvertakenError when the secret differs."""
        _check(known, await self.read())

    def _above(self, known: Owner, reported_epoch: int) -> int:
        return next_epoch(known.epoch, reported_epoch, self._hub_clock.now(), self._clock.now())

    async def _write(self, known: Owner, edit: Callable[[Contents], Contents], epoch: int) -> Owner:
        for _ in range(ATTEMPTS):
            present = await self._secrets.read(OWNER_SECRET)
            _check(known, _seen(present.contents))
            contents = {**edit(present.contents), EPOCH: str(epoch).encode()}
            try:
                written = await self._secrets.write(OWNER_SECRET, contents, present.version)
            except (ConflictError, AlreadyExistsError):
                continue  # written concurrently; the next read shows by whom
            return _seen(written.contents)
        raise ConflictError("the owner's secret is written by others all the time")

    async def _keep(self, known: Owner) -> None:
        """Keep the credential of the previous owner in its slot."""
        if known.hub_id is None or not _whole(known.contents):
            return
        slot = hub_slot(self._secrets, known.hub_id)
        ours = credential_of(known.contents)
        if _begins(credential_of(await slot.read())) < _begins(ours):
            await slot.change(lambda present: {**ours, **_pending(present)})


def _check(known: Owner, present: Owner) -> None:
    older = present.hub_id is None or present.epoch < known.epoch
    if not older and not present.same_order(known):
        raise OvertakenError(
            f"another copy of this agent has made the hub {present.hub_id} the owner, with the epoch {present.epoch}"
        )


def _seen(contents: Contents) -> Owner:
    text = contents.get(EPOCH, b"").decode(errors="replace").strip()
    return Owner(contents, owner_of(contents), int(text) if text.isdecimal() else 0)


def _pending(contents: Contents) -> Contents:
    kept = settled(contents)
    return {key: content for key, content in contents.items() if key not in kept}


def _whole(contents: Contents) -> bool:
    return bool(present_keys(contents) - {HUB_ID, EPOCH}) and view_stored(contents).chain is not None


def _begins(contents: Contents) -> float:
    chain = view_stored(contents).chain
    return chain[0].not_before.timestamp() if chain else 0.0
