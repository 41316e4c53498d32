"""The hub's CAs on one replica, with keys from the key storage. The replica opens them at its start and follows changes.

The replica applies the state in the database: the issuing CA, the trust bundle of peers, and the CAs that the doors accept. It
records in the database which state it applies and which keys it has. A CA begins to issue, and a CA that is not compromised
becomes Retiring, only when all replicas apply the CA's previous phase.
"""

from collections.abc import Collection, Sequence
from contextlib import AsyncExitStack
from datetime import datetime, timedelta

import structlog

from hub.access.revocation_poller import RevocationPoller
from hub.api.certificateauthorities.authority import AuthorityId, AuthorityRecord, Follower, Phase, issuing
from hub.api.certificateauthorities.rotation import RotationSnapshot
from hub.api.certificates import Lifetimes
from hub.controllers.certificates.rotation import Make
from hub.issuer.key_storage import KeyFiles, SealedKeys, SecretKeys
from hub.issuer.local import CA_CERTIFICATE, LocalIssuer, make_authority
from hub.issuer.rotating import AuthoritySnapshot, RotatingIssuer
from hub.ports import Store
from hub.ports.identities import KeyPair, KeyPlace
from hub.registry.certificateauthorities import service as authorities
from hub.registry.certificateauthorities.service import NewAuthority, authority_id
from hub.replica.keys import KeyFolder, keep_authority
from hub.settings import HubSettings
from machinery import pki
from machinery.errors import ConflictError, InvalidError
from machinery.pki.encryption import Seal
from machinery.runtime.clock import Clock

LOOK_EVERY = timedelta(seconds=1)

log = structlog.get_logger(__name__)


class KeyPlaces(KeyPlace):
    """The configured key storage, and other places with earlier keys, which are copied to the configured storage."""

    def __init__(self, chosen: KeyPlace, others: Sequence[KeyPlace] = ()) -> None:
        self._chosen = chosen
        self._others = tuple(others)

    @property
    def refusal(self) -> str | None:
        return self._chosen.refusal

    async def find(self, authority: AuthorityId) -> KeyPair | None:
        for place in (self._chosen, *self._others):
            pair = await place.find(authority)
            if pair is not None:
                if place is not self._chosen and self.refusal is None:
                    await self._chosen.keep(authority, pair)
                    log.warning("the key of a CA was copied to the configured key storage: remove the old copy", ca=authority)
                return pair
        return None

    async def offered(self, known: Collection[AuthorityId]) -> KeyPair | None:
        return await self._chosen.offered(known)

    async def keep(self, authority: AuthorityId, pair: KeyPair) -> None:
        await self._chosen.keep(authority, pair)

    async def forget(self, authority: AuthorityId) -> None:
        for place in (self._chosen, *self._others):
            await place.forget(authority)

    async def cannot(self, known: Collection[AuthorityId]) -> str | None:
        """Return why no next CA can be made now, with advice for the operator; None if a CA can be made."""
        if self.refusal is None or await self._chosen.offered(known) is not None:
            return None
        return self.refusal

    async def made(
        self, known: Collection[AuthorityId], old: LocalIssuer | None, lifetimes: Lifetimes, now: datetime
    ) -> NewAuthority:
        """Make the next CA, with the key that `offered` returns or else a new key. `old` cross-signs the CA, if possible.

        A new key is stored, or is sealed in the result. Raises ConflictError if no key is offered and no key can be stored.
        """
        pair, sealed = await self._chosen.offered(known), None
        if pair is None:
            if self.refusal is not None:
                raise ConflictError(self.refusal)
            authority, key = make_authority(lifetimes, now)
            pair, one = KeyPair(authority.certificate, key), authority_id(authority.certificate)
            if isinstance(self._chosen, SealedKeys):
                sealed = self._chosen.sealed(one, key)
            else:
                await self._chosen.keep(one, pair)
        cross_signed = None
        if old is not None:
            try:
                cross_signed = old.cross_sign(pair.certificate)
            except InvalidError as error:
                log.warning("the next CA cannot be cross-signed by the current one", error=error.message)
        return NewAuthority(pair.certificate, cross_signed, sealed)


