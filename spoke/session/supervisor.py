"""Sessions with one hub as the owner, one after another, until the agent changes to another hub.

After a loss the agent first retries the same hub for a short random time, because restarts and drains of replicas end soon.
When the hub refuses, or the credential is unusable, it does not wait. The outer loop then reads everything again and chooses.
A move from a working hub is a handover: the session at the next hub opens with a raised epoch and carries a beat, before the
old hub gets the farewell and its session closes.
"""

import asyncio
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TypeVar

import structlog

from machinery.errors import MusterError
from machinery.identity import HubId
from machinery.runtime.backoff import Backoff
from spoke.bootstraps import BootstrapChangedError
from spoke.credentials.kubeconfigs import HubConnection, stored_connection
from spoke.credentials.owner import OvertakenError, Owner
from spoke.credentials.slot import Contents, hub_slot
from spoke.credentials.trust_bundle import known_by
from spoke.domain.hubs import HubDecision, HubState, ListedHub, Why, incredible, is_credible
from spoke.domain.names import AgentNames
from spoke.failover.candidates import ReconnectBudget
from spoke.options import Pause
from spoke.ports import HubLostError, SessionEnd, SessionEpochError
from spoke.registration.csr_flow import Enrolment, pends_for
from spoke.session.active_session import ActiveSession, HubNews, KeepAddOns, TellNews
from spoke.session.context import LeaveError, SessionContext, judge_loss
from spoke.session.handover import Handover
from spoke.session.open_session import opened, registrar_of
from spoke.session.owner_secret import OwnerSecret
from spoke.session.runner import SessionRun
from spoke.session.trust_bundle_sync import Stay, TrustBundleSync

T = TypeVar("T")

SHORTEST_DIAL = 0.25
"""Seconds that a dial may take even if less time of the trial is left."""
PATIENT = (SessionEnd.UNREACHABLE, SessionEnd.SILENT, SessionEnd.DRAINED)
"""Losses that may be over in a moment."""

log = structlog.get_logger(__name__)


