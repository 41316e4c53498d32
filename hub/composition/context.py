"""The input of all sections of a hub: settings, clock, process, and the registries in which sections register their parts."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any, Self

from hub.api.certificates import Lifetimes
from hub.metrics.replica import add_server, open_metrics
from hub.replica.installation import Addresses, lifetimes_of
from hub.settings import HubSettings
from hub.settings.fields import Address
from machinery.lifecycle.debug import Inspection
from machinery.lifecycle.process import Verbosity
from machinery.lifecycle.server import Server, StopTimes
from machinery.lifecycle.startup import reserved_port
from machinery.observability import logs
from machinery.observability.metrics import Registry
from machinery.runtime.clock import Clock
from machinery.runtime.health import LoopProgress
from machinery.runtime.tasks import GuardedTasks

FLUSH_EVERY = timedelta(seconds=60)
FLUSHED_WITHIN = timedelta(minutes=2)


class ShutdownReason:
    """Why a hub stops: a request, or the first failure of one of its tasks. `requested` is set in both cases."""

    def __init__(self, requested: asyncio.Event) -> None:
        self.requested = requested
        self._failure: BaseException | None = None

    def failed(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self.requested.set()

    async def wait(self) -> BaseException | None:
        """Wait until the hub has to stop. Return the failure that is the reason; None: a stop was requested."""
        await self.requested.wait()
        return self._failure


@dataclass(frozen=True, slots=True)
class ProcessContext:
    """What a hub shares with its process: the reason to stop, the debug report, the log level."""

    shutdown: ShutdownReason
    inspection: Inspection
    verbosity: Verbosity


@dataclass(frozen=True, slots=True)
class BuildContext:
    """The input of all sections of a hub. Each section registers its parts here, and nowhere else.

    `stack` closes what a section opens, in reverse order. `server` takes doors, hooks and health checks; `metrics` takes
    bindings; `inspection` takes sections of the debug report; `add_task` takes coroutines that must run while the hub serves.
    """

    settings: HubSettings
    lifetimes: Lifetimes
    addresses: Addresses
    clock: Clock
    process: ProcessContext
    stack: AsyncExitStack
    server: Server
    metrics: Registry
    _tasks: dict[str, Callable[[], Coroutine[Any, Any, None]]] = field(default_factory=dict)

    @classmethod
    async def open(cls, settings: HubSettings, clock: Clock, process: ProcessContext, stack: AsyncExitStack) -> Self:
        """Create the context. Start to serve metrics now, before the hub waits for its database. Raises StartError."""
        settings = _with_ports(settings, stack)
        server = Server(clock, stop_times_of(settings), livez_grace=settings.livez_grace)
        log_progress = LoopProgress(clock, FLUSHED_WITHIN)
        server.health.add("log", log_progress)
        metrics = await open_metrics(settings, stack)
        addresses, lifetimes = Addresses.of(settings), lifetimes_of(settings)
        context = cls(settings, lifetimes, addresses, clock, process, stack, server, metrics)
        context.add_task("log", partial(_flush_log, log_progress))
        context.add_task("event loop", add_server(metrics, server))
        return context

    @property
    def inspection(self) -> Inspection:
        return self.process.inspection

    def add_task(self, name: str, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Add a task of the hub. Raises ValueError for a duplicate name."""
        if name in self._tasks:
            raise ValueError(f'a task named "{name}" is there already')
        self._tasks[name] = run

    async def start_tasks(self) -> None:
        """Run all tasks until `stack` closes. A task that ends earlier stops the hub."""
        running = await self.stack.enter_async_context(GuardedTasks("hub", on_end=self.process.shutdown.failed))
        for name, run in self._tasks.items():
            running.start(name, run())


def stop_times_of(settings: HubSettings) -> StopTimes:
    return StopTimes(
        delay=settings.shutdown_delay, send_retry_after=settings.shutdown_send_retry_after, streams=settings.shutdown_grace
    )


def _with_ports(settings: HubSettings, stack: AsyncExitStack) -> HubSettings:
    """Choose a free port now for each door whose port is 0, because kubeconfigs and certificates contain the port."""
    listening = {name: getattr(settings, name, None) for name in ("grpc_listen", "https_listen", "ocm_grpc_listen")}
    chosen = {
        name: replace(address, port=stack.enter_context(reserved_port(address.host)))
        for name, address in listening.items()
        if isinstance(address, Address) and not address.port
    }
    return settings.model_copy(update=chosen) if chosen else settings


async def _flush_log(progress: LoopProgress) -> None:
    while True:
        await asyncio.to_thread(logs.flush)
        progress.beat()
        await asyncio.sleep(FLUSH_EVERY.total_seconds())
