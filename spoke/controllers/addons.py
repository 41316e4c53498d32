"""Add-ons of this cluster: their availability according to their Leases, and their credentials for the hub.

Rules for credentials (OCM):

- The secret is `<addon>-hub-kubeconfig` or `<addon>-<signer>-client-cert` in the add-on's install namespace.
- A changed entry of the add-on's `status.registrations` gets a new credential. The secret of a removed entry is deleted.
- An add-on that is being deleted keeps its secrets, because the add-on's agent may need them to clean up.

In addition to OCM's rules, the old credential stays until the new credential is stored, also when the subject, driver,
namespace or hub changes.
"""

import hashlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import timedelta
from functools import lru_cache

import structlog

from machinery.errors import ForbiddenError, InvalidError, MusterError, NotFoundError
from machinery.identity import AddOnName
from machinery.meta.conditions import CERTIFICATE_ROTATED, FALSE, Condition
from machinery.runtime.clock import Clock
from machinery.runtime.controller import Reconciler
from spoke.credentials.kubeconfigs import with_authority
from spoke.credentials.slot import Slot
from spoke.domain.addon import CSR, CUSTOMIZED, GRACE, RESERVED, AddOn, AddOnRegistration, lease_condition, secret_name
from spoke.domain.schedule import RequestedRenewal
from spoke.ports.cluster import Cluster, RefusedSecretError
from spoke.ports.hub import HubClient, HubSession
from spoke.registration.addon_credentials import AddOnContext, AddOnCredential, RefusedError, RenewalRequest, credential_for

log = structlog.get_logger(__name__)


@dataclass(eq=False)
class AddOnLeaseController(Reconciler[AddOnName]):
    """Reports each change of an add-on's condition Available over one session. Key: the add-on's name."""

    session: HubSession
    spoke: Cluster
    management: Cluster
    clock: Clock
    _: KW_ONLY
    grace: timedelta = GRACE

    def __post_init__(self) -> None:
        self._addons: dict[AddOnName, AddOn] = {}
        self._reported: dict[AddOnName, Condition] = {}

    def set_addons(self, addons: Iterable[AddOn]) -> None:
        self._addons = {addon.name: addon for addon in addons}
        self._reported = {name: condition for name, condition in self._reported.items() if name in self._addons}

    @property
    def names(self) -> tuple[AddOnName, ...]:
        return tuple(self._addons)

    async def reconcile(self, key: AddOnName) -> timedelta | None:
        addon = self._addons.get(key)
        if addon is None or addon.health_check_mode == CUSTOMIZED:
            return None
        where = self.management if addon.hosted else self.spoke
        renewed_at = await where.lease_renewed_at(addon.namespace, addon.name)
        condition = lease_condition(addon, renewed_at, self.clock.now(), self.grace)
        if self._reported.get(key) != condition:
            try:
                await self.session.report_addon(key, (condition,))
            except NotFoundError:  # removed meanwhile; the hub will report this
                return None
            self._reported[key] = condition
        return None


REFUSED_RETRY = timedelta(minutes=1)
"""Delay before the agent retries to change a secret that it was not allowed to change."""

Place = tuple[str, bool]
"""Install namespace of an add-on, and whether this namespace is in the management cluster."""


@dataclass(slots=True)
class _Running:
    fingerprint: str
    credential: AddOnCredential
    place: Place
    kubeconfig: bytes
    left: Mapping[Place, Slot] = field(default_factory=dict)
    """Secrets in earlier places, which are deleted when the new secret is stored."""


AddOnCredentials = dict[tuple[AddOnName, str], _Running]
"""The add-on credentials that the agent maintains, by add-on and name of the secret. They outlive sessions."""


