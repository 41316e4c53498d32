"""The process around a hub: its umask, its log, what it leaves to the garbage collector, its last resort, and its exit code."""

import gc
import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import timedelta

import structlog

from hub.inspection import traces_of
from hub.settings import Settings
from machinery import logs, loop, telemetry
from machinery.errors import MusterError
from machinery.lifecycle.hooks import HookError
from machinery.lifecycle.process import LastResort
from machinery.lifecycle.server import StartError
from machinery.product import version
from machinery.tasks import TaskEndedError

log = structlog.get_logger(__name__)

STARTED, FAILED = 0, 1
CLOSED_WITHIN = timedelta(seconds=10)
"""For what was opened to be let go of, after the doors are closed."""
COLLECT_AFTER = (20_000, 20, 50)
PRIVATE = 0o077
"""The umask: what a hub writes, the database included, is its user's alone."""

Serve = Callable[[AsyncExitStack, Callable[[], None]], Awaitable[None]]
"""Builds a hub and serves until it is told to stop. What it opens goes on the stack; it calls back when it is to serve."""


def main(settings: Settings, serve: Serve) -> int:
    """Runs a hub until it is told to stop; the exit code. What keeps it from starting is said in one sentence."""
    os.umask(PRIVATE)
    logs.configure(settings.log_level, settings.log_format)
    log.info("hub starting", version=version())
    # What is imported stays for good, and what thousands of sessions make for a moment is gone by itself: looking through both
    # for cycles every 700 objects was a fifth of a heartbeat's cost.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)
    try:
        with telemetry.sending(traces_of(settings)):
            loop.run(run(settings, LastResort(), serve))
    except (StartError, HookError, MusterError, TaskEndedError) as error:
        log.critical("hub failed", error=str(error))
        sys.stderr.write(f"hub: {error}\n")
        return FAILED
    except Exception:
        log.exception("hub failed")
        return FAILED
    finally:
        logs.flush()
    return STARTED


async def run(settings: Settings, resort: LastResort, serve: Serve) -> None:
    """A whole hub, from its data directory to its doors. Raises StartError, HookError, MusterError, TaskEndedError.

    Whatever happens, everything that was opened is closed once. `resort` ends a process that cannot start or close in time.
    """
    async with AsyncExitStack() as stack:
        stack.callback(log.info, "hub closed")
        try:
            resort.arm(2 * settings.start_timeout, "the start hangs: is the database there? (--start-timeout)")
            await serve(stack, resort.disarm)
        except Exception as error:
            log.error("hub ends", error=str(error))  # noqa: TRY400 - told with its stack once everything is closed, if it ever is
            raise
        finally:
            resort.arm(CLOSED_WITHIN, "what was opened cannot be closed")
    log.info("hub stopped")
