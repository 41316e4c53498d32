"""The agent's outer loop: choose a hub, register there if needed, make it the owner, and hold sessions with it.

Each round starts from the stored state. The loop ends only by cancellation, or with InvalidError when the bootstrap kubeconfigs
are unusable in the very first round. A hub that is unreachable, silent or refusing does not end it.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta

import structlog

from machinery.errors import InvalidError, MusterError
from machinery.identity import HubId
from machinery.runtime.backoff import Backoff
from machinery.runtime.clock import OffsetClock
from spoke.bootstraps import BootstrapChangedError, BootstrapListing, BootstrapWatch
from spoke.cluster.health import AvailabilityWatch
from spoke.controllers.addon_registration import AddOnCredentials
from spoke.credentials.directory import MIRROR_RETRY, PatientDirectory
from spoke.credentials.kubeconfigs import HubConnection, stored_connection, view_stored
from spoke.credentials.owner import OvertakenError, Owner, OwnerRecord, RejectedCredentials, agreed
from spoke.credentials.restored_secrets import RememberedSecrets
from spoke.credentials.slot import OWNER_SECRET, Contents, Slot, credential_of, hub_slot
from spoke.domain.credential import CredentialFinding, judge
from spoke.domain.hubs import HubDecision, HubState, Why
from spoke.domain.names import AgentNames
from spoke.failover.candidates import HubList
from spoke.failover.standby import Standby
from spoke.failover.standby_records import NoReserve, Reserve, StandbyContext
from spoke.observability.event_recorder import Announcements
from spoke.observability.progress import AgentProgress
from spoke.options import AgentOptions, Pause, World
from spoke.registration.csr_flow import RequestDeniedError
from spoke.registration.register import Naming, Registration, StartOverError
from spoke.session.active_session import SessionSurroundings
from spoke.session.context import FlawError, LeaveError, SessionContext
from spoke.session.supervisor import Attachment

log = structlog.get_logger(__name__)


@asynccontextmanager
async def beside(work: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Run `work` for the length of the block; log a defect in it and restart it, so that it does not end the agent."""

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
        task.cancel()
        await asyncio.wait([task])


BOOTSTRAP_LOOK = timedelta(seconds=2)
FIRST = "hub-first"