class AuthorityFollower:
    """Keeps `issuer` equal to the state in the database, and records the replica's progress in the database."""

    def __init__(self, store: Store, issuer: RotatingIssuer, places: KeyPlace, replica: str) -> None:
        self._store = store
        self._issuer = issuer
        self._places = places
        self._replica = replica
        self._recorded: Sequence[Follower] | None = None

    async def run(self) -> None:
        await RevocationPoller(self._store, "the hub's CAs cannot be followed", poll=LOOK_EVERY).run(self.look)

    async def look(self, *, far: bool = False) -> None:
        """Check all CAs once. `far` has no effect. Raises UnavailableError; then the previous state stays in use."""
        del far
        everyone = tuple(await self._store.look(lambda tx: tx.authorities.all()))
        before, keys = self._issuer.snapshot, dict[AuthorityId, LocalIssuer]()
        for each in everyone:  # keys of old CAs still sign revocation lists; missing keys are looked up each time
            if each.phase is Phase.RETIRED:
                continue
            if each.id in before.keys:
                keys[each.id] = before.keys[each.id]
            elif (pair := await self._places.find(each.id)) is not None:
                keys[each.id] = LocalIssuer(pki.CertificateAuthority(pair.certificate, pair.key))
        phases = {each.id: each.phase for each in before.authorities}
        if self._issuer.take(AuthoritySnapshot(everyone, keys)) and phases:
            for each in everyone:
                if phases.get(each.id) is not each.phase:
                    log.info(
                        "this replica applies a new phase of a CA", ca=each.id, phase=each.phase.value, key=each.id in keys
                    )
        known = [Follower(self._replica, each.id, each.phase, each.id in keys) for each in everyone]
        if known != self._recorded:
            await self._store.run(lambda tx: tx.authorities.follow(self._replica, known))
            self._recorded = known


def authority_provider(issuer: RotatingIssuer, places: KeyPlaces, lifetimes: Lifetimes, clock: Clock) -> Make:
    """Return the function that creates the next CA. The previous CA cross-signs it, unless the previous CA is compromised."""

    async def make(seen: RotationSnapshot, old: AuthorityRecord) -> NewAuthority:
        signs = None if old.is_given_up else issuer.snapshot.keys.get(old.id)
        return await places.made([each.id for each in seen.authorities], signs, lifetimes, clock.now())

    return make


async def key_places_of(settings: HubSettings, keys: KeyFolder, store: Store, seal: Seal, stack: AsyncExitStack) -> KeyPlaces:
    """Return the key storage of the settings, with other places where earlier keys may be. `stack` closes opened resources."""
    in_files = KeyFiles(keys.path, read_only=keys.given or not keys.alone)
    sealed = SealedKeys(store, seal)
    if settings.ca_key_place == "file":
        return KeyPlaces(in_files, (sealed,))
    if settings.ca_key_place == "database":
        return KeyPlaces(sealed, (in_files,))
    from hub.replica.host_secrets import open_secret  # noqa: PLC0415 - 60 MB that only such a hub needs

    secret = await open_secret(settings.ca_key_secret or "", settings, stack)
    return KeyPlaces(SecretKeys(secret), (in_files, sealed))


async def open_authorities(
    keys: KeyFolder, store: Store, places: KeyPlaces, *, in_files: bool, lifetimes: Lifetimes, clock: Clock, replica: str
) -> tuple[RotatingIssuer, AuthorityFollower]:
    """Open the hub's CAs; the first start makes the first CA. Raises InvalidError, UnavailableError.

    `in_files`: whether keys are stored in files. If not, the first start still uses a CA that is in files.
    """
    if not await store.read(lambda tx: tx.authorities.all()):
        await _begin(keys, store, places, in_files=in_files, lifetimes=lifetimes, now=clock.now())
    issuer = RotatingIssuer()
    follower = AuthorityFollower(store, issuer, places, replica)
    await follower.look()
    one = issuing(issuer.snapshot.authorities)
    if one is not None and one.id not in issuer.snapshot.keys:
        if in_files:
            await keep_authority(keys, store, lifetimes, clock.now())  # raises the specific error of the files
        raise InvalidError(
            f"the key of the issuing CA {one.id} is neither in {keys} nor in the configured key storage: {keys.remedy}"
        )
    return issuer, follower


async def _begin(
    keys: KeyFolder, store: Store, places: KeyPlaces, *, in_files: bool, lifetimes: Lifetimes, now: datetime
) -> None:
    if in_files or keys.given or keys.directory.read(CA_CERTIFICATE) is not None:
        first = await keep_authority(keys, store, lifetimes, now)
        await store.run(authorities.adopt, NewAuthority(first.trust_bundle, None))
        return
    await store.run(authorities.adopt, await places.made((), None, lifetimes, now))
