"""The hub's CAs on one replica: found at its start, followed while it runs, and their keys wherever they lie.

What stands in the database is acted upon: who issues, whom peers are told to trust, whom the doors let in. Each replica says
there what it acts upon and whose keys it has, and no step of a change of CA is made before all of them have followed the one
before.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import datetime, timedelta

import structlog

from hub.access.revocation_poller import RevocationPoller
from hub.api.certificateauthorities.authority import AuthorityId, AuthorityRecord, Follower, Phase, issuing
from hub.api.certificateauthorities.rotation import RotationSurvey
from hub.api.certificates.certificate import Lifetimes
from hub.api.core.event import EventRecord
from hub.controllers.certificates.rotation import Rotation
from hub.controllers.clock_guard import SETTLED, Steadiness
from hub.issuer.key_files import KeyFiles
from hub.issuer.key_vaults import SealedKeys, SecretKeys
from hub.issuer.local import CA_CERTIFICATE, LocalIssuer, make_authority
from hub.issuer.rotating import AuthoritySnapshot, RotatingIssuer
from hub.ports import KeyPair, KeyPlace, Store
from hub.registry.certificateauthorities import service as authorities
from hub.registry.certificateauthorities.service import Made, authority_id
from hub.replica.host_secrets import secret_at
from hub.replica.keys import KeyFolder, keep_authority
from hub.settings import HubSettings
from machinery import pki
from machinery.errors import ConflictError, InvalidError, MusterError
from machinery.pki.encryption import Seal
from machinery.runtime.clock import Clock

LOOK_EVERY = timedelta(seconds=1)

log = structlog.get_logger(__name__)


class KeyRing(KeyPlace):
    """The place that was chosen, before all others where a key may lie since before that: what is found there moves over."""

    def __init__(self, chosen: KeyPlace, others: Sequence[KeyPlace] = ()) -> None:
        self._chosen = chosen
        self._others = tuple(others)

    @property
    def refusal(self) -> str | None:
        return self._chosen.refusal

    async def find(self, authority: AuthorityId) -> KeyPair | None:
        pair = await self._chosen.find(authority)
        if pair is not None:
            return pair
        for other in self._others:
            pair = await other.find(authority)
            if pair is not None:
                if self.refusal is None:
                    await self._chosen.keep(authority, pair)
                    log.warning("the key of a CA was copied to where keys are kept now: remove the old one", ca=authority)
                return pair
        return None

    async def offered(self, known: Collection[AuthorityId]) -> KeyPair | None:
        return await self._chosen.offered(known)

    async def keep(self, authority: AuthorityId, pair: KeyPair) -> None:
        await self._chosen.keep(authority, pair)

    async def forget(self, authority: AuthorityId) -> None:
        """In all places."""
        for place in (self._chosen, *self._others):
            await place.forget(authority)

    async def cannot(self, known: Collection[AuthorityId]) -> str | None:
        """Why there can be no next CA now, and what an operator does about it; None: there can."""
        if self.refusal is None or await self._chosen.offered(known) is not None:
            return None
        return self.refusal

    async def made(self, known: Collection[AuthorityId], old: LocalIssuer | None, lifetimes: Lifetimes, now: datetime) -> Made:
        """The next CA, its key kept: the one that is offered, else a new one. `old` signs it across, where it may.

        Raises ConflictError: nothing can be kept, and nothing is offered.
        """
        pair = await self._chosen.offered(known)
        if pair is not None:
            return Made(pair.certificate, _crossed(old, pair.certificate))
        if self.refusal is not None:
            raise ConflictError(self.refusal)
        authority, key = make_authority(lifetimes, now)
        one = authority_id(authority.certificate)
        crossed = _crossed(old, authority.certificate)
        if isinstance(self._chosen, SealedKeys):
            return Made(authority.certificate, crossed, self._chosen.sealed(one, key))
        await self._chosen.keep(one, KeyPair(authority.certificate, key))
        return Made(authority.certificate, crossed)


def _crossed(old: LocalIssuer | None, certificate: bytes) -> bytes | None:
    try:
        return None if old is None else old.cross_sign(certificate)
    except InvalidError as error:
        log.warning("the next CA is not signed by the one before", error=error.message)
        return None


class AuthorityFollower:
    """Keeps `issuer` in line with the database, and says there how far it is."""

    def __init__(self, store: Store, issuer: RotatingIssuer, ring: KeyPlace, replica: str) -> None:
        self._store = store
        self._issuer = issuer
        self._ring = ring
        self._replica = replica
        self._said: Sequence[Follower] | None = None
        self._trouble = ""

    async def run(self) -> None:
        """Looks for ever: soon after every change, and now and then."""
        await RevocationPoller(self._store, LOOK_EVERY).run(self._look)

    async def _look(self, *, far: bool) -> bool:
        del far  # every look is at all of them
        try:
            await self.look()
        except MusterError as error:
            if error.message != self._trouble:
                log.warning("the hub's CAs cannot be followed", error=error.message)
            self._trouble = error.message
            return False
        self._trouble = ""
        return True

    async def look(self) -> None:
        """One look. Raises UnavailableError; what was known before is acted upon then."""
        everyone = tuple(await self._store.look(authorities.all_of))
        standing = AuthoritySnapshot(everyone, await self._keys(everyone))
        before = {each.id: each.phase for each in self._issuer.standing.authorities}
        if self._issuer.take(standing):
            self._tell(before, standing)
        known = [Follower(self._replica, each.id, each.phase, each.id in standing.keys) for each in everyone]
        if known != self._said:
            await self._store.run(authorities.follow, self._replica, known)
            self._said = known

    async def _keys(self, everyone: Sequence[AuthorityRecord]) -> Mapping[AuthorityId, LocalIssuer]:
        """Of all that are not retired: an old one signs revocation lists still. One that is missing is looked for again."""
        here = self._issuer.standing.keys
        wanted = [each.id for each in everyone if each.phase is not Phase.RETIRED]
        found = {one: here[one] if one in here else await self._found(one) for one in wanted}
        return {one: key for one, key in found.items() if key is not None}

    async def _found(self, authority: AuthorityId) -> LocalIssuer | None:
        pair = await self._ring.find(authority)
        return None if pair is None else LocalIssuer(pki.CertificateAuthority(pair.certificate, pair.key))

    def _tell(self, before: Mapping[AuthorityId, Phase], standing: AuthoritySnapshot) -> None:
        for each in standing.authorities:
            if before and before.get(each.id) is not each.phase:
                log.info(
                    "a CA of the hub is in another phase", ca=each.id, phase=each.phase.value, key=each.id in standing.keys
                )


def rotation_of(
    issuer: RotatingIssuer, ring: KeyRing, settings: HubSettings, lifetimes: Lifetimes, clock: Clock
) -> Callable[[Store, Callable[[EventRecord], None]], Rotation]:
    """What changes the CA while this replica leads: for each term anew."""

    async def make(seen: RotationSurvey, old: AuthorityRecord) -> Made:
        signs = None if old.is_given_up else issuer.standing.keys.get(old.id)
        return await ring.made([each.id for each in seen.authorities], signs, lifetimes, clock.now())

    return lambda store, tell: Rotation(
        store,
        make,
        ring,
        patience=settings.ca_rotation_patience,
        recovery=lifetimes.recovery,
        api_version=f"hub.{settings.api_group_suffix}/v1alpha1",
        tell=tell,
        steady=Steadiness(clock, min(SETTLED, settings.ca_rotation_patience)),
    )


async def ring_of(settings: HubSettings, keys: KeyFolder, store: Store, seal: Seal, stack: AsyncExitStack) -> KeyRing:
    """The place that the settings choose, and where keys may lie from before. What is opened for it closes with `stack`."""
    in_files = KeyFiles(keys.path, read_only=keys.given or not keys.alone)
    sealed = SealedKeys(store, seal)
    if settings.ca_key_place == "file":
        return KeyRing(in_files, (sealed,))
    if settings.ca_key_place == "database":
        return KeyRing(sealed, (in_files,))
    secret = await secret_at(settings.ca_key_secret or "", settings, stack)
    return KeyRing(SecretKeys(secret), (in_files, sealed))


async def open_authorities(
    keys: KeyFolder, store: Store, ring: KeyRing, *, in_files: bool, lifetimes: Lifetimes, clock: Clock, replica: str
) -> tuple[RotatingIssuer, AuthorityFollower]:
    """The hub's CAs as they stand; the first is made at the first start of all. Raises InvalidError, UnavailableError.

    `in_files`: that is where the keys belong. A CA in files that the database does not know yet is taken in either way.
    """
    if not await store.read(authorities.all_of):
        await _begin(keys, store, ring, in_files=in_files, lifetimes=lifetimes, now=clock.now())
    issuer = RotatingIssuer()
    follower = AuthorityFollower(store, issuer, ring, replica)
    await follower.look()
    one = issuing(issuer.standing.authorities)
    if one is not None and one.id not in issuer.standing.keys:
        if in_files:
            await keep_authority(keys, store, lifetimes, clock.now())  # which tells what is wrong with the files
        raise InvalidError(
            f"the key of the CA that issues, {one.id}, is not in {keys} nor where the hub keeps keys: {keys.remedy}"
        )
    return issuer, follower


async def _begin(keys: KeyFolder, store: Store, ring: KeyRing, *, in_files: bool, lifetimes: Lifetimes, now: datetime) -> None:
    if in_files or keys.given or keys.directory.read(CA_CERTIFICATE) is not None:
        first = await keep_authority(keys, store, lifetimes, now)
        await store.run(authorities.adopt, Made(first.trust_bundle, None))
        return
    await store.run(authorities.adopt, await ring.made((), None, lifetimes, now))
