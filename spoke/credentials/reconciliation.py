"""Owner's secret and slots as they are found: one credential in two places, and what the releases before left behind.

Earlier releases kept the credential in the owner's secret alone, without saying of which hub it is, and a slot only while a
request was pending. Such a secret is taken over as it is; nobody registers anew for it.
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
    """The hub whose credential lies in the owner's secret; None: there is none, or it cannot be read."""
    if named := contents.get(HUB_ID, b"").decode(errors="replace").strip():
        return HubId(named)
    with suppress(InvalidError):
        return stored_hub(contents) if CERTIFICATE in contents else None
    return None


async def agreed(owner: Slot, slot: Slot, hub: HubId, *, held: Contents, kept: Contents) -> Contents:
    """The owner's secret, where `hub` is the owner or nobody is, with the newer credential of `held` (there) and `kept` (slot).

    Where one of the two is missing or older it is written: after a crash between the two writes, after an upgrade, and when
    somebody has deleted the owner's secret or put back an old one.
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
    """Since when the credential is good; None: there is no whole one."""
    seen = view_stored(contents)
    return seen.chain[0].not_before if seen.chain and damage(seen) is None else None
