"""A hub with hooks that a test can watch and hold up: `python -m tests.fakes.hub_with_hooks`, settings from the environment.

HOOKS names them, and HOOKS_FOLDER is where a hook finds the files that tell it to go on.
"""

import asyncio
import math
import os
import sys
import time
from pathlib import Path

import structlog

from hub import serve
from hub.composition.core import HubCore
from hub.extensions.settings import load
from hub.store.engine import engine
from machinery.errors import MusterError
from machinery.runtime import congestion

CALLS = 5
API = "/apis/cluster.open-cluster-management.io/v1/managedclusters"

log = structlog.get_logger("hooks")


async def report_hook(name: str) -> None:
    """Returns once the test has made the file."""
    while not Path(os.environ["HOOKS_FOLDER"], name).exists():  # noqa: ASYNC110, ASYNC240 - a file is what a test can make
        await asyncio.sleep(0.01)


def asked_for() -> list[str]:
    return os.environ.get("HOOKS", "").split()


async def install(core: HubCore) -> None:
    """Adds the hooks that HOOKS asks for, before anything is served."""
    if "hangs" in asked_for():
        blocked_in_this_function()
    server, client = core.context.server, core.loopback.client

    async def calls_after_the_delay() -> None:
        await server.signals.after_shutdown_delay.wait()
        await report_hook("go")
        for _ in range(CALLS):
            await asyncio.sleep(0.05)
            try:
                log.info("hook called", items=len((await client.get(API))["items"]))
            except MusterError as error:
                log.error("hook was refused", error=error.message)  # noqa: TRY400 - the test reads the line

    async def sticks() -> None:
        await report_hook("stick")
        blocked_in_this_function()

    async def started_to_stick() -> None:
        sticking.append(asyncio.create_task(sticks(), name="sticking"))

    sticking: list[asyncio.Task[None]] = []
    if "sticks" in asked_for():
        server.post_start.add("sticks", started_to_stick)
    if "calls" in asked_for():
        server.pre_shutdown.add("calls", calls_after_the_delay)


def blocked_in_this_function() -> None:
    """Holds the event loop until the test lets go."""
    while not Path(os.environ["HOOKS_FOLDER"], "unstick").exists():
        time.sleep(0.01)


if __name__ == "__main__":
    if "patient" in asked_for():  # it lets every call begin, and waits longer for a database that the test holds
        congestion.LONG_TURN = congestion.LONG_DELAY = math.inf
        engine.BUSY_SECONDS = 60.0
    sys.exit(serve.main(load({}), (*serve.EXTENSIONS, install)))
