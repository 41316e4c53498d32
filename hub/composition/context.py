"""The common input of all sections: settings, clock, process, and registries for parts."""

from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Self

from hub.api.certificates import Lifetimes
from hub.composition.shutdown import ShutdownReason, stop_times_of
from hub.metrics import told_metrics
from hub.replica.installation import Addresses, lifetimes_of
from hub.settings import HubSettings
from machinery.lifecycle.debug import Inspection
from machinery.lifecycle.process import Verbosity
from machinery.lifecycle.server import Server
from machinery.lifecycle.startup import reserved_port
from machinery.observability.metrics import Registry
from machinery.runtime.clock import Clock


@dataclass(frozen=True, slots=True)
class ProcessContext:
    """What a hub shares with its process: the reason to stop, the debug report, the log level."""

    shutdown: ShutdownReason
    inspection: Inspection
    verbosity: Verbosity


@dataclass(frozen=True, slots=True)
class BuildContext:
    """`stack` closes what a section opens, in reverse order. `server` takes doors, hooks and health checks."""

    settings: HubSettings
    lifetimes: Lifetimes
    addresses: Addresses
    clock: Clock
    process: ProcessContext
    stack: AsyncExitStack
    server: Server
    metrics: Registry

    @classmethod
    async def open(cls, settings: HubSettings, clock: Clock, process: ProcessContext, stack: AsyncExitStack) -> Self:
        """Serves metrics from here on, also while the hub waits for its database. Raises StartError."""
        settings = _with_ports(settings, stack)
        return cls(
            settings=settings,
            lifetimes=lifetimes_of(settings),
            addresses=Addresses.of(settings),
            clock=clock,
            process=process,
            stack=stack,
            server=Server(clock, stop_times_of(settings), livez_grace=settings.livez_grace),
            metrics=await told_metrics(settings, stack),
        )


def _with_ports(settings: HubSettings, stack: AsyncExitStack) -> HubSettings:
    """Choose a free port for each door with port 0 now, because kubeconfigs and certificates contain it."""
    listening = {"grpc_listen": settings.grpc_listen, "https_listen": settings.https_listen}
    chosen = {
        name: replace(address, port=stack.enter_context(reserved_port(address.host)))
        for name, address in listening.items()
        if not address.port
    }
    return settings.model_copy(update=chosen) if chosen else settings
