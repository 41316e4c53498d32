"""The credentials with which add-ons talk to the hub, one per registration that the hub describes.

Rules (OCM): the secret is `<addon>-hub-kubeconfig` or `<addon>-<signer>-client-cert` in the add-on's install namespace; a
registration that changes gets a new credential; one that is gone loses its secret; an add-on that is being deleted keeps what
it has, because its agent may need it to clean up. Beyond them: what is to be replaced stays until its successor is there, be it
for another subject, by another driver, in another place or at another hub.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import lru_cache

import structlog

from machinery.client.kubeconfig import with_authority
from machinery.errors import InvalidError
from machinery.identity import AddOnName
from machinery.meta.conditions import CERTIFICATE_ROTATED, FALSE, Condition
from machinery.runtime.clock import Clock
from machinery.runtime.controller import Reconciler
from spoke.credentials.slot import Slot
from spoke.domain.addon import CSR, RESERVED, AddOn, AddOnRegistration, secret_name
from spoke.domain.renewal import RequestedRenewal
from spoke.ports import HubClient, HubSession, RefusedSecretError
from spoke.registration.addon_credentials import AddOnContext, AddOnCredential, RefusedError, RenewalRequest, credential_for

REFUSED_AGAIN = timedelta(minutes=1)
"""Until a secret that the agent may not touch is looked at again."""

Place = tuple[str, bool]
"""Install namespace, and whether that is in the management cluster."""

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Running:
    fingerprint: str
    credential: AddOnCredential
    place: Place
    kubeconfig: bytes
    left: Mapping[Place, Slot] = field(default_factory=dict)
    """Secrets in other places, which go when the new one is there."""


@dataclass(slots=True)
class AddOnCredentials:
    """The add-on credentials under care: they live on when a session ends."""

    running: dict[tuple[AddOnName, str], _Running] = field(default_factory=dict)


class AddOnCertificates(Reconciler[AddOnName]):
    """Keeps the credentials of add-ons on one session. Key: the add-on."""

    def __init__(
        self, client: HubClient, session: HubSession, registered: AddOnContext, certificates: AddOnCredentials, hub_clock: Clock
    ) -> None:
        self._client = client
        self._session = session
        self._registered = registered
        self._running = certificates.running
        self._clock = hub_clock
        self._addons: dict[AddOnName, AddOn] = {}
        self._noted: set[AddOnName] = set()
        self._asked: RenewalRequest | None = None
        self._refused: dict[tuple[AddOnName, str], str] = {}

    def set_addons(self, addons: Iterable[AddOn], renewal: RequestedRenewal | None = None) -> None:
        """The add-ons that the hub has for this cluster; `renewal`: it wants certificates renewed ahead of their time."""
        self._addons = {addon.name: addon for addon in addons}
        if renewal is None or self._asked is None or self._asked.renewal.addons_before != renewal.addons_before:
            self._asked = RenewalRequest(renewal, self._clock.now()) if renewal is not None else None

    async def know_hub_by(self, kubeconfig: bytes) -> None:
        """Every kubeconfig of this hub is this one from now on. Raises MusterError: not all of them are."""
        self._registered = replace(self._registered, kubeconfig=kubeconfig)
        for running in tuple(self._running.values()):
            await self._know(running)

    async def _know(self, running: _Running) -> None:
        if running.kubeconfig != self._registered.kubeconfig:
            await running.credential.know_hub_by(self._registered.kubeconfig)
            running.kubeconfig = self._registered.kubeconfig

    @property
    def names(self) -> tuple[AddOnName, ...]:
        """The add-ons that there are, and those of which something is left."""
        return tuple(dict.fromkeys((*self._addons, *(addon for addon, _ in self._running))))

    async def reconcile(self, key: AddOnName) -> timedelta | None:
        addon = self._addons.get(key)
        if addon is not None and not addon.deleting and await self._note_driver(addon):
            return None  # the hub tells what became of it
        wanted = {secret_name(addon.name, entry): self._settled(entry) for entry in addon.registrations} if addon else {}
        if addon is None or not addon.deleting:
            for known, running in tuple(self._running.items()):
                if known[0] == key and known[1] not in wanted:
                    await self._drop(known, running)
        if addon is None:
            return None
        naps = [await self._permitted(addon, secret, entry) for secret, entry in wanted.items()]
        return min(naps, default=None)

    async def _permitted(self, addon: AddOn, secret: str, entry: AddOnRegistration) -> timedelta:
        """One look at one credential. A secret that the agent may not touch is reported on the add-on, once."""
        key = (addon.name, secret)
        try:
            nap = await self._keep(addon, await self._run(addon, secret, entry))
        except RefusedSecretError as error:
            if self._refused.get(key) != error.message:
                self._refused[key] = error.message
                log.warning("addon.secret_refused", addon=addon.name, secret=secret, error=error.message)
                await self._tell(addon, Condition(CERTIFICATE_ROTATED, FALSE, "SecretRefused", error.message))
            return REFUSED_AGAIN
        self._refused.pop(key, None)
        return nap

    async def _note_driver(self, addon: AddOn) -> bool:
        """Notes on the hub how this agent makes the add-on identify itself; a hub that does not keep it is told once."""
        wanted = self._registered.care.driver
        if not wanted or addon.name in self._noted or all(e.driver == wanted for e in addon.registrations if e.for_hub):
            return False
        self._noted.add(addon.name)
        await self._session.report_addon(addon.name, (), driver=wanted)
        log.info("addon.driver_noted", addon=addon.name, driver=wanted)
        return True

    def _settled(self, entry: AddOnRegistration) -> AddOnRegistration:
        """The registration with the driver by which it is served here."""
        return replace(entry, driver=self._registered.care.driver or entry.driver or CSR) if entry.for_hub else entry

    async def _run(self, addon: AddOn, secret: str, entry: AddOnRegistration) -> _Running:
        """Raises RefusedSecretError; what ran before stays as it is then."""
        if secret.startswith(RESERVED):
            raise RefusedSecretError(f'the name "{secret}" is reserved for the agent: name the add-on otherwise')
        known = (addon.name, secret)
        before, fingerprint = self._running.get(known), _fingerprint(addon, entry, self._registered)
        if before is not None and before.fingerprint == fingerprint:
            await self._know(before)
            return before
        credential, place = credential_for(addon, entry, secret, self._registered), _place(addon)
        left: dict[Place, Slot] = {}
        if before is not None:
            await before.credential.forget()
            left = {**before.left, before.place: before.credential.target}
            left.pop(place, None)
        self._running[known] = _Running(fingerprint, credential, place, self._registered.kubeconfig, left)
        return self._running[known]

    async def _keep(self, addon: AddOn, running: _Running) -> timedelta:
        """One look at one credential; returns when to look again."""
        try:
            looked = await running.credential.look(self._client, addon, self._clock, self._asked)
        except RefusedError as refused:
            await self._tell(addon, refused.told)
            raise
        if looked.told is not None:
            await self._tell(addon, looked.told)
        if looked.there:
            for each in running.left.values():
                await _deleted(each)
            running.left = {}
        return looked.nap

    async def _drop(self, known: tuple[AddOnName, str], running: _Running) -> None:
        for each in (running.credential.target, *running.left.values()):
            await _deleted(each)
        await running.credential.forget()
        del self._running[known]
        log.info("addon.secret_deleted", addon=known[0], secret=known[1])

    async def _tell(self, addon: AddOn, condition: Condition) -> None:
        await self._session.report_addon(addon.name, (condition,))


async def _deleted(slot: Slot) -> None:
    try:
        await slot.delete()
    except RefusedSecretError as error:
        log.warning("addon.secret_kept", secret=slot.name, because=error.message)


def _place(addon: AddOn) -> Place:
    return addon.namespace, addon.hosted


def _fingerprint(addon: AddOn, entry: AddOnRegistration, shared: AddOnContext) -> str:
    """Changes with whatever makes another credential necessary."""
    parts = (
        entry.driver,
        entry.signer_name,
        entry.user,
        sorted(entry.groups),
        sorted(entry.organization_units),
        _place(addon),
        shared.hub_id,
        _whoever_vouches(shared.kubeconfig) if entry.for_hub else b"",
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()


@lru_cache(maxsize=16)
def _whoever_vouches(kubeconfig: bytes) -> bytes:
    """The kubeconfig without the hub's CAs: these change, and the credential stays. What cannot be read is itself."""
    try:
        return with_authority(kubeconfig, b"")
    except InvalidError:
        return kubeconfig
