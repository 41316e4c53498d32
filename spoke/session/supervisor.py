"""Supervises the sessions with the owner: one after another, until the agent changes to another hub.

After a loss the agent retries the same hub. If another hub is usable, the agent changes to it: immediately if the lost hub
refuses the session, otherwise after a short random time, because restarts and drains of replicas are short. If the credential
is unusable, the agent reads its hub list and its secrets again (`Action.OBSERVE`).

A move from a working hub to another hub is a handover. The agent opens a session at the new hub with a higher epoch, and waits
until a beat is acknowledged there. Then the agent sends the farewell to the old hub and closes the old session.
"""

import asyncio
from datetime import timedelta
from functools import partial

import structlog

from machinery.errors import MusterError
from machinery.identity import HubId
from spoke.credentials.judgement import rejection
from spoke.credentials.kubeconfigs import HubConnection, stored_connection
from spoke.credentials.owner import Owner, OwnerConflictError
from spoke.credentials.slot import OWNER_SECRET, Contents, Slot, hub_slot
from spoke.credentials.trust_bundle import known_by
from spoke.domain.hubs import ChoiceReason, HubDecision, HubState, epoch_too_high, is_credible
from spoke.domain.names import AgentIdentity
from spoke.domain.next_step import BRIEF, OBSERVE, Action, NextStep, SessionLoss
from spoke.failover.candidates import ReconnectTimeout
from spoke.ports.hub import HubLostError, SessionEpochError
from spoke.registration.csr_flow import CSRFlow, pends_for
from spoke.registration.register import renewal
from spoke.session.context import ActiveSession, AgentContext, OwnerSecret, open_session
from spoke.session.runner import Handover, HubEvents, SessionRun

SHORTEST_DIAL = 0.25
"""Shortest timeout of a dial in seconds. It applies if less time of the reconnect timeout is left."""

log = structlog.get_logger(__name__)


