"""The flow that obtains one certificate: the steps of `spoke.domain.bootstrap`, each with one effect.

First registration, renewal and add-on certificates use the same steps with other names, secrets and identities. A failed step
is repeated. Progress is kept in memory and, where a restart needs it, in the secrets.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import timedelta

import structlog

from machinery.errors import ForbiddenError, InvalidError, MusterError, NotFoundError, UnavailableError
from machinery.identity import AddOnName, CertificateSubject, agent_id, cluster_name
from machinery.meta.timestamps import format_time
from machinery.observability import tracing
from machinery.pki import CertificateFacts, build_request, generate_key, parse_certificate, parse_request, public_key_of
from spoke.credentials.slot import Contents, Slot, settled, without_credential, without_trust
from spoke.domain.bootstrap import BootstrapEvent, BootstrapState, Pending, after, resume
from spoke.domain.credential import (
    AGENT_NAME,
    CERTIFICATE,
    CLUSTER_NAME,
    KEY,
    PENDING_KEY,
    PENDING_REQUEST,
    RECOVERY,
    REQUEST_NAME,
    HubEntry,
)
from spoke.domain.names import AgentIdentity, AgentNames
from spoke.domain.report import ExternalEndpoint
from spoke.ports.cluster import CredentialDirectory
from spoke.ports.hub import CSRState, HubClient

log = structlog.get_logger(__name__)


def names_contents(names: AgentNames) -> dict[str, bytes]:
    return {CLUSTER_NAME: names.cluster.encode(), AGENT_NAME: names.agent.encode()}


def pending_contents(pending: Pending) -> dict[str, bytes]:
    """The keys of a pending request in its secret."""
    contents = {**names_contents(pending.names), PENDING_KEY: pending.key, PENDING_REQUEST: pending.request}
    return {**contents, REQUEST_NAME: pending.request_name.encode()} if pending.request_name else contents


def stored_names(contents: Contents) -> AgentNames:
    """The names in a secret. Raises InvalidError."""
    cluster, agent = (contents.get(key, b"").decode(errors="replace").strip() for key in (CLUSTER_NAME, AGENT_NAME))
    return AgentNames(cluster_name(cluster), agent_id(agent))


def pends_for(contents: Contents, public_key: bytes) -> bool:
    """Whether the pending request produced the certificate over `public_key`; it is then used up."""
    pending = read_pending(contents)
    return pending is not None and public_key_of(pending.key) == public_key


def read_pending(contents: Contents) -> Pending | None:
    """The pending request of a secret; None when there is none or it is incomplete."""
    parts = [contents.get(key, b"") for key in (PENDING_KEY, PENDING_REQUEST)]
    if not all(parts):
        return None
    try:
        if parse_request(parts[1]).public_key != public_key_of(parts[0]):
            return None
        names = stored_names(contents)
    except MusterError:
        return None
    return Pending(names, parts[0], parts[1], contents.get(REQUEST_NAME, b"").decode())


class RequestDeniedError(MusterError):
    """The hub denied the request, or marked it as failed."""

    reason = "Forbidden"


@dataclass(frozen=True, slots=True)
class WantedCertificate:
    """The certificate to obtain."""

    agent: AgentIdentity
    subject: CertificateSubject
    duration: timedelta | None = None
    addon: tuple[AddOnName, str] | None = None
    """Add-on name and signer of an add-on's certificate."""
    ensure_cluster: bool = False
    """Whether the hub may not know the cluster yet."""
    endpoints: tuple[ExternalEndpoint, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Issued:
    certificate: bytes
    key: bytes = field(repr=False)
    recovery: bytes = b""

    def contents(self) -> dict[str, bytes]:
        """The keys and values that it adds to a secret."""
        filled = {CERTIFICATE: self.certificate, KEY: self.key}
        return {**filled, RECOVERY: self.recovery} if self.recovery else filled


class Enrolment:
    """Obtains and stores one certificate. Call `step` until `state` is DONE; then `credential` is the content of the secret."""

    def __init__(
        self,
        wanted: WantedCertificate,
        *,
        pending: Slot,
        target: Slot,
        extra: Mapping[str, bytes],
        mirror: CredentialDirectory | None = None,
        hub: HubEntry | None = None,
        known_by: Callable[[Contents], Mapping[str, bytes]] | None = None,
    ) -> None:
        """`known_by` computes, from the stored content, the trust to store for the hub; None: no trust is stored."""
        self.wanted = wanted
        self.hub = hub
        self.state = BootstrapState.UNPREPARED
        self.issued: Issued | None = None
        self.credential: Contents = {}
        self._pending_slot = pending
        self._target = target
        self._extra = extra
        self._mirror = mirror
        self._known_by = known_by
        self._pending: Pending | None = None
        self._resubmitted = self._disappointed = False
        self._steps: Mapping[BootstrapState, Callable[[HubClient], Awaitable[BootstrapEvent]]] = {
            BootstrapState.UNPREPARED: self._prepare,
            BootstrapState.PREPARED: self._ensure,
            BootstrapState.KNOWN: self._submit,
            BootstrapState.SUBMITTED: self._note,
            BootstrapState.REQUESTED: self._follow,
            BootstrapState.ISSUED: self._store,
            BootstrapState.STORED: self._publish,
            BootstrapState.MIRRORED: self._forget,
        }

    @property
    def certificate(self) -> CertificateFacts:
        """Facts of the issued certificate."""
        if self.issued is None:
            raise AssertionError
        return parse_certificate(self.issued.certificate)

    def resume(self, contents: Contents) -> None:
        """Continue where an earlier run stopped, according to the pending secret."""
        self._pending = read_pending(contents)
        if self._pending is not None and parse_request(self._pending.request).subject != self.wanted.subject:
            self._pending = None  # made for a subject that is no longer wanted
        self.state = resume(self._pending, self.wanted.agent.names)
        if self.state is not BootstrapState.UNPREPARED:
            log.info("request.resumed", request=self._pending.request_name if self._pending else "", next=self.state.value)

    async def step(self, client: HubClient) -> BootstrapState:
        """Run the next step. An error leaves the state as it is, except a denial: then the next step makes a new request."""
        try:
            event = await self._steps[self.state](client)
        except RequestDeniedError:
            self.state = after(self.state, BootstrapEvent.DENIED)
            raise
        self.state = after(self.state, event)
        return self.state

    @property
    def done(self) -> bool:
        """The certificate is stored and the pending request deleted."""
        return self.state is BootstrapState.DONE

    async def run(self, client: HubClient, *, on_step: Callable[[BootstrapState], object] | None = None) -> None:
        """Run all steps. The first error ends the run; a later call continues there. One run is one trace."""
        self._resubmitted = self._disappointed = False
        with tracing.span("obtain certificate", {"muster.cluster": self.wanted.agent.names.cluster}):
            while not self.done:
                if on_step is not None:
                    on_step(self.state)
                await self.step(client)

    async def _prepare(self, _: HubClient) -> BootstrapEvent:
        key = generate_key()
        pending = Pending(self.wanted.agent.names, key, build_request(self.wanted.subject, key))
        await self._pending_slot.change(lambda present: {**settled(present), **pending_contents(pending)})
        self._pending = pending
        return BootstrapEvent.PERSISTED

    async def _ensure(self, client: HubClient) -> BootstrapEvent:
        wanted = self.wanted
        if wanted.ensure_cluster:
            try:
                registered = await client.ensure_cluster(
                    wanted.agent, endpoints=wanted.endpoints, annotations=wanted.annotations, labels=wanted.labels
                )
            except ForbiddenError as error:
                if error.verdict is not None:
                    raise
                message = (
                    f'{error.message}; this agent joins as "{wanted.agent.cluster}": --cluster-name NAME gives another name'
                )
                raise ForbiddenError(message, causes=error.causes, retry_after=error.retry_after) from error
            log.info(
                "cluster.registered",
                cluster=wanted.agent.cluster,
                created=registered.created,
                accepted=registered.accepted,
            )
        return BootstrapEvent.ENSURED

    async def _submit(self, client: HubClient) -> BootstrapEvent:
        pending, wanted = self._present(), self.wanted
        name = await client.submit_request(wanted.agent, pending.request, duration=wanted.duration, addon=wanted.addon)
        self._pending = Pending(pending.names, pending.key, pending.request, name)
        return BootstrapEvent.ACCEPTED

    async def _note(self, _: HubClient) -> BootstrapEvent:
        pending = self._present()
        await self._pending_slot.change(lambda present: {**settled(present), **pending_contents(pending)})
        log.info("request.submitted", request=pending.request_name)
        return BootstrapEvent.NOTED

    async def _follow(self, client: HubClient) -> BootstrapEvent:
        pending = self._present()
        try:
            decided = await _decision(client.follow_request(pending.request_name), pending.request_name)
        except (NotFoundError, ForbiddenError):
            if self._resubmitted:
                raise
            self._resubmitted = True  # only once, to avoid a tight loop at a hub that loses requests
            log.warning("request.unknown", request=pending.request_name, next="submitting the same request again")
            return BootstrapEvent.UNKNOWN
        leaf, why = _looked_at(decided, pending.key)
        if leaf is None:
            log.error("request.useless", request=pending.request_name, why=why, next="a new key and a new request")
            return self._disappoint(pending.request_name, why)
        self.issued = Issued(decided.certificate, pending.key, decided.recovery_certificate)
        log.info("request.issued", request=pending.request_name, serial=f"{leaf.serial:x}", until=format_time(leaf.not_after))
        return BootstrapEvent.ISSUED

    def _disappoint(self, request: str, why: str) -> BootstrapEvent:
        """Start over once per run, to avoid a tight loop. Raises UnavailableError the second time."""
        if self._disappointed:
            raise UnavailableError(f'what the hub issued for the certificate signing request "{request}" is of no use: {why}')
        self._disappointed = True
        return BootstrapEvent.USELESS

    async def _store(self, _: HubClient) -> BootstrapEvent:
        if self.issued is None:
            raise AssertionError
        filled = {**self._extra, **self.issued.contents()}
        self.credential = await self._target.change(lambda present: {**self._kept(present), **filled})
        return BootstrapEvent.STORED

    def _kept(self, present: Contents) -> Contents:
        kept = without_credential(present)
        return kept if self._known_by is None else {**without_trust(kept), **self._known_by(present)}

    async def _publish(self, _: HubClient) -> BootstrapEvent:
        if self._mirror is not None:
            self._mirror.replace(self.credential)
        return BootstrapEvent.MIRRORED

    async def _forget(self, _: HubClient) -> BootstrapEvent:
        await self._pending_slot.forget()
        self._pending = None
        return BootstrapEvent.FORGOTTEN

    def _present(self) -> Pending:
        if self._pending is None:
            raise AssertionError
        return self._pending


def _looked_at(decided: CSRState, key: bytes) -> tuple[CertificateFacts | None, str]:
    """The issued certificate; or None and the reason why it is unusable with this key."""
    try:
        leaf = parse_certificate(decided.certificate)
    except InvalidError as error:
        return None, error.message
    if decided.hub_time is not None and leaf.not_after < decided.hub_time:
        return None, "its certificate has expired"
    if leaf.public_key != public_key_of(key):
        return None, "its certificate is not for our key"
    return leaf, ""


async def _decision(states: AsyncGenerator[CSRState, None], name: str) -> CSRState:
    """Wait for the issued state. Raises RequestDeniedError; UnavailableError when the stream ends before a decision."""
    waiting = ""
    async with aclosing(states) as following:
        async for state in following:
            if state.state == "issued":
                return state
            if state.state in ("denied", "failed"):
                said = ": ".join(part for part in (state.reason, state.message) if part)
                raise RequestDeniedError(
                    f'the certificate signing request "{name}" was {state.state} ({said or "no reason given"})'
                )
            if state.state != waiting:
                waiting = state.state
                how = {"next": f"hubctl certificate approve {name}"} if waiting == "pending" else {}
                log.info("request.waiting", request=name, state=waiting, **how)
    raise UnavailableError(f'the hub stopped telling about the certificate signing request "{name}"')
