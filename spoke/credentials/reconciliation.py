"""Reconciles the owner's secret and a slot: one credential in two places, and the layout of earlier releases.

Earlier releases stored the credential only in the owner's secret, without the hub's id, and a slot only while a request was
pending. Such a secret is adopted; the agent does not register again.
"""

from contextlib import suppress
from datetime import datetime

import structlog

from machinery.errors import InvalidError
from machinery.identity import HubId
from spoke.credentials.kubeconfigs import stored_hub, view_stored
from spoke.credentials.slot import Contents, Slot, credential_of, owned, settled
from spoke.domain.credential import CERTIFICATE, HUB_ID, damage

log = structlog.get_logger(__name__)


def owner_of(contents: Contents) -> HubId | None:
    """The hub whose credential is in the owner's secret; None when there is none or it is unreadable."""
    if named := contents.get(HUB_ID, b"").decode(errors="replace").strip():
        return HubId(named)
    with suppress(InvalidError):
        return stored_hub(contents) if CERTIFICATE in contents else None
    return None


async def agreed(owner: Slot, slot: Slot, hub: HubId, *, held: Contents, kept: Contents) -> Contents:
    """The owner's secret with the newer credential of `held` (there) and `kept` (slot), unless another hub is the owner.

    A missing or older copy is written: after a crash between the two writes, after an upgrade, and when the owner's secret was
    deleted or restored from a backup.
    """
    if owner_of(held) not in (None, hub):
        return held
    ours, theirs = _begun(held), _begun(kept)
    if theirs is not None and (ours is None or theirs > ours) and owner_of(credential_of(kept)) == hub:
        log.warning("credential.restored", secret=owner.name, source=slot.name, because=_wrong(held))
        return await owner.change(lambda present: owned(present, credential_of(kept), hub))
    if ours is None:
        return held
    if kept.get(CERTIFICATE) != held[CERTIFICATE]:
        await slot.change(lambda present: {**credential_of(held), **_pending_of(present)})
    if HUB_ID not in held:
        return await owner.change(lambda present: {**present, HUB_ID: hub.encode()})
    return held


def _pending_of(contents: Contents) -> Contents:
    return {key: content for key, content in contents.items() if key not in settled(contents)}


def _wrong(held: Contents) -> str:
    finding = damage(view_stored(held))
    return finding.message if finding is not None else "the stored credential is an older one"


def _begun(contents: Contents) -> datetime | None:
    """Begin of the credential's validity; None when there is no complete one."""
    seen = view_stored(contents)
    return seen.chain[0].not_before if seen.chain and damage(seen) is None else None