class SpokeAgent:
    """One agent of one cluster. A process may run any number of them."""

    def __init__(self, options: AgentOptions, world: World, progress: AgentProgress | None = None) -> None:
        self._options = options
        self._mirror = PatientDirectory(world.directory) if world.directory is not None else None
        self._announcements = Announcements(world.announcer)
        self._secrets = RememberedSecrets(world.secrets, self._announcements.tell)
        self._world = world = replace(world, directory=self._mirror, secrets=self._secrets)
        self._hub_clock = OffsetClock(world.clock)
        self._owner_slot = Slot(world.secrets, OWNER_SECRET)
        self._ownership = OwnerRecord(world.secrets, self._hub_clock, world.clock)
        self._naming = Naming(options, self._mirror)
        self._watch = AvailabilityWatch(world.spoke, world.clock)
        self._doubts = RejectedCredentials()
        self._cluster_uid = ""
        self._bootstrap = BootstrapWatch(world.bootstrap)
        self._looked_once = False
        self._chosen: HubId | None = None
        self._timed_by: HubId | None = None
        self._waits_for_first = True
        self._decision: HubDecision | None = None
        self.progress = progress or AgentProgress(world.clock)
        self.progress.verdict = lambda: self._watch.verdict
        ahead = options.standby_registration
        self._reserve: Reserve = Standby(options, world, self._announcements.tell) if ahead else NoReserve()
        choosing = replace(options.hubs, policy=replace(options.hubs.policy, registers_ahead=ahead))
        self._hubs = HubList(
            choosing,
            self._reserve,
            self.progress,
            clock=world.clock,
            timetable=world.timetable,
            random=world.random,
            stir=self._bootstrap.stir,
        )
        self._joining = Registration(options, world, None, hub_clock=self._hub_clock, progress=self.progress)
        surroundings = SessionSurroundings(
            spoke=world.spoke,
            management=world.management,
            watch=self._watch,
            claims=options.claims,
            endpoints=options.endpoints,
            resync=options.resync,
            clock=world.clock,
            hub_clock=self._hub_clock,
            timetable=world.timetable,
            progress=self.progress,
            random=world.random,
            reach=options.reach,
            silence=options.detection.silence,
            annotations=options.annotations,
            addons=options.addons,
        )
        self._parts = SessionContext(
            options,
            world,
            self._bootstrap,
            self._hubs,
            self._ownership,
            self._reserve,
            Registration(options, world, self._owner_slot, hub_clock=self._hub_clock, progress=self.progress),
            surroundings,
            self._hub_clock,
            self.progress,
            AddOnCredentials(),
            self._announcements,
        )

    async def run(self) -> None:
        """Run until cancelled. Raises InvalidError at the start when neither bootstrap kubeconfig nor credential is usable."""
        timetable, clock = self._world.timetable, self._world.clock
        timetable.every(BOOTSTRAP_LOOK, self._bootstrap.look, name="bootstrap-kubeconfig")
        if self._mirror is not None:
            timetable.every(MIRROR_RETRY, self._mirror.again, name="mirror")
        timetable.at(clock.now() + self._options.hubs.first, self._wait_no_more, name=FIRST)
        pauses = self._options.pauses
        retry, denied, overtaken = map(self._backoff, (pauses.retry, pauses.denied, pauses.refused))
        stop_listening = self._reserve.listen(self._bootstrap.stir)
        try:
            async with (
                self._bootstrap.watching(),
                beside(self._reserve.run),
                beside(self._announcements.run),
                beside(self._watch.run),
                beside(self._secrets.run),
            ):
                while True:
                    delay = await self._attempt(retry, denied, overtaken)
                    await self._bootstrap.rest(delay)
        finally:
            stop_listening()
            for name in ("bootstrap-kubeconfig", "mirror", FIRST):
                timetable.drop(name)

    def _wait_no_more(self) -> None:
        self._waits_for_first = False
        self._bootstrap.stir()

    async def _attempt(self, retry: Backoff, denied: Backoff, overtaken: Backoff) -> timedelta:
        """Run one round; return the pause before the next."""
        self._chosen = None
        try:
            await self._round(retry)
        except BootstrapChangedError:
            if self._bootstrap.replaced:
                log.info("bootstrap.replaced", source=self._world.bootstrap.source)
            return timedelta()
        except (StartOverError, LeaveError):
            return timedelta()
        except OvertakenError as error:
            return self.progress.troubled(error, overtaken.next(), "looking again at who is the owner")
        except RequestDeniedError as error:
            delay = denied.next()
            return self._elsewhere(error, delay, HubState.DENIED, "submitting a new request")
        except MusterError as error:
            if isinstance(error, InvalidError) and not self._looked_once:
                raise
            delay = retry.next()
            following = "registering again" if isinstance(error, FlawError) else "trying again"
            return self._elsewhere(error, max(delay, error.retry_after or delay), HubState.REGISTERING, following)
        except Exception:
            # A defect of ours must not disconnect the agent from its hub for good.
            delay = retry.next()
            log.exception("agent.failed", step=self.progress.step, in_seconds=round(delay.total_seconds(), 1))
            return delay
        raise AssertionError  # a round ends only with an error

    def _elsewhere(self, error: MusterError, delay: timedelta, state: HubState, following: str) -> timedelta:
        """With several hubs, the failed hub rests and the next round chooses; with one hub, return the pause."""
        if isinstance(error, FlawError) and self._chosen is not None:
            self._doubts.cast(self._chosen, error.finding)
        if self._chosen is not None and self._doubts.is_revoked(self._chosen):
            state = HubState.REVOKED
            self._hubs.meet(self._chosen, state)
        if self._chosen is None or not self._hubs.several:
            return self.progress.troubled(error, delay, following)
        self._hubs.meet(self._chosen, state)
        self._hubs.fail(self._chosen, error.message)
        self.progress.troubled(error, timedelta(), "choosing a hub")
        return timedelta()

    async def _round(self, retry: Backoff) -> None:
        """From the stored state to a session; returns only by raising when the session has ended."""
        self.progress.enter("reading the stored credential")
        listing = self._bootstrap.settle()
        owner, self._cluster_uid, _ = await asyncio.gather(self._ownership.read(), self._uid(), self._watch.look())
        chosen = await self._choose(listing, owner)
        slot = hub_slot(self._world.secrets, chosen)
        kept = await slot.read()
        if chosen == owner.hub_id:
            contents = await agreed(self._owner_slot, slot, chosen, held=owner.contents, kept=kept)
            owner = replace(owner, contents=contents)
        else:
            contents = credential_of(kept)
        bootstrap = listing.get(chosen)
        names = await self._name(owner, kept, listing)
        finding = self._judge(chosen, contents, bootstrap.connection if bootstrap else None, names)
        self._chosen = chosen
        self._attend(listing, names, owner)
        if finding is not None:
            contents, kept = await self._join(listing, names, contents, finding), {}
        self._looked_once = True
        owner = await self._own(owner, chosen, contents, renewed=finding is not None)
        self._attend(listing, names, owner)
        connection = stored_connection(owner.contents, self._options.reach)
        attachment = Attachment(self._parts, owner, connection, names, self._cluster_uid)
        try:
            await attachment.run(kept, retry)
        finally:
            self._timed_by = attachment.hub

    async def _uid(self) -> str:
        return self._cluster_uid or await self._world.spoke.uid()

    async def _choose(self, listing: BootstrapListing, owner: Owner) -> HubId:
        """Choose the hub of this round and wait for the end of its rest. Raises InvalidError when there is none."""
        hubs = self._hubs
        hubs.settle(listing, owner)
        if owner.hub_id is not None and not hubs.met(owner.hub_id):
            hubs.meet(owner.hub_id, HubState.READY)
        if hubs.several and isinstance(self._reserve, NoReserve):
            await self._look_into_slots(listing, owner)
        self._decision = decision = hubs.decide()
        if decision is None or not hubs.several:
            chosen = listing.hubs[0].hub_id if listing.hubs else owner.hub_id
            if chosen is None:
                raise listing.trouble or AssertionError
            return chosen
        if decision.not_before is not None:
            await self._bootstrap.rest(decision.not_before - self._world.clock.now())
            if self._bootstrap.changed:
                raise BootstrapChangedError
        return decision.hub_id

    async def _look_into_slots(self, listing: BootstrapListing, owner: Owner) -> None:
        """Without standby registration, take the state of the other hubs from their slots."""
        for hub in listing.hubs:
            if hub.hub_id == owner.hub_id or self._hubs.met(hub.hub_id):
                continue
            kept = view_stored(await hub_slot(self._world.secrets, hub.hub_id).read())
            self._hubs.meet(hub.hub_id, HubState.READY if kept.chain else HubState.REGISTERING)

    async def _name(self, owner: Owner, kept: Contents, listing: BootstrapListing) -> AgentNames:
        others = [] if credential_of(owner.contents) else [hub for hub in listing.hubs if hub.hub_id != self._chosen]
        asked = [kept, *[await hub_slot(self._world.secrets, hub.hub_id).read() for hub in others if len(listing.hubs) > 1]]
        return self._naming.choose(owner.contents, asked, listing)

    def _judge(
        self, hub: HubId, contents: Contents, bootstrap: HubConnection | None, names: AgentNames
    ) -> CredentialFinding | None:
        stored = view_stored(contents)
        finding = judge(stored, bootstrap.hub if bootstrap else None, names, self._hub_clock.now())
        doubt = self._doubts.take(hub, stored)
        if finding is not None and finding.about_time and (self._hub_clock.offset is None or hub != self._timed_by):
            return doubt  # our own clock, or the one of another hub, may be wrong: try the credential before giving it up
        return finding or doubt

    async def _join(
        self, listing: BootstrapListing, names: AgentNames, contents: Contents, finding: CredentialFinding
    ) -> Contents:
        chosen = self._chosen
        bootstrap = listing.get(chosen) if chosen is not None else None
        way = self._joining.way(contents, names, finding, bootstrap.connection if bootstrap else None)
        if way is None:
            raise listing.trouble or FlawError(finding)
        self._looked_once = True
        if chosen != self._timed_by:
            self._hub_clock.forget()
            self._timed_by = chosen
        if chosen is not None and not self._doubts.is_revoked(chosen):
            self._hubs.meet(chosen, HubState.REGISTERING)
        joining = self._joining.obtain(way, names, self._cluster_uid, contents, finding)
        return await self._bootstrap.unless_changed(joining, leave=self._leaves_joining)

    def _leaves_joining(self) -> bool:
        """Whether to stop registering: for a new list, or for another usable hub unless the preferred one may still answer."""
        if self._bootstrap.replaced:
            return True
        owner = self.progress.standing.owner
        self._bootstrap.acknowledge()
        decision = self._hubs.decide() if self._hubs.several else None
        if decision is None or decision.hub_id == self._chosen:
            return False
        return owner is not None or not self._waits_for_first

    async def _own(self, owner: Owner, chosen: HubId, contents: Contents, *, renewed: bool) -> Owner:
        """Record `chosen` as the owner with this credential; set an epoch when there are several hubs."""
        before = owner
        if renewed or chosen != owner.hub_id:
            owner = await self._ownership.give(owner, chosen, contents, reported_epoch=self._hubs.told)
        elif (not owner.epoch and self._hubs.several) or not self._ownership.keeps(owner):
            owner = await self._ownership.raise_epoch(owner, reported_epoch=self._hubs.told)
        self._hubs.meet(chosen, HubState.READY)  # until the session reports whether it is accepted
        if self._world.directory is not None:
            self._world.directory.replace(owner.contents)
        if self._hubs.several and self._decision is not None and self._hubs.take(self._decision):
            told = self._decision.why is not Why.KEPT and before.hub_id != chosen
            if told:
                self._announcements.tell(self._decision.why.value, self._decision.message)
        return owner

    def _attend(self, listing: BootstrapListing, names: AgentNames, owner: Owner) -> None:
        if self._chosen is None:
            raise AssertionError
        self._hubs.settle(listing, owner)
        self._hubs.deal_with(self._chosen)
        self._reserve.attend(StandbyContext(listing, names, self._cluster_uid, self._chosen, owner.hub_id, owner.epoch))

    def _backoff(self, pause: Pause) -> Backoff:
        return pause.backoff(self._world.random)
