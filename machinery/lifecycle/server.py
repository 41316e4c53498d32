"""The order in which a server and its doors start and stop.

    start:  doors listen -> post-start hooks (systemd is notified) -> ready
    stop:   ShutdownInitiated (readiness fails, everything is still served)
            -> `StopTimes.delay`, concurrent with the pre-shutdown hooks -> NotAcceptingNewRequest (doors refuse)
            then, with `StopTimes.send_retry_after`, the doors answer "try again" until they are drained:
                -> InFlightRequestsDrained -> buffers are flushed -> HTTPServerStoppedListening
            without it they close their listeners first:
                -> HTTPServerStoppedListening -> InFlightRequestsDrained -> buffers are flushed
            -> the callers close the resources that they opened

If a post-start hook fails, the server ends immediately without a graceful stop. If a task of GuardedTasks fails, the server
stops gracefully and then raises the error. A failure during the stop is logged and does not shorten the stop. If a hook has
failed during the stop, the server raises HookError at the end.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

import structlog

from machinery.lifecycle import startup
from machinery.lifecycle.hooks import HookError, PostStartHooks, StoppingHooks
from machinery.runtime.clock import Clock
from machinery.runtime.event_loop import until_tick
from machinery.runtime.health import READINESS, Endpoint, HealthChecks

log = structlog.get_logger(__name__)


class LifecycleSignal(asyncio.Event):
    """A named event. When it is set for the first time, it logs its name and calls its callbacks."""

    def __init__(self, name: str, clock: Clock) -> None:
        super().__init__()
        self.name = name
        self.callbacks: list[Callable[[], object]] = []
        self._clock = clock

    def set(self) -> None:
        if not self.is_set():
            log.info("lifecycle signal", signal=self.name, monotonic=round(self._clock.monotonic(), 6))
            super().set()
            for call in self.callbacks:
                call()


class LifecycleSignals:
    """The eight signals with Kubernetes' names, in their usual order."""

    def __init__(self, clock: Clock) -> None:
        self.mux_and_discovery_complete = LifecycleSignal("MuxAndDiscoveryComplete", clock)
        self.has_been_ready = LifecycleSignal("HasBeenReady", clock)
        self.shutdown_initiated = LifecycleSignal("ShutdownInitiated", clock)
        self.after_shutdown_delay = LifecycleSignal("AfterShutdownDelayDuration", clock)
        self.pre_shutdown_hooks_stopped = LifecycleSignal("PreShutdownHooksStopped", clock)
        self.not_accepting_new_request = LifecycleSignal("NotAcceptingNewRequest", clock)
        self.in_flight_requests_drained = LifecycleSignal("InFlightRequestsDrained", clock)
        self.http_server_stopped_listening = LifecycleSignal("HTTPServerStoppedListening", clock)


READINESS_PERIOD = timedelta(seconds=1)
AT_ONCE = timedelta(milliseconds=200)

Stop = Callable[[], Awaitable[BaseException | None]]


class Door(Protocol):
    """A listener. Each method is called once. After a failed start, only `close` is called."""

    @property
    def name(self) -> str: ...

    async def start(self) -> None:
        """Listen and serve. Raises StartError."""

    async def set_ready(self, *, ready: bool) -> None:
        """Set the readiness that this door's own health protocol reports. The door serves requests in both cases."""

    async def refuse(self) -> None:
        """Answer new work with "try again", except health checks. Called only if `StopTimes.send_retry_after` is true."""

    async def stop_listening(self) -> None:
        """Stop accepting connections, and close idle connections. Work in flight continues; no new work begins."""

    async def drain(self, grace: timedelta) -> None:
        """Wait until the work in flight is done. Request the end of streams, and end them within `grace` at a bounded rate."""

    async def close(self, grace: timedelta) -> None:
        """Stop listening. After `grace`, end the remaining work."""


@dataclass(frozen=True, slots=True)
class StopTimes:
    """How a server stops, and the time limits of the steps of its stop."""

    delay: timedelta = timedelta()
    """Time between the failure of readiness and the refusal of work, so that load balancers can react."""
    send_retry_after: bool = True
    """True: answer "try again" until the doors are drained. False: close the listeners immediately."""
    hooks: timedelta = timedelta(seconds=20)
    requests: timedelta = timedelta(seconds=60)
    """Longest wait for requests in flight. It equals the longest duration of a request."""
    streams: timedelta = timedelta(seconds=10)
    flush: timedelta = timedelta(seconds=10)
    close: timedelta = timedelta(seconds=2)

    @property
    def longest(self) -> timedelta:
        """Longest duration of a stop, without the clean-up of the process afterwards."""
        background_task = max(self.delay, self.hooks)
        return background_task + max(self.requests, self.streams) + self.flush + 3 * self.close


