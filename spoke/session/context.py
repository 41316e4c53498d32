"""What the sessions of an agent share, and one open session."""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import structlog

from machinery.errors import MusterError
from machinery.meta.conditions import Condition
from machinery.runtime.clock import OffsetClock
from spoke.bootstraps import BootstrapWatch
from spoke.controllers.addons import AddOnCredentials
from spoke.controllers.status import AvailabilityWatch
from spoke.credentials.kubeconfigs import HubConnection
from spoke.credentials.owner import Owner
from spoke.credentials.trust_bundle import fingerprints
from spoke.domain.names import AgentIdentity
from spoke.failover.candidates import HubList
from spoke.observability.event_recorder import Announcements
from spoke.observability.progress import AgentProgress
from spoke.options import AgentOptions, World
from spoke.ports.hub import Capability, Greeting, HubClient, HubLostError, HubSession

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class AgentContext:
    """The parts of an agent, one instance of each. `hub_clock` shows the hub's time."""

    options: AgentOptions
    world: World
    bootstrap: BootstrapWatch
    hubs: HubList
    hub_clock: OffsetClock
    progress: AgentProgress
    watch: AvailabilityWatch
    announcements: Announcements


@dataclass(frozen=True, slots=True)
class Member:
    """The agent at its hubs, with the state that outlives sessions."""

    identity: AgentIdentity
    conditions: dict[str, Condition] = field(default_factory=dict)
    """Further conditions of the cluster to report, by type."""
    addons: AddOnCredentials = field(default_factory=AddOnCredentials)


@dataclass(slots=True)
class ActiveSession:
    """An open session and its connection."""

    connection: HubConnection
    client: HubClient
    session: HubSession
    close: Callable[[], Awaitable[None]]
    owner: Owner = field(default_factory=Owner)
    """The content of the owner's secret when the hub was dialled."""


async def open_session(agent: AgentContext, connection: HubConnection, owner: Owner, cluster_uid: str) -> ActiveSession:
    """Dial the hub with the owner's epoch and open a session. Raises HubLostError."""
    agent.progress.enter("opening a session with the hub")
    client = agent.world.dial(connection.address, connection.identity)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(client.close)
        greeting = Greeting(cluster_uid, owner.epoch, agent.hubs.listed(), fingerprints(connection.address.ca))
        try:
            session = await stack.enter_async_context(client.session(greeting))
        except HubLostError:
            raise
        except MusterError as error:
            raise HubLostError(error.message) from error
        stack.enter_context(agent.progress.connected(arbitrated=Capability.ONE_SESSION in client.capabilities))
        agent.hub_clock.learn(agent.world.clock.now() + session.hub_time_offset)
        log.info("session.opened", hub=connection.address.target, epoch=owner.epoch)
        return ActiveSession(connection, client, session, stack.pop_all().aclose, owner)
    raise AssertionError