@dataclass(eq=False)
class AddOnCertificates(Reconciler[AddOnName]):
    """Maintains the credentials of add-ons during one session. Key: the add-on's name."""

    client: HubClient
    session: HubSession
    registered: AddOnContext
    credentials: AddOnCredentials
    hub_clock: Clock

    def __post_init__(self) -> None:
        self._addons: dict[AddOnName, AddOn] = {}
        self._noted: set[AddOnName] = set()
        self._asked: RenewalRequest | None = None
        self._refused: dict[tuple[AddOnName, str], str] = {}

    def set_addons(self, addons: Iterable[AddOn], renewal: RequestedRenewal | None = None) -> None:
        """Set the hub's add-ons of this cluster. `renewal`: the hub's request for early renewals; None: no request."""
        self._addons = {addon.name: addon for addon in addons}
        if renewal is None or self._asked is None or self._asked.renewal.addons_before != renewal.addons_before:
            self._asked = RenewalRequest(renewal, self.hub_clock.now()) if renewal is not None else None

    async def trust_hub_by(self, kubeconfig: bytes) -> None:
        """Store the hub's new kubeconfig in all add-on secrets that the agent may change. Raises MusterError if this fails."""
        self.registered = replace(self.registered, kubeconfig=kubeconfig)
        for running in tuple(self.credentials.values()):
            with suppress(ForbiddenError):  # it must not keep the agent from trusting new CAs; `reconcile` retries
                await self._know(running)

    async def _know(self, running: _Running) -> None:
        if running.kubeconfig != self.registered.kubeconfig:
            await running.credential.trust_hub_by(self.registered.kubeconfig)
            running.kubeconfig = self.registered.kubeconfig

    @property
    def names(self) -> tuple[AddOnName, ...]:
        """The names of the hub's add-ons of this cluster, and of removed add-ons whose secrets are not deleted yet."""
        return tuple(dict.fromkeys((*self._addons, *(addon for addon, _ in self.credentials))))

    async def reconcile(self, key: AddOnName) -> timedelta | None:
        addon = self._addons.get(key)
        if addon is not None and not addon.deleting and await self._note_driver(addon):
            return None  # the hub answers with the changed add-on
        driver, registrations = self.registered.options.driver, addon.registrations if addon else ()
        entries = [replace(e, driver=driver or e.driver or CSR) if e.for_hub else e for e in registrations]
        wanted = {secret_name(key, entry): entry for entry in entries}
        if addon is None or not addon.deleting:
            for known, running in tuple(self.credentials.items()):
                if known[0] == key and known[1] not in wanted:
                    await self._drop(known, running)
        if addon is None:
            return None
        delays, errors = list[timedelta](), list[MusterError]()
        for secret, entry in wanted.items():
            try:
                delays.append(await self._reconcile_secret(addon, secret, entry))
            except MusterError as error:  # it must not block the other registrations
                errors.append(error)
        if errors:
            raise errors[0]
        return min(delays, default=None)

    async def _reconcile_secret(self, addon: AddOn, secret: str, entry: AddOnRegistration) -> timedelta:
        """Reconcile one credential. If the agent may not change the secret, report this on the add-on, once per message."""
        key = (addon.name, secret)
        try:
            delay = await self._keep(addon, await self._run(addon, secret, entry))
        except RefusedSecretError as error:
            if self._refused.get(key) != error.message:
                self._refused[key] = error.message
                log.warning("addon.secret_refused", addon=addon.name, secret=secret, error=error.message)
                await self.session.report_addon(
                    addon.name, (Condition(CERTIFICATE_ROTATED, FALSE, "SecretRefused", error.message),)
                )
            return REFUSED_RETRY
        self._refused.pop(key, None)
        return delay

    async def _note_driver(self, addon: AddOn) -> bool:
        """Report the driver of an add-on's credential to the hub, once per add-on and session. Return whether it was sent."""
        wanted = self.registered.options.driver
        if not wanted or addon.name in self._noted or all(e.driver == wanted for e in addon.registrations if e.for_hub):
            return False
        self._noted.add(addon.name)
        await self.session.report_addon(addon.name, (), driver=wanted)
        log.info("addon.driver_noted", addon=addon.name, driver=wanted)
        return True

    async def _run(self, addon: AddOn, secret: str, entry: AddOnRegistration) -> _Running:
        """Return the maintained credential. Raises RefusedSecretError; the previous credential then stays unchanged."""
        if secret.startswith(RESERVED):
            raise RefusedSecretError(f'the name "{secret}" is reserved for the agent: name the add-on otherwise')
        known = (addon.name, secret)
        before, fingerprint = self.credentials.get(known), _fingerprint(addon, entry, self.registered)
        if before is not None and before.fingerprint == fingerprint:
            await self._know(before)
            return before
        credential, place = credential_for(addon, entry, secret, self.registered), (addon.namespace, addon.hosted)
        left: dict[Place, Slot] = {}
        if before is not None:
            await before.credential.forget()
            left = {**before.left, before.place: before.credential.target}
            left.pop(place, None)
        self.credentials[known] = _Running(fingerprint, credential, place, self.registered.kubeconfig, left)
        return self.credentials[known]

    async def _keep(self, addon: AddOn, running: _Running) -> timedelta:
        """Reconcile one credential once. Return the time until the next call."""
        try:
            result = await running.credential.reconcile(self.client, addon, self.hub_clock, self._asked)
        except RefusedError as refused:
            await self.session.report_addon(addon.name, (refused.condition,))
            raise
        if result.condition is not None:
            await self.session.report_addon(addon.name, (result.condition,))
        if result.is_stored:
            for each in running.left.values():
                await _delete(each)
            running.left = {}
        return result.next_in

    async def _drop(self, known: tuple[AddOnName, str], running: _Running) -> None:
        for each in (running.credential.target, *running.left.values()):
            await _delete(each)
        await running.credential.forget()
        del self.credentials[known]
        log.info("addon.secret_deleted", addon=known[0], secret=known[1])


async def _delete(slot: Slot) -> None:
    try:
        await slot.delete()
    except RefusedSecretError as error:
        log.warning("addon.secret_kept", secret=slot.name, because=error.message)


def _fingerprint(addon: AddOn, entry: AddOnRegistration, shared: AddOnContext) -> str:
    parts = (
        entry.driver,
        entry.signer_name,
        entry.user,
        sorted(entry.groups),
        sorted(entry.organization_units),
        (addon.namespace, addon.hosted),
        shared.hub_id,
        _without_authority(shared.kubeconfig) if entry.for_hub else b"",
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()


@lru_cache(maxsize=16)
def _without_authority(kubeconfig: bytes) -> bytes:
    """Return the kubeconfig without the hub's CAs, because new CAs need no new credential. Unreadable content stays."""
    try:
        return with_authority(kubeconfig, b"")
    except InvalidError:
        return kubeconfig
