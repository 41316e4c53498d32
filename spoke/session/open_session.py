"""Opens a session with a hub, and creates the add-on registration controller for it."""

from contextlib import AsyncExitStack

import structlog

from machinery.errors import MusterError
from spoke.controllers.addon_registration import AddOnCertificates
from spoke.credentials.kubeconfigs import HubConnection
from spoke.credentials.owner import Owner
from spoke.credentials.slot import slot_at
from spoke.credentials.trust_bundle import fingerprints
from spoke.domain.names import AgentNames
from spoke.ports import Capability, Greeting, HubLostError
from spoke.registration.addon_credentials import AddOnContext
from spoke.session.active_session import ActiveSession, Registrar
from spoke.session.context import SessionContext

log = structlog.get_logger(__name__)


async def opened(parts: SessionContext, connection: HubConnection, owner: Owner, cluster_uid: str) -> ActiveSession:
    """Dial the hub with the owner's epoch and open a session. Raises HubLostError."""
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
        return ActiveSession(connection, client, session, stack.pop_all().aclose, owner)
    raise AssertionError


def registrar_of(parts: SessionContext, names: AgentNames, cluster_uid: str) -> Registrar:
    """Create the add-on registration controller of a link, for its hub."""

    def registrar(link: ActiveSession) -> AddOnCertificates:
        hub = link.connection.hub_id
        registered = AddOnContext(
            names=names,
            cluster_uid=cluster_uid,
            kubeconfig=link.connection.kubeconfig,
            secrets=parts.world.addon_secrets,
            pending=lambda secret: slot_at(parts.world.secrets, secret, hub),
            duration=parts.options.duration,
            hub_id=hub,
            care=parts.options.addons,
        )
        return AddOnCertificates(link.client, link.session, registered, parts.certificates, parts.hub_clock)

    return registrar
