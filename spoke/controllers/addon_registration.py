"""The certificates with which add-ons talk to the hub, one per registration that the hub describes.

Rules (OCM): the secret is `<addon>-hub-kubeconfig` or `<addon>-<signer>-client-cert` in the add-on's install namespace; a
registration that changes gets a new certificate; one that is gone loses its secret; an add-on that is being deleted keeps what
it has, because its agent may need it to clean up. Each certificate is renewed like the agent's own.
"""

import asyncio
import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta

import structlog

from machinery.clock import Clock
from machinery.conditions import CERTIFICATE_ROTATED, FALSE, TRUE, Condition
from machinery.controller import Reconciler
from machinery.errors import InvalidError, MusterError
from machinery.identity import AddOnName
from machinery.pki import CertificateFacts, parse_chain, public_key_of
from machinery.timestamps import format_time
from spoke.domain.addon import AddOn, AddOnRegistration, secret_name
from spoke.domain.bootstrap import State
from spoke.domain.credential import CERTIFICATE, CLUSTER_NAME, KEY, KUBECONFIG, validity
from spoke.domain.names import Names
from spoke.domain.rotation import rotate_at
from spoke.enrolment import Enrolment, Wanted
from spoke.ports import HubClient, HubSession, Secrets
from spoke.slot import Contents, Slot

PATIENCE = timedelta(seconds=30)
"""How long one look waits for a decision; the request stays, the next look goes on with it."""
RETRY = timedelta(seconds=5)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Registered:
    """What add-on certificates have in common."""

    names: Names
    cluster_uid: str
    kubeconfig: bytes
    secrets: Callable[[AddOn], Secrets]
    """Where the secrets of an add-on are."""
    pending: Callable[[str], Slot]
    """Where the pending request for a secret is kept."""
    duration: timedelta | None = None


@dataclass(slots=True)
class _Running:
    addon: AddOn
    fingerprint: str
    target: Slot
    pending: Slot
    enrolment: Enrolment
    resumed: bool = False


@dataclass(slots=True)
class Certificates:
    """The add-on certificates under care: they live on when a session ends."""

    running: dict[tuple[AddOnName, str], _Running] = field(default_factory=dict)


class AddOnCertificates(Reconciler[AddOnName]):
    """Keeps the certificates of add-ons on one session. Key: the add-on."""

    def __init__(
        self, client: HubClient, session: HubSession, registered: Registered, certificates: Certificates, hub_clock: Clock
    ) -> None:
        self._client = client
        self._session = session
        self._registered = registered
        self._running = certificates.running
        self._clock = hub_clock
        self._addons: dict[AddOnName, AddOn] = {}

    def set_addons(self, addons: Iterable[AddOn]) -> None:
        """The add-ons that the hub has for this cluster."""
        self._addons = {addon.name: addon for addon in addons}

    @property
    def names(self) -> tuple[AddOnName, ...]:
        """The add-ons that there are, and those of which something is left."""
        return tuple(dict.fromkeys((*self._addons, *(addon for addon, _ in self._running))))

    async def reconcile(self, key: AddOnName) -> timedelta | None:
        addon = self._addons.get(key)
        if addon is not None and addon.deleting:
            return None
        wanted = {secret_name(addon.name, entry): entry for entry in addon.registrations} if addon else {}
        for known, running in tuple(self._running.items()):
            entry = wanted.get(known[1])
            if known[0] == key and (addon is None or entry is None or running.fingerprint != _fingerprint(addon, entry)):
                await self._drop(known, running)
        if addon is None:
            return None
        naps = [await self._keep(self._run(addon, secret, entry), entry) for secret, entry in wanted.items()]
        return min(naps, default=None)

    def _run(self, addon: AddOn, secret: str, entry: AddOnRegistration) -> _Running:
        known = (addon.name, secret)
        if known not in self._running:
            target = Slot(self._registered.secrets(addon), secret)
            pending = self._registered.pending(secret)
            enrolment = self._enrolment(addon, entry, target, pending)
            self._running[known] = _Running(addon, _fingerprint(addon, entry), target, pending, enrolment)
        return self._running[known]

    def _enrolment(self, addon: AddOn, entry: AddOnRegistration, target: Slot, pending: Slot) -> Enrolment:
        shared = self._registered
        wanted = Wanted(shared.names, shared.cluster_uid, entry.subject, shared.duration, addon=(addon.name, entry.signer_name))
        return Enrolment(wanted, pending=pending, target=target, extra=self._extra(entry))

    def _extra(self, entry: AddOnRegistration) -> dict[str, bytes]:
        named = {CLUSTER_NAME: self._registered.names.cluster.encode()}
        return {**named, KUBECONFIG: self._registered.kubeconfig} if entry.for_hub else named

    async def _keep(self, running: _Running, entry: AddOnRegistration) -> timedelta:
        """One look at one certificate; returns when to look again."""
        if running.enrolment.state is State.UNPREPARED:
            nap = self._good_for(await running.target.read(), entry)
            if nap > timedelta():
                return nap
        if not running.resumed:
            running.enrolment.resume(await running.pending.read())
            running.resumed = True
        try:
            async with asyncio.timeout(PATIENCE.total_seconds()):
                await running.enrolment.run(self._client)
        except TimeoutError:
            return RETRY
        except MusterError as error:
            await self._tell(running, FALSE, "ClientCertificateUpdateFailed", f"Failed to rotated client certificate {error}")
            raise
        leaf = running.enrolment.certificate
        said = f"client certificate rotated starting from {format_time(leaf.not_before)} to {format_time(leaf.not_after)}"
        await self._tell(running, TRUE, "ClientCertificateUpdated", said)
        running.enrolment = self._enrolment(running.addon, entry, running.target, running.pending)
        return self._until_due(leaf)

    def _good_for(self, contents: Contents, entry: AddOnRegistration) -> timedelta:
        """How long the stored certificate needs no replacement; nothing: it is due now."""
        if any(contents.get(key) != value for key, value in self._extra(entry).items()):
            return timedelta()
        try:
            chain = parse_chain(contents.get(CERTIFICATE, b""))
            key = public_key_of(contents.get(KEY, b""))
        except InvalidError:
            return timedelta()
        if chain[0].subject != entry.subject or chain[0].public_key != key or validity(chain, self._clock.now()):
            return timedelta()
        return self._until_due(chain[0])

    def _until_due(self, leaf: CertificateFacts) -> timedelta:
        return max(rotate_at(leaf.serial, leaf.not_before, leaf.not_after) - self._clock.now(), timedelta())

    async def _drop(self, known: tuple[AddOnName, str], running: _Running) -> None:
        await running.target.delete()
        await running.pending.delete()
        del self._running[known]
        log.info("addon.secret_deleted", addon=known[0], secret=known[1])

    async def _tell(self, running: _Running, status: str, reason: str, message: str) -> None:
        condition = Condition(CERTIFICATE_ROTATED, status, reason, message)
        await self._session.report_addon(running.addon.name, (condition,))


def _fingerprint(addon: AddOn, entry: AddOnRegistration) -> str:
    """Changes with whatever makes another certificate necessary."""
    parts = (
        entry.signer_name,
        entry.user,
        sorted(entry.groups),
        sorted(entry.organization_units),
        addon.namespace,
        addon.hosted,
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()
