"""Registers the agent at one hub that is not the owner, renews the credential there, and calls StandBy.

Rules:

1. The agent registers as early as possible, with the steps and the slot of a normal registration. When the agent changes to
   this hub, it finds a credential or a pending request in the slot.
2. The agent opens no session. It calls EnsureCluster, submits a certificate signing request, and calls StandBy: after
   registration, after each change of owner, and at the interval that the hub requests.
3. The agent renews the certificate at a random time, by this hub's clock. If the hub rejects the new certificate, the agent
   restores the previous one. If the certificate has expired, the agent gets a new one with the recovery certificate or the
   bootstrap credential.
4. If the hub does not implement StandBy, the agent only queries it: by GetHub over gRPC, or by reading its ManagedCluster over
   the Kubernetes API.
5. A failure at this hub does not end the agent and does not affect other hubs.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import structlog
from structlog.contextvars import bind_contextvars

from machinery.errors import (
    AlreadyExistsError,
    ForbiddenError,
    MethodNotAllowedError,
    MusterError,
    NotFoundError,
    UnauthorizedError,
)
from machinery.identity import HubId
from machinery.runtime.backoff import Backoff
from machinery.runtime.clock import OffsetClock
from machinery.runtime.event_loop import wait_at_most
from spoke.bootstraps.listing import Bootstrap
from spoke.credentials.judgement import CredentialJudge, rejection
from spoke.credentials.kubeconfigs import HubConnection, recovery_connection, stored_connection
from spoke.credentials.slot import Contents, hub_slot, without_request
from spoke.credentials.trust_bundle import StoredTrust, fingerprints
from spoke.domain.credential import CERTIFICATE, CredentialFinding, Flaw, validity
from spoke.domain.hubs import HubState, ListedHub, epoch_too_high, is_credible
from spoke.domain.names import AgentIdentity
from spoke.domain.next_step import SessionLoss, loss_of
from spoke.domain.schedule import RenewalTime
from spoke.observability.progress import AgentProgress
from spoke.options import AgentOptions, AgentPorts
from spoke.ports.hub import HubClient, StandbyAnswer
from spoke.registration.csr_flow import RequestDeniedError, pends_for, read_pending
from spoke.registration.register import RECOVERABLE, Registration, renewal

DEFAULT_PERIOD = timedelta(minutes=5)
"""Time between two StandBy calls if the hub requests no interval."""
RECHECK_DELAY, MAX_PERIOD = timedelta(seconds=1), timedelta(hours=12)
MIN_PERIOD = timedelta(seconds=5)
"""Shortest time between two StandBy calls, even if the hub requests a shorter interval."""
DECISION_TIMEOUT = timedelta(minutes=2)
"""Time for which one attempt waits for the decision on a renewal. The next attempt resumes the stored request."""
CLAIM_PERIOD = timedelta(hours=1)
UNRENEWED_SHARE = 0.1
"""If less than this share of a credential's lifetime is left, the agent reports that the credential is not renewed."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class StandbyIdentity:
    """The agent's identity, owner and epoch, which the registrations at all hubs share."""

    agent: AgentIdentity
    owner: HubId | None = None
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class StandbyRecord:
    hub: ListedHub
    trouble: str = ""
    ends_soon: bool = False
    epoch: int = 0
    """The highest epoch that the hub has claimed."""


