"""The composition root: the sections of a hub, the order in which they are assembled, and the extensions."""

import shlex
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

import structlog

from hub.composition.agents import AgentsDoor, build_agents_door
from hub.composition.context import BuildContext, ProcessContext
from hub.composition.core import Extension, HubCore, open_core
from hub.composition.operators import OperatorsDoor, build_operators_door
from hub.composition.replica import register_heartbeat, start_controllers
from hub.extensions import aggregation, attestation, clusteradm, console, ocm_grpc, token_login
from hub.extensions.kube_cert_agent import installation as kube_cert_agent
from hub.process import main as run_process
from hub.replica.leader_election import Leading
from hub.settings import HubSettings
from machinery.lifecycle.server import Server
from machinery.observability import logs
from machinery.runtime.clock import Clock, SystemClock

EXTENSIONS: Sequence[Extension] = (
    aggregation.install,
    attestation.install,
    clusteradm.install,
    console.install,
    kube_cert_agent.install,
    ocm_grpc.install,
    token_login.install,
)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Hub:
    """The sections of an assembled hub. `core.context.settings` has the ports of the doors."""

    core: HubCore
    agents: AgentsDoor
    leading: Leading
    operators: OperatorsDoor


async def build(
    settings: HubSettings,
    clock: Clock,
    process: ProcessContext,
    stack: AsyncExitStack,
    *,
    leads: bool = True,
    extensions: Sequence[Extension] = EXTENSIONS,
) -> Hub:
    """Assemble a hub. Its server can then run. `stack` closes everything that is opened. Several hubs can be in one process.

    A door with port 0 gets a free port: see `core.context.settings` of the result. `leads`: whether this replica takes part in
    the election; if not, it runs no leader-elected controllers. Raises StartError, MusterError.
    """
    context = await BuildContext.open(settings, clock, process, stack)
    core = await open_core(context)
    for install in extensions:
        await install(core)
    agents = await build_agents_door(core)
    leading = await start_controllers(core, agents, leads=leads)
    operators = await build_operators_door(core)
    for add in core.more_doors:
        add(agents.parts.cordon, operators.door, operators.draining)
    register_heartbeat(core, agents, operators)
    await context.start_tasks()
    log.info(
        "hub is set up",
        hub=core.resources.hub_id,
        replica=core.resources.replica,
        data=str(core.resources.directory.path),
        admin_kubeconfig=str(core.certificates.admin_path),
        server=core.certificates.cluster.server,
    )
    return Hub(core, agents, leading, operators)


def main(settings: HubSettings, extensions: Sequence[Extension] = EXTENSIONS) -> int:
    """Run a hub until a stop is requested, and return the exit code. If it cannot start, print one line to standard error."""

    async def assemble(process: ProcessContext, stack: AsyncExitStack) -> Server:
        hub = await build(settings, SystemClock(), process, stack, extensions=extensions)
        server = hub.core.context.server
        server.signals.has_been_ready.callbacks.append(lambda: show_ready(hub))
        return server

    return run_process(settings, assemble)


def show_ready(hub: Hub) -> None:
    """Print the hub's addresses, and the commands for the first cluster, if the log has the format `console`."""
    addresses, admin = hub.core.context.addresses, hub.core.certificates.admin_path.absolute()
    local = any(address.is_loopback for address in (addresses.grpc, addresses.https))
    rows = {
        "agents": f"{addresses.grpc} (gRPC)",
        "operators": f"{hub.core.certificates.cluster.server} (Kubernetes API)",
        "admin kubeconfig": str(admin),
        "next": "in another terminal, make the credential with which a cluster joins",
    }
    create = (
        f"hubctl create bootstrap-kubeconfig --cluster cluster1 {'--allow-loopback ' if local else ''}-o cluster1.bootstrap"
    )
    logs.show("The hub is ready.", rows, f"export HUBCTL_KUBECONFIG={shlex.quote(str(admin))}", create)
