"""The composition root: the sections of a hub, and the order in which they are assembled."""

from collections.abc import Callable
from contextlib import AsyncExitStack

import structlog

from hub.composition.access import open_access
from hub.composition.agents import build_agents_door
from hub.composition.authenticators import ExternalAuthenticators, external_authenticators
from hub.composition.background import start_background_tasks
from hub.composition.certificates import open_certificates
from hub.composition.context import BuildContext, ProcessContext
from hub.composition.controllers import start_controllers
from hub.composition.hub import Hub
from hub.composition.observation import register_health
from hub.composition.operators import build_operators_door, open_loopback
from hub.composition.resources import open_resources
from hub.process import main as run_process
from hub.settings import HubSettings
from machinery.apiserver.http.loopback import LoopbackClient
from machinery.lifecycle.server import Server
from machinery.runtime.clock import Clock, SystemClock

log = structlog.get_logger(__name__)

Extend = Callable[[Server, LoopbackClient], None]
"""Adds hooks, health checks or doors to a hub. The client calls the hub's own API."""


async def build(
    settings: HubSettings,
    clock: Clock,
    process: ProcessContext,
    stack: AsyncExitStack,
    *,
    leads: bool = True,
    authenticators: ExternalAuthenticators = external_authenticators,
    extend: Extend | None = None,
) -> Hub:
    """Assemble a hub. `stack` closes what it opens. Several hubs can be in one process.

    A door with port 0 gets a free port: see `context.settings` of the result. `leads`: whether this replica takes part in the
    election; if not, it runs no leader-elected controllers. Raises StartError, MusterError.
    """
    context = await BuildContext.open(settings, clock, process, stack)
    resources = await open_resources(context)
    certificates = await open_certificates(context, resources)
    access = await open_access(context, resources)
    agents = await build_agents_door(context, resources, certificates, access)
    leading = await start_controllers(context, resources, certificates, access, agents, leads=leads)
    loopback = await open_loopback(context, certificates)
    if extend is not None:
        extend(context.server, loopback.client)
    log_progress = register_health(context, resources, certificates, loopback)
    operators = await build_operators_door(context, resources, certificates, access, loopback, authenticators=authenticators)
    hub = Hub(context, resources, certificates, access, agents, leading, operators)
    await start_background_tasks(hub, log_progress)
    log.info(
        "hub is set up",
        hub=resources.hub_id,
        replica=resources.replica,
        data=str(resources.directory.path),
        admin_kubeconfig=str(certificates.admin_path),
        server=certificates.cluster.server,
    )
    return hub


def main(settings: HubSettings, extend: Extend | None = None) -> int:
    """Run a hub until a stop is requested; return the exit code. If it cannot start, one line on standard error says why."""

    async def start(process: ProcessContext, stack: AsyncExitStack) -> Hub:
        return await build(settings, SystemClock(), process, stack, extend=extend)

    return run_process(settings, start)
