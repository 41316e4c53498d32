"""Opening a session with a hub: dialled, greeted, and welcomed."""

from contextlib import AsyncExitStack

import structlog

from machinery.errors import MusterError
from spoke.kubeconfigs import Connection
from spoke.link import Link
from spoke.ownership import Owner
from spoke.parts import Parts
from spoke.ports import Capability, Greeting, HubLostError
from spoke.trust import fingerprints

log = structlog.get_logger(__name__)


async def opened(parts: Parts, connection: Connection, owner: Owner, cluster_uid: str) -> Link:
    """A link with what the owner's secret says. Raises HubLostError."""
    parts.progress.enter("opening a session with the hub")
    client = parts.world.dial(connection.address, connection.identity)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(client.close)
        trusted = fingerprints(connection.address.ca)
        greeting = Greeting(cluster_uid, owner.epoch, parts.hubs.listed(), trusted)
        try:
            session = await stack.enter_async_context(client.session(greeting))
        except HubLostError:
            raise
        except MusterError as error:
            raise HubLostError(error.message) from error
        stack.enter_context(parts.progress.connected(arbitrated=Capability.ONE_SESSION in client.capabilities))
        parts.hub_clock.learn(parts.world.clock.now() + session.hub_time_offset)
        log.info("session.opened", hub=connection.address.target, epoch=owner.epoch)
        return Link(connection, client, session, stack.pop_all().aclose, owner)
    raise AssertionError
