"""The agent's loop: observe, decide, act. Each round starts from the stored state.

A round chooses a hub, registers there if needed, makes it the owner, and runs sessions with it; `spoke.domain.next_step` has
the decisions. The loop ends only by cancellation, or at the start with InvalidError if neither a bootstrap kubeconfig nor a
stored credential is usable. A hub that is unreachable, silent or refuses the agent does not end the loop.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta

import structlog

from machinery.errors import InvalidError, MusterError, UnauthorizedError
from machinery.identity import HubId
from machinery.runtime.backoff import Backoff
from machinery.runtime.clock import OffsetClock
from machinery.runtime.tasks import cancel_and_wait
from spoke.agent.observation import Observation, Observer
from spoke.bootstraps.listing import BootstrapListing
from spoke.bootstraps.watch import BootstrapWatch
from spoke.controllers.status import AvailabilityWatch
from spoke.credentials.directory import MIRROR_RETRY, PatientDirectory
from spoke.credentials.owner import OwnerConflictError
from spoke.credentials.slot import RestoringSecrets
from spoke.domain.hubs import ChoiceReason, HubState
from spoke.domain.next_step import OBSERVE, Action, NextStep, decide
from spoke.failover.candidates import HubList
from spoke.failover.standby import Standby
from spoke.observability.event_recorder import Announcements
from spoke.observability.progress import AgentProgress
from spoke.options import AgentOptions, AgentPorts
from spoke.registration.csr_flow import RequestDeniedError
from spoke.registration.register import Registration
from spoke.session.context import AgentContext
from spoke.session.supervisor import SessionSupervisor

BOOTSTRAP_POLL = timedelta(seconds=2)
FIRST_HUB_TIMER = "hub-first"

log = structlog.get_logger(__name__)


@asynccontextmanager
async def background_task(work: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Run `work` while the block runs. After an unexpected exception, log it and start `work` again."""

    async def guarded() -> None:
        pauses = Backoff(timedelta(seconds=1), timedelta(minutes=1))
        while True:
            try:
                await work()
            except Exception:
                log.exception("agent.part_failed", part=getattr(work, "__qualname__", "?"))
                await asyncio.sleep(pauses.next().total_seconds())
            else:
                return

    task = asyncio.create_task(guarded(), name=f"agent/{getattr(work, '__qualname__', '?')}")
    try:
        yield
    finally:
        await cancel_and_wait(task)


