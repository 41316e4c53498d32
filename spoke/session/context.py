"""Parts that the sessions of an agent share: the agent's context, an open session, and the owner's secret."""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import structlog

from machinery.errors import MusterError
from machinery.identity import HubId, SerialNumber
from machinery.meta.conditions import Condition
from machinery.runtime.clock import OffsetClock
from spoke.bootstraps.watch import BootstrapWatch
from spoke.controllers.addons import AddOnCredentials
from spoke.controllers.status import AvailabilityWatch
from spoke.credentials.kubeconfigs import HubConnection, view_stored
from spoke.credentials.owner import Owner, OwnerRecord
from spoke.credentials.slot import credential_of, hub_slot
from spoke.credentials.trust_bundle import fingerprints
from spoke.domain.credential import judge
from spoke.domain.names import AgentIdentity
from spoke.domain.next_step import SessionLoss
from spoke.failover.candidates import HubList
from spoke.observability.event_recorder import Announcements
from spoke.observability.progress import AgentProgress
from spoke.options import AgentOptions, AgentPorts
from spoke.ports.hub import HubClient, HubLostError, HubSession, SessionEpochError, SessionHello, TransportFeature

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class AgentContext:
    """The parts of an agent, one instance of each. `hub_clock` returns the hub's time."""

    options: AgentOptions
    ports: AgentPorts
    bootstrap: BootstrapWatch
    hubs: HubList
    hub_clock: OffsetClock
    progress: AgentProgress
    watch: AvailabilityWatch
    announcements: Announcements
    conditions: dict[SerialNumber, Condition] = field(default_factory=dict)
    """The newest condition about a renewal, by the serial number of the certificate that was to be renewed."""
    addon_credentials: AddOnCredentials = field(default_factory=dict)
    """The add-on credentials that the agent maintains."""


@dataclass(slots=True)
class ActiveSession:
    connection: HubConnection
    client: HubClient
    session: HubSession
    close: Callable[[], Awaitable[None]]
    owner: Owner = field(default_factory=Owner)
    """The content of the owner's secret at the time of the dial."""


async def open_session(agent: AgentContext, connection: HubConnection, owner: Owner, cluster_uid: str) -> ActiveSession:
    """Dial the hub with the owner's epoch and open a session. Raises HubLostError."""
    agent.progress.enter("opening a session with the hub")
    client = agent.ports.dial(connection.address, connection.identity)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(client.close)
        greeting = SessionHello(cluster_uid, owner.epoch, agent.hubs.listed(), fingerprints(connection.address.ca))
        try:
            session = await stack.enter_async_context(client.session(greeting))
        except HubLostError:
            raise
        except MusterError as error:
            raise HubLostError(error.message) from error
        stack.enter_context(agent.progress.connected(arbitrated=TransportFeature.ONE_SESSION in client.features))
        agent.hub_clock.set_time(agent.ports.clock.now() + session.hub_time_offset)
        log.info("session.opened", hub=connection.address.target, epoch=owner.epoch)
        return ActiveSession(connection, client, session, stack.pop_all().aclose, owner)
    raise AssertionError


class OwnerSecret:
    """Writes the owner's secret for the sessions. `owner`: the content that was last read or written."""

    def __init__(self, agent: AgentContext, identity: AgentIdentity, owner: Owner) -> None:
        self.owner = owner
        self._agent = agent
        self._identity = identity
        self._record = OwnerRecord(agent.ports.secrets, agent.hub_clock, agent.ports.clock)
        self._epoch_pauses = agent.options.pauses.epoch.backoff(agent.ports.random)

    def attend(self, busy: HubId) -> None:
        """Notify standby registration of the owner and of `busy`, the hub that the agent itself works with."""
        self._agent.hubs.attend(self._agent.bootstrap.listing, self.owner, busy, self._identity)

    async def give(self, known: Owner, hub: HubId) -> Owner:
        """Make `hub` the owner in the secret, with the credential of its slot. Raises HubLostError if this fails.

        Return the new owner. The caller sets `self.owner`.
        """
        try:
            credential = credential_of(await hub_slot(self._agent.ports.secrets, hub).read())
        except MusterError as error:
            raise HubLostError(f"the credential could not be read: {error.message}") from error
        finding = judge(view_stored(credential), None, self._identity.names, self._agent.hub_clock.now())
        if finding is not None and not finding.about_time:  # the time comes from the previous hub and may be wrong
            self._agent.hubs.fail(hub, finding.message)
            raise HubLostError(finding.message, SessionLoss.UNAUTHENTICATED)
        try:
            owner = await self._record.give(known, hub, credential, reported_epoch=self._agent.hubs.reported_epoch)
        except MusterError as error:
            raise HubLostError(f"the owner's secret could not be changed: {error.message}") from error
        self._mirror(owner)
        return owner

    async def take_back(self, hub: HubId) -> None:
        """Make `hub` the owner again if the secret names another hub. This must happen before the agent dials a hub.

        Raises OwnerConflictError, and errors of reads and writes.
        """
        if self.owner.hub_id not in (None, hub):
            await self.confirm()
            self.owner = await self.give(self.owner, hub)
            self.attend(hub)

    async def confirm(self) -> None:
        """Raise OwnerConflictError if another process of this agent has stored a newer owner than `self.owner`."""
        await self._record.confirm(self.owner)

    async def raise_epoch_above(self, stale: SessionEpochError, hub: HubId) -> None:
        """Raise the epoch above `stale.epoch`. Raises OwnerConflictError if another process has stored a newer owner."""
        await self.confirm()
        failed_before, delay = self._epoch_pauses.failures, self._epoch_pauses.next()
        if failed_before:
            await self._agent.bootstrap.rest(self._agent.progress.log_failure(stale, delay, "raising the epoch"))
        await self._raise_epoch(stale.epoch, f"the hub {self._agent.hubs.name_of(hub)}", hub)

    async def raise_epoch_for_standby(self, hub: HubId) -> None:
        """Raise the epoch above the epoch that a standby hub has stored with another owner. Raises HubLostError."""
        try:
            await self._raise_epoch(self._agent.hubs.reported_epoch, "a standby hub", hub)
        except MusterError as error:
            raise HubLostError(f"the epoch could not be raised: {error.message}") from error

    def reset_failures(self) -> None:
        """Reset the backoff of epoch increases, because a session has lasted long enough."""
        self._epoch_pauses.reset()

    async def _raise_epoch(self, reported: int, source: str, busy: HubId) -> None:
        before = self.owner.epoch
        self.owner = await self._record.raise_epoch(self.owner, reported_epoch=reported)
        now = self.owner.epoch
        log.warning("hub.epoch_raised", known=reported, before=before, epoch=now)
        cause = "the secret was deleted or restored from a backup"
        message = f"{source} knows the epoch {reported}, and the owner's secret had {before}: {cause}; the epoch is {now} now"
        self._agent.announcements.record("HubEpochRaised", message, warning=True)
        self._mirror(self.owner)
        self.attend(busy)

    def _mirror(self, owner: Owner) -> None:
        if self._agent.ports.directory is not None:
            self._agent.ports.directory.replace(owner.contents)
