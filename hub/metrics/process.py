"""Metrics of the hub process: resource usage, readiness and event loop lag."""

import asyncio
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

from machinery.lifecycle import usage
from machinery.lifecycle.health import Endpoint
from machinery.lifecycle.server import Server
from machinery.observability.metrics import Distribution, Registry, gauge, histogram
from machinery.product import version
from machinery.runtime.event_loop import until_tick

BUILD = gauge("hub_build_info", "Always 1; the version of this hub.", "version")
CHECKS = gauge("hub_readiness_check", "1: this check of /readyz passes; 0: it fails. The log has why.", "check")
DRAINING = gauge("hub_draining", "1: this replica stops and sends its agents away; 0: it serves.")
LATE = histogram("hub_event_loop_lag_seconds", "How much later than asked for the event loop came back, once a second.")
METRICS = (BUILD, CHECKS, DRAINING, LATE, *usage.METRICS)
LOOK_EVERY = timedelta(seconds=1)
LAG = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Bucket bounds in seconds. A busy loop pauses on purpose, for up to 100 ms."""


def add_process(registry: Registry) -> None:
    """Binds the metrics that exist from the start."""
    registry.bind(BUILD, lambda: {version(): 1})
    usage.bind_usage(registry)


def add_server(registry: Registry, server: Server) -> Callable[[], Coroutine[Any, Any, None]]:
    """Returns a coroutine function that measures the event loop's lag while it is awaited."""
    registry.bind(CHECKS, lambda: {name: int(passes) for name, passes in server.health.known(Endpoint.READYZ).items()})
    registry.bind(DRAINING, lambda: int(server.signals.shutdown_initiated.signaled))
    lag = Distribution(LAG)
    registry.bind(LATE, lambda: lag)
    return lambda: _follow(lag)


async def _follow(lag: Distribution) -> None:
    loop = asyncio.get_running_loop()
    while True:
        pause = until_tick(LOOK_EVERY)
        due = loop.time() + pause
        await asyncio.sleep(pause)
        lag.observe(max(loop.time() - due, 0.0))
