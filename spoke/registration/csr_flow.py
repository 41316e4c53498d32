"""The flow that obtains one certificate: first registration, renewal and add-on certificates.

Rules:

1. Names, key and request are stored before the request is submitted, so that the agent has the key of every issued certificate.
2. The stored data show how far the flow got (`resume`). After a restart the flow continues with the same key and request; it
   makes no second request.
3. A key is deleted only after its certificate is stored and mirrored, or after its request was denied or has failed.
4. If the hub does not know a request, the flow submits it again with the same bytes. The hub finds the request or creates it.
5. A failed step changes nothing. The next run repeats it.
"""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from datetime import timedelta

import structlog

from machinery.errors import ForbiddenError, InvalidError, MusterError, NotFoundError, UnavailableError
from machinery.identity import AddOnName, CertificateSubject, agent_id, cluster_name
from machinery.meta.conditions import CERTIFICATE_ROTATED, FALSE, TRUE, Condition
from machinery.meta.timestamps import format_time
from machinery.observability import tracing
from machinery.pki import CertificateFacts, build_request, generate_key, parse_certificate, parse_request, public_key_of
from spoke.credentials.kubeconfigs import stored_texts
from spoke.credentials.slot import Contents, Slot, without_credential, without_request, without_trust
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
from spoke.domain.schedule import BACKDATE
from spoke.observability.progress import WAITING_FOR_APPROVAL
from spoke.ports.cluster import CredentialDirectory
from spoke.ports.hub import CSRState, HubClient

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """A request, stored until its certificate is stored. `name`: the hub's name for the request; empty: not submitted."""

    names: AgentNames
    key: bytes = field(repr=False)
    request: bytes
    name: str = ""

    def contents(self) -> dict[str, bytes]:
        """Return the entries of a secret (content by name) that store this request."""
        contents = {**names_contents(self.names), PENDING_KEY: self.key, PENDING_REQUEST: self.request}
        return {**contents, REQUEST_NAME: self.name.encode()} if self.name else contents


def names_contents(names: AgentNames) -> dict[str, bytes]:
    return {CLUSTER_NAME: names.cluster.encode(), AGENT_NAME: names.agent.encode()}


def read_pending(contents: Contents) -> PendingRequest | None:
    """Return the pending request of a secret; None if there is none, or it is incomplete."""
    key, request = (contents.get(part, b"") for part in (PENDING_KEY, PENDING_REQUEST))
    if not key or not request:
        return None
    cluster, agent = stored_texts(contents)
    try:
        if parse_request(request).public_key != public_key_of(key):
            return None
        names = AgentNames(cluster_name(cluster), agent_id(agent))
    except MusterError:
        return None
    return PendingRequest(names, key, request, contents.get(REQUEST_NAME, b"").decode())


def pends_for(contents: Contents, public_key: bytes) -> bool:
    """Whether the certificate with `public_key` was issued for the pending request. Then the request is obsolete."""
    pending = read_pending(contents)
    return pending is not None and public_key_of(pending.key) == public_key


class RequestDeniedError(MusterError):
    """The hub denied the request, or marked it as failed."""

    reason = "Forbidden"


@dataclass(frozen=True, slots=True)
class WantedCertificate:
    agent: AgentIdentity
    subject: CertificateSubject
    duration: timedelta | None = None
    addon: tuple[AddOnName, str] | None = None
    """Add-on name and signer of an add-on's certificate."""
    ensure_cluster: bool = False
    """Whether to call EnsureCluster first, because the hub may not know the cluster yet."""
    endpoints: tuple[ExternalEndpoint, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)