@dataclass(eq=False)
class StandbyRegistration:
    """Maintains the registration at one hub. Calls `changed` on each change of `record`. `run` ends only when cancelled."""

    bootstrap: Bootstrap
    identity: StandbyIdentity
    options: AgentOptions
    ports: AgentPorts
    changed: Callable[[StandbyRecord, StandbyRecord], None]

    def __post_init__(self) -> None:
        url = self.bootstrap.connection.hub.server
        self.record = StandbyRecord(ListedHub(self.bootstrap.hub_id, self.bootstrap.name, url, HubState.REGISTERING))
        self.answered_at: float | None = None
        """Monotonic time of the hub's last StandBy answer that it would accept a session; None: no such answer."""
        self._clock = OffsetClock(self.ports.clock)
        self._slot = hub_slot(self.ports.secrets, self.bootstrap.hub_id)
        self._trust = StoredTrust(self._slot, self.bootstrap.hub_id, self.ports.dial)
        self._renewal: RenewalTime | None = None
        self._registration = Registration(
            self.options, self.ports, hub_clock=self._clock, progress=AgentProgress(self.ports.clock)
        )
        self._judge = CredentialJudge()
        self._previous: Contents = {}
        """The slot before the last renewal, until the new credential has worked."""
        self._without_standby = False
        self._routes = 1
        """Number of valid credentials with which the agent can get a new certificate."""
        self._last_route = False  # whether the last attempt used the only valid credential
        self._renews_at = 0.0
        self._overtaken_at: float | None = None
        """Monotonic time at which the hub last claimed a higher epoch than the agent's."""
        self._updated = asyncio.Event()
        pauses = self.options.pauses
        self._retry, self._denied, self._unaccepted, self._lost, self._renewals = (
            each.backoff(self.ports.random) for each in (pauses.retry, pauses.denied, pauses.refused, pauses.lost, pauses.lost)
        )

    def update(self, identity: StandbyIdentity) -> None:
        if identity != self.identity:
            self.identity = identity
            self._updated.set()

    async def run(self) -> None:
        bind_contextvars(hub=self.bootstrap.name)
        while True:
            self._updated.clear()
            delay = await self._attempt()
            await wait_at_most(self._updated, delay.total_seconds())

    async def _attempt(self) -> timedelta:
        try:
            delay = await self._round()
        except MusterError as error:
            if self._judge.is_rejected and not isinstance(error, RequestDeniedError | ForbiddenError | AlreadyExistsError):
                return self._retry.next()  # the hub has rejected the credential; the next round logs this and registers again
            return self._failed(error)
        except Exception:
            # An unexpected exception is a defect of the agent. It must not affect the other hubs.
            delay = self._retry.next()
            log.exception("standby.failed", in_seconds=round(delay.total_seconds(), 1))
            return delay
        for backoff in (self._retry, self._denied, self._lost):
            backoff.reset()
        return delay

    def _failed(self, error: MusterError) -> timedelta:
        state, backoff = self._state_after(error)
        delay = backoff.next()
        delay = max(delay, error.retry_after or delay)
        if (self.record.hub.state, self.record.trouble) != (state, error.message):
            log.warning("standby.trouble", state=state.value, error=error.message, in_seconds=round(delay.total_seconds(), 1))
        self._publish(replace(self.record, hub=replace(self.record.hub, state=state), trouble=error.message))
        return delay

    def _state_after(self, error: MusterError) -> tuple[HubState, Backoff]:
        if isinstance(error, RequestDeniedError):
            return HubState.DENIED, self._denied
        if isinstance(error, ForbiddenError | AlreadyExistsError):
            return (HubState.DENIED if self._holds else HubState.REGISTERING), self._denied
        if self._holds:
            return HubState.UNREACHABLE, self._retry
        if self._judge.is_revoked:
            return HubState.REVOKED, self._lost
        if not self._routes or (self._last_route and isinstance(error, UnauthorizedError)):
            return HubState.LOST, self._lost
        return HubState.REGISTERING, self._retry

    async def _round(self) -> timedelta:
        """Register if the slot contains no usable credential, then call StandBy. Return the time until the next round."""
        contents = await self._slot.read()
        finding = self._judge.judge(
            contents,
            self.bootstrap.connection.hub,
            self.identity.agent.names,
            self._clock.now(),
            is_hub_time=self._clock.offset is not None,
        )
        if finding is not None:
            if await self._register(contents, finding) is None:
                return timedelta()
            contents = await self._slot.read()
        connection = stored_connection(contents, self.options.reach)
        self._hold(connection.certificate.not_after)
        client = self.ports.dial(connection.address, connection.identity)
        try:
            return await self._at(client, connection, contents)
        finally:
            await client.close()

    async def _register(self, contents: Contents, finding: CredentialFinding) -> Contents | None:
        """Register. Return the slot's contents; None: the hub's time is new, so the caller must check the credential again."""
        self._hold(None)
        names, bootstrap, now = self.identity.agent.names, self.bootstrap.connection, self._clock.now()
        recovers = finding.flaw in RECOVERABLE and recovery_connection(contents, names, now) is not None
        good = validity(bootstrap.chain, now) is None
        route = self._registration.route(contents, names, finding, bootstrap)
        if route is None:
            raise AssertionError  # there is a bootstrap credential, valid or not
        self._routes = recovers + good
        self._last_route = self._routes == 1 and (recovers if route.identity.recovers else good)
        return await self._registration.obtain(route, self.identity.agent, contents, finding)

    async def _at(self, client: HubClient, connection: HubConnection, contents: Contents) -> timedelta:
        """Call StandBy with a credential, and renew the credential if it is due. Return the time until the next round."""
        answer = await self._stand_by(client, connection)
        self._clock.set_time(answer.time)
        self._accept(connection, answer)
        if await self._trust.update(connection, answer.trust_bundle, self._clock.now()):
            return RECHECK_DELAY  # the next round reports the new CAs by StandBy and continues here
        leaf = connection.certificate
        now = self._clock.now()
        if self._renewal is None or self._renewal.serial != leaf.serial:
            self._renewal = RenewalTime(leaf.serial, leaf.not_before, leaf.not_after)
        self._renewal.ask(answer.renew_within, now)
        due = self._renewal.due - now
        pends = read_pending(contents) is not None
        if pends and pends_for(contents, leaf.public_key):
            await self._slot.forget()  # the previous run stored the certificate, but did not delete its request
        elif pends or (due <= timedelta() and self.ports.clock.monotonic() >= self._renews_at):
            return await self._renew(client, connection, contents)
        again = (answer.again_after or DEFAULT_PERIOD) * (1 - 0.25 * self.ports.random.random())
        if not answer.accepted:
            again = min(again, self._unaccepted.next())
        return max(min(again, due, MAX_PERIOD), MIN_PERIOD)

    def _accept(self, connection: HubConnection, answer: StandbyAnswer) -> None:
        """Record that the hub accepts the credential, and whether it would accept a session."""
        if self._previous:
            self._previous = {}
            self._renewals.reset()
        if answer.accepted:
            self._unaccepted.reset()
        leaf = connection.certificate
        soon = leaf.not_after - self._clock.now() < (leaf.not_after - leaf.not_before) * UNRENEWED_SHARE
        state, trouble = HubState.READY if answer.accepted else HubState.NOT_ACCEPTED, ""
        if not is_credible(answer.epoch, self.ports.clock.now()):
            state, trouble = HubState.DENIED, epoch_too_high(answer.epoch)
            if trouble != self.record.trouble:
                log.warning("standby.claim_not_believed", error=trouble)
        if state is HubState.READY:
            self.answered_at = self.ports.clock.monotonic()
        epoch = 0 if trouble else self._claimed(answer.epoch)
        self._publish(StandbyRecord(replace(self.record.hub, state=state), trouble, ends_soon=soon, epoch=epoch))

    def _claimed(self, epoch: int) -> int:
        """Return the epoch to use. A hub's higher claim counts once per CLAIM_PERIOD, because each one causes a new session."""
        now = self.ports.clock.monotonic()
        if epoch <= max(self.identity.epoch, self.record.epoch):
            return epoch
        if self._overtaken_at is not None and now - self._overtaken_at < CLAIM_PERIOD.total_seconds():
            return self.record.epoch
        self._overtaken_at = now
        return epoch

    async def _stand_by(self, client: HubClient, connection: HubConnection) -> StandbyAnswer:
        try:
            return await self._ask(client, fingerprints(connection.address.ca))
        except (UnauthorizedError, NotFoundError) as error:
            status = SessionLoss.UNAUTHENTICATED if isinstance(error, UnauthorizedError) else SessionLoss.FORGOTTEN
            end = loss_of(error.denial_cause, status)
            flaw = rejection(end, error.message, connection.chain, self._clock.now())
            await self._give_up(connection, flaw or CredentialFinding(Flaw.REJECTED, error.message))
            raise
        except MusterError as error:
            if flaw := rejection(None, error.message, connection.chain, self._clock.now()):
                self._judge.reject(flaw)
            raise

    async def _ask(self, client: HubClient, trusted: Sequence[str]) -> StandbyAnswer:
        """Call StandBy. If this hub is still the owner, or does not implement StandBy, only query it."""
        identity = self.identity
        if not self._without_standby and identity.owner != self.bootstrap.hub_id:
            try:
                return await client.stand_by(identity.agent, owner=identity.owner, epoch=identity.epoch, trusted=trusted)
            except MethodNotAllowedError as error:
                self._without_standby = True
                log.info("standby.not_told", because=error.message)
        info = await client.info()
        return StandbyAnswer(accepted=True, epoch=0, time=info.time, trust_bundle=info.trust_bundle)

    async def _give_up(self, connection: HubConnection, finding: CredentialFinding) -> None:
        """Restore the previous certificate. If there is none, record the rejection, so that the agent registers again."""
        previous, self._previous = self._previous, {}
        if not previous or previous.get(CERTIFICATE) == connection.identity.certificate:
            self._judge.reject(finding)
            return
        log.warning("certificate.fallback", why=finding.message, next="the certificate before")
        self._renews_at = self.ports.clock.monotonic() + self._renewals.next().total_seconds()
        await self._slot.change(lambda _: without_request(previous))

    async def _renew(self, client: HubClient, connection: HubConnection, contents: Contents) -> timedelta:
        identity = self.identity
        flow = renewal(connection, identity.agent, self.options.duration, self._slot)
        flow.resume(contents)
        log.info("CertificateRotationStarted", pending=flow.is_under_way)
        with suppress(TimeoutError):
            async with asyncio.timeout(DECISION_TIMEOUT.total_seconds()):
                await flow.run(client)
        if flow.is_done:
            self._previous = contents
        return RECHECK_DELAY

    @property
    def _holds(self) -> bool:
        return self.record.hub.credential_ends_at is not None

    def _hold(self, ends_at: datetime | None) -> None:
        """Record when the credential ends; None if there is none. LOST and REVOKED stay until the hub accepts a credential."""
        state = self.record.hub.state
        if ends_at is None and state not in (HubState.LOST, HubState.REVOKED):
            state = HubState.REGISTERING
        if ends_at != self.record.hub.credential_ends_at:
            self._publish(replace(self.record, hub=replace(self.record.hub, state=state, credential_ends_at=ends_at)))

    def _publish(self, kept: StandbyRecord) -> None:
        before, self.record = self.record, kept
        if kept != before:
            self.changed(before, kept)