class SpokeAgent:
    """One agent of one cluster. A process may run any number of them."""

    def __init__(self, options: AgentOptions, ports: AgentPorts, progress: AgentProgress | None = None) -> None:
        self._options = options
        announcements = Announcements(ports.announcer)
        self._mirror = PatientDirectory(ports.directory) if ports.directory is not None else None
        self._secrets = RestoringSecrets(ports.secrets, announcements.record)
        self._ports = ports = replace(ports, directory=self._mirror, secrets=self._secrets)
        self.progress = progress or AgentProgress(ports.clock)
        self._bootstrap = BootstrapWatch(ports.bootstrap)
        self._standby = Standby(options, ports, announcements.record)
        policy = replace(options.hubs.policy, registers_ahead=options.standby_registration)
        self._hubs = HubList(
            replace(options.hubs, policy=policy),
            self._standby,
            self.progress,
            clock=ports.clock,
            scheduler=ports.scheduler,
            random=ports.random,
            wake_up=self._bootstrap.wake_up,
        )
        self._hub_clock = OffsetClock(ports.clock)
        watch = AvailabilityWatch(ports.managed_cluster, ports.clock)
        self.progress.verdict = lambda: watch.verdict
        self._agent = AgentContext(
            options, ports, self._bootstrap, self._hubs, self._hub_clock, self.progress, watch, announcements
        )
        self._registration = Registration(options, ports, hub_clock=self._hub_clock, progress=self.progress)
        self._observer = Observer(self._agent, self._registration)
        self._waits_for_first = True
        self._looked_once = False
        self._seen = Observation(BootstrapListing())
        """The observation of the present round; empty before the first one."""
        self._supervisor: SessionSupervisor | None = None
        pauses = options.pauses
        self._retry, self._denied, self._overtaken = (
            pause.backoff(ports.random) for pause in (pauses.retry, pauses.denied, pauses.refused)
        )

    async def run(self) -> None:
        """Run until cancelled. Raises InvalidError at the start when neither bootstrap kubeconfig nor credential is usable."""
        scheduler, clock = self._ports.scheduler, self._ports.clock
        scheduler.every(BOOTSTRAP_POLL, self._bootstrap.check, name="bootstrap-kubeconfig")
        if self._mirror is not None:
            scheduler.every(MIRROR_RETRY, self._mirror.again, name="mirror")
        scheduler.at(clock.now() + self._options.hubs.first, self._wait_no_more, name=FIRST_HUB_TIMER)
        stop_listening = self._standby.listen(self._bootstrap.wake_up)
        step = OBSERVE
        try:
            async with (
                self._bootstrap.watching(),
                background_task(self._standby.run),
                background_task(self._agent.announcements.run),
                background_task(self._agent.watch.run),
                background_task(self._secrets.run),
            ):
                while True:
                    if step.delay or step.action is Action.OBSERVE:
                        await self._bootstrap.rest(step.delay)
                    step = await self._act(step.action)
        finally:
            if self._supervisor is not None:
                await self._supervisor.close()
            stop_listening()
            for name in ("bootstrap-kubeconfig", "mirror", FIRST_HUB_TIMER):
                scheduler.drop(name)

    def _wait_no_more(self) -> None:
        self._waits_for_first = False
        self._bootstrap.wake_up()

    async def _act(self, action: Action) -> NextStep:
        """Perform an action and return the next step. After a failure the next step is a new observation.

        Raises InvalidError like `run`, but not after the first attempt to register or to connect.
        """
        try:
            step = await self._perform(action)
        except OwnerConflictError as error:
            delay = self.progress.log_failure(error, self._overtaken.next(), "reading the owner again")
            return NextStep(Action.OBSERVE, delay)
        except RequestDeniedError as error:
            return self._record_failure(error, self._denied.next(), HubState.DENIED, "submitting a new request")
        except MusterError as error:
            if isinstance(error, InvalidError) and not self._looked_once:
                raise
            delay = self._retry.next()
            return self._record_failure(error, max(delay, error.retry_after or delay), HubState.REGISTERING, "trying again")
        except Exception:
            # An unexpected exception is a defect of the agent. It must not stop the agent forever.
            delay = self._retry.next()
            log.exception("agent.failed", step=self.progress.step, in_seconds=round(delay.total_seconds(), 1))
            return NextStep(Action.OBSERVE, delay)
        if step.finding is None:
            return step
        # The hub's credential is not used again: the next round registers.
        if (hub := self._hub) is not None:
            self._observer.judges[hub].reject(step.finding)
        rejection = UnauthorizedError(step.finding.message)
        return self._record_failure(rejection, self._retry.next(), HubState.REGISTERING, "registering again")

    async def _perform(self, action: Action) -> NextStep:
        seen, supervisor = self._seen, self._supervisor
        match action:
            case Action.OBSERVE:
                return await self._observe()
            case Action.GIVE_UP if not self._hubs.several and (seen.listing.error is not None or seen.finding is None):
                raise seen.listing.error or AssertionError
            case Action.GIVE_UP | Action.REST:
                return NextStep(Action.OBSERVE, seen.rest, seen.finding)
            case Action.REGISTER:
                return await self._register(seen)
            case Action.CONNECT if supervisor is not None:
                return await supervisor.connect()
            case Action.SERVE if supervisor is not None:
                self._retry.reset()
                return await supervisor.serve()
        return await self._own(seen, action)

    def _record_failure(self, error: MusterError, delay: timedelta, state: HubState, following: str) -> NextStep:
        """Record the failure of the hub, and return the next step.

        If the list has several hubs, the failed hub rests, and the next round chooses a hub immediately. A single hub is tried
        again after `delay`.
        """
        hub = self._hub
        is_revoked = hub is not None and self._observer.judges[hub].is_revoked
        if hub is not None and (is_revoked or self._hubs.several):
            self._hubs.record_state(hub, HubState.REVOKED if is_revoked else state)
        if hub is not None and self._hubs.several:
            self._hubs.fail(hub, error.message)
            delay, following = timedelta(), "choosing a hub"
        return NextStep(Action.OBSERVE, self.progress.log_failure(error, delay, following))

    @property
    def _hub(self) -> HubId | None:
        """The hub that the agent is working with; None if the agent has not chosen a hub."""
        if self._supervisor is not None:
            return self._supervisor.hub
        return self._seen.hub

    async def _observe(self) -> NextStep:
        """Begin a round: read the stored state again. The round ends when its session has ended."""
        if self._supervisor is not None:
            self._observer.timed_by, supervisor, self._supervisor = self._supervisor.hub, self._supervisor, None
            await supervisor.close()
        self._seen = Observation(BootstrapListing())
        self._seen = await self._observer.observe()
        return NextStep(decide(self._observer.state_of(self._seen)))

    async def _register(self, seen: Observation) -> NextStep:
        """Register. Return the next step: OBSERVE if another hub may be the choice, or if the hub's time was unknown."""
        hub, finding, route = seen.hub, seen.finding, seen.route
        if hub is None or seen.identity is None or finding is None or route is None:
            raise AssertionError
        self._looked_once = True
        if hub != self._observer.timed_by:
            self._hub_clock.forget()
            self._observer.timed_by = hub
        if not self._observer.judges[hub].is_revoked:
            self._hubs.record_state(hub, HubState.REGISTERING)
        registering = self._registration.obtain(route, seen.identity, seen.contents, finding)
        contents = await self._bootstrap.unless_changed(registering, leave=self._leaves_registration)
        if contents is None:
            if self._bootstrap.replaced:
                log.info("bootstrap.replaced", source=self._ports.bootstrap.source)
            return OBSERVE
        seen.contents, seen.kept, seen.finding, seen.is_new = contents, {}, None, True
        return NextStep(decide(self._observer.state_of(seen)))

    def _leaves_registration(self) -> bool:
        """Whether to stop the registration: the list has changed, or the agent would now choose another hub.

        An agent without owner first waits some time for its preferred hub.
        """
        if self._bootstrap.replaced:
            return True
        owner = self.progress.hubs_status.owner
        self._bootstrap.acknowledge()
        decision = self._hubs.decide() if self._hubs.several else None
        if decision is None or decision.hub_id == self._seen.hub:
            return False
        return owner is not None or not self._waits_for_first

    async def _own(self, seen: Observation, action: Action) -> NextStep:
        """Write the owner's secret as `action` requires, and create the supervisor of the sessions with the hub."""
        hub, before, owner, identity = seen.hub, seen.owner, seen.owner, seen.identity
        if hub is None or identity is None:
            raise AssertionError
        self._looked_once = True
        if action is Action.GIVE:
            owner = await self._observer.record.give(before, hub, seen.contents, reported_epoch=self._hubs.reported_epoch)
        elif action is Action.RAISE_EPOCH:
            owner = await self._observer.record.raise_epoch(before, reported_epoch=self._hubs.reported_epoch)
        self._hubs.record_state(hub, HubState.READY)  # until the hub reports whether it accepts the cluster
        if self._mirror is not None:
            self._mirror.replace(owner.contents)
        made = seen.decision
        changed = self._hubs.several and made is not None and self._hubs.take(made)
        if changed and made is not None and made.why is not ChoiceReason.KEPT and before.hub_id != hub:
            self._agent.announcements.record(made.why.value, made.message)
        self._hubs.attend(seen.listing, owner, hub, identity)
        self._supervisor = SessionSupervisor(self._agent, identity, owner, seen.kept)
        return NextStep(Action.CONNECT)