class Attachment(HubNews, Stay):
    """The stay with one hub; the work is done by `run`."""

    def __init__(
        self, parts: SessionContext, owner: Owner, connection: HubConnection, names: AgentNames, cluster_uid: str
    ) -> None:
        self._parts = parts
        self._holding = OwnerSecret(parts, owner, names, cluster_uid)
        self._connection = connection
        self._previous: HubConnection | None = None
        self._names = names
        self._cluster_uid = cluster_uid
        self._run: SessionRun | None = None
        self._trial = ReconnectBudget(parts.options.hubs, lambda: parts.hubs.is_lost, parts.world.clock, parts.world.random)
        pauses = parts.options.pauses
        self._reconnect, self._superseded = map(self._backoff, (pauses.retry, pauses.refused))
        self._unwelcome = self._backoff(pauses.unwelcome)

    @property
    def hub(self) -> HubId:
        return self._connection.hub_id

    async def run(self, kept: Contents, retry: Backoff) -> None:
        """Never returns. Raises the errors that the outer loop decides about."""
        parts = self._parts
        rotation = await self._rotation(kept)
        link: ActiveSession | None = None
        while True:
            try:
                if link is None:
                    link = await parts.bootstrap.unless_changed(self._dialled(), leave=self._leaves)
                self._be_open(retry)
                if link.connection.certificate.serial != self._connection.certificate.serial:
                    self._stand_on(link)
                    rotation = await self._rotation({})
                link = await parts.bootstrap.unless_changed(self._session(link, rotation), leave=self._reconsider)
            except HubLostError as lost:
                link = None
                await self._after(lost)

    def accepted(self, *, accepted: bool) -> None:
        ends_at = self._connection.chain[-1].not_after if self._connection.chain else None
        self._parts.hubs.meet(self.hub, HubState.READY if accepted else HubState.NOT_ACCEPTED, ends_at)

    def asked_to_move(self, target: HubId, why: str) -> None:
        hubs = self._parts.hubs
        if target == self.hub:
            return
        if refusal := hubs.refuse_move(target):
            log.warning("hub.move_refused", to=hubs.name_of(target), because=refusal)
            self._parts.announcements.tell(
                "HubMoveRefused", f"the agent does not move as asked ({why}): {refusal}", warning=True
            )
            return
        message = f"the hub {hubs.name_of(self.hub)} asks the agent to move ({why})"
        self._move(HubDecision(target, Why.MOVED, message))

    def listed(self) -> tuple[ListedHub, ...]:
        return self._parts.hubs.listed()

    async def follow_trust(self, link: ActiveSession, addons: KeepAddOns, tell: TellNews) -> None:
        await TrustBundleSync(self._parts, self).follow(link, addons, tell)

    def know_by(self, authorities: bytes) -> None:
        self._connection = known_by(self._connection, authorities)
        self._previous = self._previous and known_by(self._previous, authorities)

    # -- opening

    async def _dialled(self) -> ActiveSession:
        """Open a link to the owner. While another hub is usable, it takes no longer than the rest of the trial."""
        await self._holding.take_back(self.hub)
        left = self._trial.left
        try:
            async with asyncio.timeout(max(left, SHORTEST_DIAL) if left is not None and self._parts.hubs.is_better() else None):
                return await self.open(self._connection)
        except TimeoutError as error:
            raise HubLostError("the hub did not answer in time", SessionEnd.UNREACHABLE) from error

    async def open(self, connection: HubConnection, owner: Owner | None = None) -> ActiveSession:
        """Open a link with the content of the owner's secret. Raises HubLostError."""
        return await opened(self._parts, connection, owner or self._holding.owner, self._cluster_uid)

    def _be_open(self, retry: Backoff) -> None:
        self._reconnect.reset()
        retry.reset()
        self._trial.opened()
        self._parts.hubs.be_open()

    def _stand_on(self, link: ActiveSession) -> None:
        """Make the link that took over current; it has a new certificate or another hub."""
        moved = link.connection.hub_id != self.hub
        self._previous = None if moved else self._connection
        self._connection = link.connection
        if moved:
            self._trial.moved()
            self._holding.owner = link.owner
            self._holding.attend(self.hub)

    # -- a session

    async def _session(self, link: ActiveSession, rotation: Enrolment) -> ActiveSession:
        parts = self._parts

        around, registrar = replace(parts.surroundings, hubs=self), registrar_of(parts, self._names, self._cluster_uid)
        try:
            self._run = SessionRun(link, around, open_link=self.open, rotation=rotation, registration=registrar)
            after = await self._run.run()
            if after.connection.hub_id != link.connection.hub_id:
                await link.session.farewell(after.connection.hub_id, after.owner.epoch)
            return after
        finally:
            self._run = None
            await link.close()

    async def _rotation(self, kept: Contents) -> Enrolment:
        """The renewal of the present certificate, resumed if a request is pending."""
        slot = hub_slot(self._parts.world.secrets, self.hub)
        enrolment = self._parts.joining.renewal(self._connection, self._names, self._cluster_uid, slot)
        if pends_for(kept, self._connection.certificate.public_key):
            await slot.forget()  # the previous run ended after storing the certificate and before deleting its request
        else:
            enrolment.resume(kept)
        return enrolment

    # -- going elsewhere

    def _leaves(self) -> bool:
        """While dialling: whether this hub is off the list, or its trial is over and another hub is the choice."""
        if self._is_off():
            return True
        return self._trial.is_over and self._elsewhere() is not None

    def _reconsider(self) -> bool:
        """While a session is open: whether to end it now. Sends a changed list and begins a handover without ending it."""
        if self._is_off():
            return True
        if self._run is not None:
            self._run.tell_hubs()
            if self._parts.hubs.told > self._holding.owner.epoch:
                self._run.go_over(Handover(self._outgrown, once=True))
                return False
        if (decision := self._elsewhere()) is not None and decision.not_before is None:
            self._move(decision)
        return False

    def _is_off(self) -> bool:
        """Settle the list; return whether this hub is off it or changed. A new credential or another hub is no reason."""
        parts = self._parts
        if not parts.bootstrap.replaced:
            parts.bootstrap.acknowledge()
            return False
        listing = parts.bootstrap.settle()
        parts.hubs.settle(listing, self._holding.owner)
        if not listing.hubs:
            return False
        own = listing.get(self.hub)
        if own is None or self._connection.hub.difference(own.connection.hub):
            return True
        self._holding.attend(self.hub)
        return False

    def _elsewhere(self) -> HubDecision | None:
        decision = self._parts.hubs.decide() if self._parts.hubs.several else None
        if decision is None:
            return None
        if decision.hub_id == self.hub:
            self._parts.hubs.take(decision)
            return None
        return decision

    def _move(self, decision: HubDecision) -> None:
        if self._run is not None:
            self._run.go_over(Handover(partial(self._go_over, decision), once=True, undo=partial(self._stay, decision)))

    async def _go_over(self, decision: HubDecision) -> ActiveSession:
        """Make another hub the owner and open the link."""
        parts, holding = self._parts, self._holding
        holding.owner = owner = await holding.give(holding.owner, decision.hub_id)
        link = await self.open(stored_connection(owner.contents, parts.options.reach), owner)
        parts.hubs.settle(parts.bootstrap.listing, owner)
        self._announce(decision)
        return link

    async def _stay(self, decision: HubDecision, error: HubLostError) -> None:
        """After a failed handover, make this hub the owner again; retry until that is written."""
        parts = self._parts
        parts.hubs.fail(decision.hub_id, error.message)
        parts.announcements.tell("HubMoveFailed", f"{decision.message}; but {error.message}", warning=True)
        pauses = self._backoff(parts.options.pauses.retry)
        while True:
            try:
                return await self._holding.take_back(self.hub)
            except OvertakenError:
                raise
            except MusterError as failed:
                log.warning("hub.owner_not_put_back", error=failed.message)
                await asyncio.sleep(pauses.next().total_seconds())

    async def _outgrown(self) -> ActiveSession:
        await self._holding.outgrow(self.hub)
        return await self.open(self._connection)

    def _announce(self, decision: HubDecision) -> None:
        if self._parts.hubs.take(decision):
            self._parts.announcements.tell(decision.why.value, decision.message)

    # -- after a loss

    async def _after(self, lost: HubLostError) -> None:
        """Handle a loss: return when the same hub is to be dialled again; else raise."""
        if lost.loss is SessionEnd.UNAUTHENTICATED and self._previous is not None:
            log.warning("certificate.fallback", why=lost.message, next="the certificate before")
            self._connection, self._previous = self._previous, None
            return
        if self._trial.lost():
            self._parts.hubs.be_steady(self.hub)
            self._holding.be_steady()
        if isinstance(lost, SessionEpochError):
            if is_credible(lost.epoch, self._parts.world.clock.now()):
                await self._holding.heal(lost, self.hub)
                return
            name = self._parts.hubs.name_of(self.hub)
            lost = HubLostError(f"the hub {name} takes no session: {incredible(lost.epoch)}", SessionEnd.REFUSED)
        if lost.loss is SessionEnd.SUPERSEDED:
            await self._holding.confirm()
        judge_loss(lost, self._connection.chain, self._parts.hub_clock.now())
        pauses = {SessionEnd.REFUSED: self._unwelcome, SessionEnd.SUPERSEDED: self._superseded}
        delay = pauses.get(lost.loss, self._reconnect).next()
        await self._rest(lost, max(delay, lost.retry_after or delay))

    async def _rest(self, lost: HubLostError, delay: timedelta) -> None:
        hubs = self._parts.hubs
        left = self._trial.left if lost.loss in PATIENT else 0.0
        if lost.loss is SessionEnd.REFUSED:
            hubs.meet(self.hub, HubState.DENIED)
        if hubs.several:
            if not left:
                self._give_up(lost)
            elif hubs.is_better():
                delay = min(delay, timedelta(seconds=left))
        await self._parts.bootstrap.rest(self._parts.progress.troubled(lost, delay, "reconnecting"))
        if self._parts.bootstrap.changed and self._leaves():
            raise BootstrapChangedError from lost

    def _give_up(self, lost: HubLostError) -> None:
        """Let the hub rest. Raises LeaveError when another hub is to own the session."""
        hubs = self._parts.hubs
        hubs.fail(self.hub, lost.message)
        if self._elsewhere() is not None:
            raise LeaveError from lost

    def _backoff(self, pause: Pause) -> Backoff:
        return pause.backoff(self._parts.world.random)