class CSRFlow:
    """Obtains and stores one certificate. Call `run` until `is_done`; then `credential` is the content of the secret."""

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
        """`pending` stores the request, `target` and `mirror` the certificate and the entries `extra`. `hub` is the issuer.

        `known_by` returns the CAs to store for the hub, given the content of the secret; None: no CAs are stored.
        """
        self.wanted = wanted
        self.hub = hub
        self.issued: Contents = {}
        """The certificate with its private key, as entries of a secret; empty until it is issued."""
        self.credential: Contents = {}
        self.is_done = False
        """Whether the certificate is stored and the pending request deleted."""
        self._slot = pending
        self._target = target
        self._extra = extra
        self._mirror = mirror
        self._known_by = known_by
        self._pending: PendingRequest | None = None
        self._ensured = self._submitted = False

    @property
    def is_under_way(self) -> bool:
        """Whether the flow has a request or a certificate."""
        return self._pending is not None or bool(self.issued)

    def resume(self, contents: Contents) -> None:
        """Continue with the pending request in `contents`, if it has the names and the subject of `self.wanted`."""
        pending, wanted = read_pending(contents), self.wanted
        if pending is None or pending.names != wanted.agent.names or parse_request(pending.request).subject != wanted.subject:
            return
        self._pending, self._submitted = pending, bool(pending.name)
        log.info("request.resumed", request=pending.name, submitted=self._submitted)

    async def run(self, client: HubClient, *, on_step: Callable[[str], object] = lambda _: None) -> CertificateFacts:
        """Run the remaining steps. Return the certificate. After an error, the next call continues at the failed step.

        It calls `on_step` with the description of each step. Raises RequestDeniedError; the next run then makes a new request.
        Raises UnavailableError if the hub issues an unusable certificate twice. One run is one trace.
        """
        with tracing.span("obtain certificate", {"muster.cluster": self.wanted.agent.names.cluster}):
            unknown = useless = False
            while not self.issued:
                pending = await self._submit(client, on_step)
                on_step(WAITING_FOR_APPROVAL)
                try:
                    decided = await _decision(client.follow_request(pending.name), pending.name)
                except RequestDeniedError:
                    self._pending = None
                    raise
                except (NotFoundError, ForbiddenError):
                    if unknown:
                        raise
                    unknown = True  # only once, to avoid a busy loop if the hub loses requests
                    log.warning("request.unknown", request=pending.name, next="submitting the same request again")
                    self._pending, self._ensured, self._submitted = replace(pending, name=""), False, False
                    continue
                if why := _defect(decided, pending.key):
                    log.error("request.useless", request=pending.name, why=why, next="a new key and a new request")
                    if useless:
                        raise UnavailableError(
                            f'the certificate that the hub issued for the request "{pending.name}" is unusable: {why}'
                        )
                    useless, self._pending = True, None
                    continue
                leaf = parse_certificate(decided.certificate)
                recovery = {RECOVERY: decided.recovery_certificate} if decided.recovery_certificate else {}
                self.issued = {CERTIFICATE: decided.certificate, KEY: pending.key, **recovery}
                log.info("request.issued", request=pending.name, serial=f"{leaf.serial:x}", until=format_time(leaf.not_after))
            if not self.credential:
                on_step("storing the certificate")
                self.credential = await self._target.change(self._stored)
            if not self.is_done:
                if self._mirror is not None:
                    on_step("mirroring the credential to its directory")
                    self._mirror.replace(self.credential)
                on_step("deleting the pending request")
                await self._slot.forget()
                self._pending, self.is_done = None, True
        return parse_certificate(self.issued[CERTIFICATE])

    async def _submit(self, client: HubClient, on_step: Callable[[str], object]) -> PendingRequest:
        """Submit the request, and store the name that the hub gives it. Return the request."""
        wanted = self.wanted
        if self._pending is None:
            on_step("making a key and a certificate signing request")
            key = generate_key()
            pending = PendingRequest(wanted.agent.names, key, build_request(wanted.subject, key))
            await self._slot.change(lambda present: {**without_request(present), **pending.contents()})
            self._pending, self._ensured, self._submitted = pending, False, False
        if self._submitted:
            return self._pending
        if not self._ensured:
            on_step("registering the cluster at the hub")
            if wanted.ensure_cluster:
                await _ensure_cluster(client, wanted)
            self._ensured = True
        if not self._pending.name:
            on_step("submitting the certificate signing request")
            name = await client.submit_request(
                wanted.agent, self._pending.request, duration=wanted.duration, addon=wanted.addon
            )
            self._pending = replace(self._pending, name=name)
        on_step("storing the name of the certificate signing request")
        named = self._pending
        await self._slot.change(lambda present: {**without_request(present), **named.contents()})
        self._submitted = True
        log.info("request.submitted", request=named.name)
        return named

    def _stored(self, present: Contents) -> Contents:
        """Return the secret's contents with the certificate."""
        kept = without_credential(present)
        if self._known_by is not None:
            kept = {**without_trust(kept), **self._known_by(present)}
        return {**kept, **self._extra, **self.issued}


async def _ensure_cluster(client: HubClient, wanted: WantedCertificate) -> None:
    agent = wanted.agent
    try:
        registered = await client.ensure_cluster(
            agent, endpoints=wanted.endpoints, annotations=wanted.annotations, labels=wanted.labels
        )
    except ForbiddenError as error:
        if error.denial_cause is not None:
            raise
        message = f'{error.message}; this agent joins as "{agent.cluster}": --cluster-name NAME gives another name'
        raise ForbiddenError(message, causes=error.causes, retry_after=error.retry_after) from error
    log.info("cluster.registered", cluster=agent.cluster, created=registered.created, accepted=registered.accepted)


def _defect(decided: CSRState, key: bytes) -> str:
    try:
        leaf = parse_certificate(decided.certificate)
    except InvalidError as error:
        return error.message
    if decided.hub_time is not None and not leaf.not_before - BACKDATE <= decided.hub_time <= leaf.not_after:
        return f"its certificate is valid from {format_time(leaf.not_before)} to {format_time(leaf.not_after)}, and not now"
    return "" if leaf.public_key == public_key_of(key) else "its certificate is not for our key"


async def _decision(states: AsyncGenerator[CSRState, None], name: str) -> CSRState:
    """Wait for the state `issued`. Raises RequestDeniedError; UnavailableError if the stream ends before a decision."""
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
    raise UnavailableError(f'the hub stopped reporting on the certificate signing request "{name}"')


def rotated_condition(leaf: CertificateFacts) -> Condition:
    said = f"client certificate rotated starting from {format_time(leaf.not_before)} to {format_time(leaf.not_after)}"
    return Condition(CERTIFICATE_ROTATED, TRUE, "ClientCertificateUpdated", said)


def rotation_failed_condition(why: str) -> Condition:
    return Condition(CERTIFICATE_ROTATED, FALSE, "ClientCertificateUpdateFailed", f"Failed to rotated client certificate {why}")
