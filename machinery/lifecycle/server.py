"""The order in which a server starts and stops, one for all of its doors.

    start:  doors listen -> post-start hooks -> ready
    stop:   ShutdownInitiated (readiness falls, everything is still served)
            -> the delay, and beside it the pre-shutdown hooks -> NotAcceptingNewRequest (doors refuse)
            -> InFlightRequestsDrained -> HTTPServerStoppedListening -> whoever opened the rest closes it

What fails while the server runs (a hook, a guarded task) asks for the same graceful stop and is raised at its end. What fails
while it stops is logged, and cuts nothing short.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

import structlog

from machinery.clock import Clock
from machinery.lifecycle.health import READINESS, Endpoint, HealthChecks
from machinery.lifecycle.hooks import PostStartHooks, PreShutdownHooks
from machinery.lifecycle.signals import LifecycleSignals

log = structlog.get_logger(__name__)


class StartError(Exception):
    """The server cannot start. The message is a sentence for the person who started it: what is wrong, and what to do."""


class Door(Protocol):
    """Something that listens. Each step is taken once, in this order; `close` also after a start that failed."""

    @property
    def name(self) -> str: ...

    async def start(self) -> None:
        """Listens and serves. Raises StartError."""

    async def refuse(self) -> None:
        """Turns new work away from now on; health is still answered."""

    async def drain(self) -> None:
        """Returns when the work in flight is done; long streams are told to end. The caller bounds it."""

    async def close(self) -> None:
        """Stops listening and ends what is left."""


@dataclass(frozen=True, slots=True)
class StopTimes:
    """How long the steps of a stop may take."""

    delay: timedelta = timedelta()
    """Everything is still served while readiness is down, for load balancers to notice."""
    hooks: timedelta = timedelta(seconds=20)
    drain: timedelta = timedelta(seconds=10)
    close: timedelta = timedelta(seconds=5)


class Server:
    """The building stage: parts are added, nothing runs yet."""

    def __init__(self, clock: Clock, times: StopTimes = StopTimes()) -> None:
        self.signals = LifecycleSignals(clock)
        self.health = HealthChecks(first_ready=self.signals.has_been_ready.signal)
        self.post_start = PostStartHooks(self.health)
        self.pre_shutdown = PreShutdownHooks()
        self.health.add("shutdown", self._not_stopping, endpoints=READINESS)
        self._times = times
        self._doors: list[Door] = []

    def add_door(self, door: Door) -> None:
        self._doors.append(door)

    def prepare(self) -> "PreparedServer":
        """Seals what was added. Only the prepared server can run."""
        self.health.seal()
        return PreparedServer(self, tuple(self._doors), self._times)

    async def _not_stopping(self) -> None:
        if self.signals.shutdown_initiated.signaled:
            raise RuntimeError("the process is shutting down")


class PreparedServer:
    """The running stage."""

    def __init__(self, server: Server, doors: tuple[Door, ...], times: StopTimes) -> None:
        self._server = server
        self._signals = server.signals
        self._doors = doors
        self._times = times

    async def run(self, stop: Callable[[], Awaitable[BaseException | None]]) -> None:
        """Serves until `stop` returns; an error that it returns is raised after the graceful stop.

        Raises StartError at once when a door cannot open.
        """
        opened: list[Door] = []
        try:
            for door in self._doors:
                opened.append(door)
                await door.start()
            self._signals.mux_and_discovery_complete.signal()
        except BaseException:
            for door in reversed(opened):
                await self._bounded("close", door.close(), self._times.close, door.name)
            raise
        failure = await self._serve(stop)
        failures = await self._stop()
        if failure is not None:
            raise failure
        if failures:
            raise failures[0]

    async def _serve(self, stop: Callable[[], Awaitable[BaseException | None]]) -> BaseException | None:
        stopped = asyncio.ensure_future(stop())
        hooks = asyncio.create_task(self._server.post_start.run(), name="post-start hooks")
        try:
            await asyncio.wait({stopped, hooks}, return_when=asyncio.FIRST_COMPLETED)
            if hooks.done() and hooks.exception() is None:
                await self._server.health.verdict(Endpoint.READYZ)  # the first look is our own: the log tells when it was ready
                await asyncio.wait({stopped})
        finally:
            hooks.cancel()
            await asyncio.wait({hooks})
            if not stopped.done():
                stopped.cancel()
        if not hooks.cancelled() and (failure := hooks.exception()):
            return failure
        return stopped.result()

    async def _stop(self) -> list[Exception]:
        signals = self._signals
        signals.shutdown_initiated.signal()
        _, failures = await asyncio.gather(self._delay(), self._run_hooks())
        signals.not_accepting_new_request.signal()
        await self._each("refuse", self._times.close)
        await self._each("drain", self._times.drain)
        signals.in_flight_requests_drained.signal()
        await self._each("close", self._times.close)
        signals.http_server_stopped_listening.signal()
        return failures

    async def _delay(self) -> None:
        await asyncio.sleep(self._times.delay.total_seconds())
        self._signals.after_shutdown_delay.signal()

    async def _run_hooks(self) -> list[Exception]:
        failures: list[Exception] = []
        try:
            async with asyncio.timeout(self._times.hooks.total_seconds()):
                failures = await self._server.pre_shutdown.run()
        except TimeoutError as error:
            log.warning("pre-shutdown hooks did not finish in time", limit_seconds=self._times.hooks.total_seconds())
            failures = [error]
        self._signals.pre_shutdown_hooks_stopped.signal()
        return failures

    async def _each(self, step: str, limit: timedelta) -> None:
        await asyncio.gather(*(self._bounded(step, getattr(door, step)(), limit, door.name) for door in self._doors))

    async def _bounded(self, step: str, work: Awaitable[None], limit: timedelta, door: str) -> None:
        try:
            async with asyncio.timeout(limit.total_seconds()):
                await work
        except TimeoutError:
            log.warning("door did not finish in time", door=door, step=step, limit_seconds=limit.total_seconds())
        except Exception:
            log.exception("door failed while stopping", door=door, step=step)