class SessionSupervisor(HubEvents):
    """Connects to the hub (`connect`) and runs sessions with it (`serve`). Both return the agent's next step."""

    def __init__(self, agent: AgentContext, identity: AgentIdentity, owner: Owner, kept: Contents) -> None:
        """`owner`: the present content of the owner's secret; `kept`: the content of the hub's slot. Raises InvalidError."""
        self._agent = agent
        self._identity = identity
        self._owner_secret = OwnerSecret(agent, identity, owner)
        self._connection = stored_connection(owner.contents, agent.options.reach)
        self._previous: HubConnection | None = None
        self._kept = kept
        self._rotation: CSRFlow | None = None
        self._active: ActiveSession | None = None
        self._run: SessionRun | None = None
        random, pauses = agent.ports.random, agent.options.pauses
        self._timeout = ReconnectTimeout(agent.options.hubs, lambda: agent.hubs.is_lost, agent.ports.clock, random)
        self._reconnect = pauses.retry.backoff(random)
        self._pauses = {
            SessionLoss.REFUSED: pauses.unwelcome.backoff(random),
            SessionLoss.SUPERSEDED: pauses.refused.backoff(random),
        }

    @property
    def hub(self) -> HubId:
        return self._connection.hub_id

    async def connect(self) -> NextStep:
        """Open a session with the owner. Return the next step, also after a failure."""
        agent = self._agent
        if self._rotation is None:
            self._rotation = await self._renewal(self._kept)
        elif agent.bootstrap.changed and self._leaves():
            return OBSERVE
        try:
            self._active = await agent.bootstrap.unless_changed(self._dial(), leave=self._leaves)
        except HubLostError as lost:
            return await self._react(lost)
        return NextStep(Action.SERVE) if self._active is not None else OBSERVE

    async def serve(self) -> NextStep:
        """Run the session until it is lost, a successor takes over, or the hub list lacks this hub. Return the next step."""
        active, self._active = self._active, None
        if active is None:
            raise AssertionError
        beats = self._agent.progress.counts.beats
        self._timeout.opened()
        self._agent.hubs.be_open()
        if active.connection.certificate.serial != self._connection.certificate.serial:
            await self._adopt(active)
        try:
            self._active = await self._agent.bootstrap.unless_changed(self._session(active), leave=self._reconsider)
        except HubLostError as lost:
            if self._agent.progress.counts.beats > beats:  # otherwise the hub may be overloaded
                self._reconnect.reset()
            return await self._react(lost)
        return NextStep(Action.SERVE) if self._active is not None else OBSERVE

    async def close(self) -> None:
        """Close a session that was opened but is not running."""
        active, self._active = self._active, None
        if active is not None:
            await active.close()

    async def _dial(self) -> ActiveSession:
        """Open a session with the owner. If another hub is usable, the dial ends with the reconnect timeout."""
        await self._owner_secret.take_back(self.hub)
        left = self._timeout.left
        try:
            async with asyncio.timeout(max(left, SHORTEST_DIAL) if left is not None and self._agent.hubs.is_better() else None):
                return await self.open(self._connection)
        except TimeoutError as error:
            raise HubLostError("the hub did not answer in time", SessionLoss.UNREACHABLE) from error

    async def _session(self, active: ActiveSession) -> ActiveSession:
        if self._rotation is None:
            raise AssertionError
        try:
            self._run = SessionRun(active, self._agent, self._identity, events=self, rotation=self._rotation)
            after = await self._run.run()
            try:
                if after.connection.hub_id != active.connection.hub_id:
                    await active.session.farewell(after.connection.hub_id, after.owner.epoch)
            except BaseException:
                await after.close()
                raise
            return after
        finally:
            self._run = None
            await active.close()

    async def _adopt(self, active: ActiveSession) -> None:
        """Make the successor the current session. It may have a new certificate or another hub."""
        moved = active.connection.hub_id != self.hub
        self._previous = None if moved else self._connection
        self._connection = active.connection
        if moved:
            self._timeout.moved()
            self._owner_secret.owner = active.owner
            self._owner_secret.attend(self.hub)
        self._rotation = await self._renewal({})

    async def _renewal(self, kept: Contents) -> CSRFlow:
        """Return the flow that renews the present certificate. It resumes a pending request in `kept`, the hub's slot."""
        ports, duration = self._agent.ports, self._agent.options.duration
        slot, owner = hub_slot(ports.secrets, self.hub), Slot(ports.secrets, OWNER_SECRET)
        flow = renewal(self._connection, self._identity, duration, slot, owner=owner, mirror=ports.directory)
        if pends_for(kept, self._connection.certificate.public_key):
            await slot.forget()  # the previous run stored the certificate, but did not delete its request
        else:
            flow.resume(kept)
        return flow

    async def open(self, connection: HubConnection, owner: Owner | None = None) -> ActiveSession:
        """Open a session with the epoch of `owner` (None: the present content of the owner's secret). Raises HubLostError."""
        return await open_session(self._agent, connection, owner or self._owner_secret.owner, self._identity.cluster_uid)

    def accepted(self, *, accepted: bool) -> None:
        ends_at = self._connection.chain[-1].not_after if self._connection.chain else None
        self._agent.hubs.record_state(self.hub, HubState.READY if accepted else HubState.NOT_ACCEPTED, ends_at)

    def move_requested(self, target: HubId, why: str) -> None:
        hubs = self._agent.hubs
        if target == self.hub:
            return
        if refusal := hubs.refuse_move(target):
            log.warning("hub.move_refused", to=hubs.name_of(target), because=refusal)
            message = f"the agent does not move as requested ({why}): {refusal}"
            self._agent.announcements.record("HubMoveRefused", message, warning=True)
            return
        message = f"the hub {hubs.name_of(self.hub)} asks the agent to move ({why})"
        self._move(HubDecision(target, ChoiceReason.MOVED, message))

    def trust_hub_by(self, authorities: bytes) -> None:
        self._connection = known_by(self._connection, authorities)
        self._previous = self._previous and known_by(self._previous, authorities)

    def _leaves(self) -> bool:
        """Whether to stop dialling: this hub is off the list, or its timeout is over and another hub is the choice."""
        return self._is_off() or (self._timeout.is_over and self._elsewhere() is not None)

    def _reconsider(self) -> bool:
        """Whether to end the open session now. If not, send a changed hub list, and begin a handover if it is due."""
        if self._is_off():
            return True
        if self._run is not None:
            self._run.report_hub_list()
            if self._agent.hubs.reported_epoch > self._owner_secret.owner.epoch:
                self._run.hand_over(Handover(self._open_with_higher_epoch, once=True))
                return False
        if (decision := self._elsewhere()) is not None and decision.not_before is None:
            self._move(decision)
        return False

    def _is_off(self) -> bool:
        """Read a changed list. Return whether this hub is no longer on it, or its entry now names another server.

        Neither changes of other hubs and of the bootstrap credential matter, nor a missing hub while a source is unreadable.
        """
        agent = self._agent
        if not agent.bootstrap.replaced:
            agent.bootstrap.acknowledge()
            return False
        listing = agent.bootstrap.read()
        agent.hubs.update(listing, self._owner_secret.owner)
        if not listing.hubs:
            return False
        own = listing.get(self.hub)
        if listing.whole if own is None else self._connection.hub.difference(own.connection.hub):
            return True
        self._owner_secret.attend(self.hub)
        return False

    def _elsewhere(self) -> HubDecision | None:
        hubs = self._agent.hubs
        decision = hubs.decide() if hubs.several else None
        if decision is not None and decision.hub_id == self.hub:
            hubs.take(decision)
            return None
        return decision

    def _move(self, decision: HubDecision) -> None:
        if self._run is not None:
            self._run.hand_over(Handover(partial(self._go_over, decision), once=True, undo=partial(self._put_back, decision)))

    async def _go_over(self, decision: HubDecision) -> ActiveSession:
        agent, secret = self._agent, self._owner_secret
        secret.owner = owner = await secret.give(secret.owner, decision.hub_id)
        active = await self.open(stored_connection(owner.contents, agent.options.reach), owner)
        agent.hubs.update(agent.bootstrap.listing, owner)
        if agent.hubs.take(decision):
            agent.announcements.record(decision.why.value, decision.message)
        return active

    async def _put_back(self, decision: HubDecision, error: HubLostError) -> None:
        """After a failed handover, make this hub the owner again. Retry until the owner's secret is written."""
        agent = self._agent
        agent.hubs.fail(decision.hub_id, error.message)
        agent.announcements.record("HubMoveFailed", f"{decision.message}; but {error.message}", warning=True)
        pauses = agent.options.pauses.retry.backoff(agent.ports.random)
        while True:
            try:
                await self._owner_secret.confirm()  # the write that failed may have reached the secret
                return await self._owner_secret.take_back(self.hub)
            except OwnerConflictError:
                raise
            except MusterError as failed:
                log.warning("hub.owner_not_put_back", error=failed.message)
                await asyncio.sleep(pauses.next().total_seconds())

    async def _open_with_higher_epoch(self) -> ActiveSession:
        await self._owner_secret.raise_epoch_for_standby(self.hub)
        return await self.open(self._connection)

    async def _react(self, lost: HubLostError) -> NextStep:
        """Return the next step after the session was lost or could not be opened.

        Raises OwnerConflictError, and errors of reads and writes of the owner's secret.
        """
        hubs, now = self._agent.hubs, self._agent.ports.clock.now()
        if isinstance(lost, SessionEpochError) and not is_credible(lost.epoch, now):
            message = f"the hub {hubs.name_of(self.hub)} refuses the session: {epoch_too_high(lost.epoch)}"
            lost = HubLostError(message, SessionLoss.REFUSED)
        if lost.loss is SessionLoss.UNAUTHENTICATED and self._previous is not None:
            log.warning("certificate.fallback", why=lost.message, next="the certificate before")
            self._connection, self._previous = self._previous, None
            return NextStep(Action.CONNECT)
        if self._timeout.lost():
            hubs.reset_failures(self.hub)
            self._owner_secret.reset_failures()
            self._reconnect.reset()
        if isinstance(lost, SessionEpochError):
            await self._owner_secret.raise_epoch_above(lost, self.hub)
            return NextStep(Action.CONNECT)
        if lost.loss is SessionLoss.SUPERSEDED:
            await self._owner_secret.confirm()
        finding = rejection(lost.loss, lost.message, self._connection.chain, self._agent.hub_clock.now())
        if finding is not None:
            return NextStep(Action.OBSERVE, finding=finding)  # the agent registers again
        return self._redial(lost)

    def _redial(self, lost: HubLostError) -> NextStep:
        """Try the same hub after a pause, unless its timeout is over and another hub is the choice."""
        hubs = self._agent.hubs
        delay = self._pauses.get(lost.loss, self._reconnect).next()
        delay = max(delay, lost.retry_after or delay)
        if lost.loss is SessionLoss.REFUSED:
            hubs.record_state(self.hub, HubState.DENIED)
        if hubs.several:
            left = self._timeout.left if lost.loss in BRIEF else 0.0
            if not left:
                hubs.fail(self.hub, lost.message)
                if self._elsewhere() is not None:
                    return OBSERVE
            elif hubs.is_better():
                delay = min(delay, timedelta(seconds=left))
        return NextStep(Action.CONNECT, self._agent.progress.log_failure(lost, delay, "reconnecting"))