class Server:
    """A server. All health checks, hooks and doors are added before `run`."""

    def __init__(self, clock: Clock, times: StopTimes = StopTimes(), *, livez_grace: timedelta = timedelta()) -> None:
        self.signals = LifecycleSignals(clock)
        self.health = HealthChecks(clock, livez_grace=livez_grace)
        self.health.add("shutdown", self._not_stopping, endpoints=READINESS)
        self.post_start = PostStartHooks(self.health)
        self.pre_shutdown = StoppingHooks("pre-shutdown hook")
        self.flush = StoppingHooks("flush")
        """Hooks that run when the work in flight is done, before the doors close."""
        self._times = times
        self._doors: list[Door] = []

    def add_door(self, door: Door) -> None:
        """Add a door. Doors open in the order of their addition."""
        self._doors.append(door)

    async def _not_stopping(self) -> None:
        if self.signals.shutdown_initiated.is_set():
            raise RuntimeError("process is shutting down")

    async def run(self, stop: Stop) -> None:
        """Serve until `stop` returns, then stop gracefully. If `stop` returns an error, raise it at the end.

        Raises StartError if a door cannot open, HookError if a post-start hook fails, and HookError at the end if a hook failed
        during the stop.
        """
        self.signals.mux_and_discovery_complete.set()
        await self._open()
        failure = await self._serve(stop)
        if isinstance(failure, HookError):
            # Flush, and disconnect all clients without a drain.
            self.signals.shutdown_initiated.set()
            await self.flush.run(AT_ONCE)
            await self._each("close", self._times.close, lambda door: door.close(AT_ONCE))
            raise failure
        failures = await self._stop()
        if failure is not None:
            raise failure
        if failures:
            raise HookError("; ".join(str(each) for each in failures)) from failures[0]

    async def _open(self) -> None:
        opened: list[Door] = []
        try:
            for door in self._doors:
                opened.append(door)
                await door.start()
        except BaseException:
            for door in reversed(opened):
                await self._bounded("close", lambda each: each.close(AT_ONCE), self._times.close, door)
            raise

    async def _serve(self, stop: Stop) -> BaseException | None:
        stopped = asyncio.ensure_future(stop())
        hooks = asyncio.create_task(self.post_start.run(), name="post-start hooks")
        await asyncio.sleep(0)  # lets the hooks begin
        startup.notify_ready()
        readiness = asyncio.create_task(self._follow_readiness(hooks), name="readiness")
        try:
            await asyncio.wait({stopped, hooks}, return_when=asyncio.FIRST_COMPLETED)
            if hooks.done() and hooks.exception() is None:
                await asyncio.wait({stopped, readiness}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (hooks, readiness):
                task.cancel()
            await asyncio.wait({hooks, readiness})
            if not stopped.done():
                stopped.cancel()
        for task in (hooks, readiness):
            if not task.cancelled() and (failure := task.exception()):
                return failure
        return stopped.result()

    async def _follow_readiness(self, hooks: asyncio.Task[None]) -> None:
        """After the hooks, check readiness every READINESS_PERIOD, pass changes to the doors, and log the first readiness."""
        await asyncio.wait({hooks})
        shown = False
        while True:
            ready = not await self.health.failing(Endpoint.READYZ)
            if ready:
                self.signals.has_been_ready.set()
            if ready != shown:
                await self._set_ready(ready=ready)
                shown = ready
            await asyncio.sleep(until_tick(READINESS_PERIOD))

    async def _set_ready(self, *, ready: bool) -> None:
        await self._each("set_ready", self._times.close, lambda door: door.set_ready(ready=ready))

    async def _stop(self) -> list[Exception]:
        signals, times = self.signals, self._times

        async def wait() -> None:
            await asyncio.sleep(times.delay.total_seconds())
            signals.after_shutdown_delay.set()

        async def run_hooks() -> list[Exception]:
            failures = await self.pre_shutdown.run(times.hooks)
            signals.pre_shutdown_hooks_stopped.set()
            return failures

        signals.shutdown_initiated.set()
        await self._set_ready(ready=False)
        _, failures = await asyncio.gather(wait(), run_hooks())
        signals.not_accepting_new_request.set()
        if times.send_retry_after:
            await self._each("refuse", times.close, lambda door: door.refuse())
        else:
            await self._stop_listening()
        limit = max(times.requests, times.streams) + times.close
        await self._each("drain", limit, lambda door: door.drain(times.streams))
        signals.in_flight_requests_drained.set()
        failures += await self.flush.run(times.flush)
        if times.send_retry_after:
            await self._stop_listening()
        await self._each("close", 2 * times.close, lambda door: door.close(times.close))
        return failures

    async def _stop_listening(self) -> None:
        await self._each("stop listening", self._times.close, lambda door: door.stop_listening())
        self.signals.http_server_stopped_listening.set()

    async def _each(self, step: str, limit: timedelta, work: Callable[[Door], Awaitable[None]]) -> None:
        await asyncio.gather(*(self._bounded(step, work, limit, door) for door in self._doors))

    async def _bounded(self, step: str, work: Callable[[Door], Awaitable[None]], limit: timedelta, door: Door) -> None:
        try:
            async with asyncio.timeout(limit.total_seconds()):
                await work(door)
        except TimeoutError:
            log.warning("door did not finish in time", door=door.name, step=step, limit_seconds=limit.total_seconds())
        except Exception:
            log.exception("door failed while stopping", door=door.name, step=step)
