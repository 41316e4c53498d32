"""The process of a hub: umask, logging, garbage collection, signals, time limits and exit code."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import timedelta

import structlog

from hub.composition.context import ProcessContext, ShutdownReason
from hub.settings import HubSettings
from machinery import product
from machinery.errors import MusterError
from machinery.lifecycle.debug import Inspection, debug_signal, debug_socket
from machinery.lifecycle.hooks import HookError
from machinery.lifecycle.process import LastResort, Verbosity, stop_signals, verbosity_signal
from machinery.lifecycle.server import Server
from machinery.lifecycle.startup import StartError
from machinery.lifecycle.usage import limit_arenas, limit_collections, raise_file_limit
from machinery.observability import logs, telemetry
from machinery.runtime import event_loop as loop
from machinery.runtime.tasks import TaskEndedError

log = structlog.get_logger(__name__)

STARTED, FAILED = 0, 1
CLOSED_WITHIN = timedelta(seconds=10)
"""Time limit for closing all resources, after the doors are closed."""

Assemble = Callable[[ProcessContext, AsyncExitStack], Awaitable[Server]]
"""Assembles a hub and returns its server. The stack closes what the function opens."""


def main(settings: HubSettings, assemble: Assemble) -> int:
    """Run a hub until a stop is requested, and return the exit code. If it cannot start, print one line to standard error."""
    os.umask(0o077)  # only the hub's user can read the files it writes, including the database
    raise_file_limit()
    limit_arenas()
    logs.configure(settings.log_level, settings.log_format)
    log.info("hub starting", version=product.version())
    limit_collections()
    traces = None
    if settings.trace_endpoint is not None:
        pod = os.environ.get("POD_NAME", "")
        traces = telemetry.TraceExporter(f"{product.NAME}-hub", settings.trace_endpoint, settings.trace_share, pod)
    try:
        with telemetry.sending(traces):
            loop.run(run(settings, LastResort(), assemble))
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


async def run(settings: HubSettings, resort: LastResort, assemble: Assemble) -> None:
    """Assemble a hub and serve. Raises StartError, HookError, MusterError, TaskEndedError.

    Signals that stop the hub or show its state work during the start, too. `resort` ends a process that cannot start or close
    in time.
    """
    async with AsyncExitStack() as stack:
        stack.callback(log.info, "hub closed")
        try:
            resort.arm(2 * settings.start_timeout, "the start hangs: is the database there? (--start-timeout)")
            shutdown = ShutdownReason(stack.enter_context(stop_signals()))
            inspection, verbosity = Inspection(asyncio.get_running_loop()), Verbosity(settings.log_level)
            stack.enter_context(debug_signal(inspection))
            if settings.debug_socket is not None:
                stack.enter_context(debug_socket(settings.debug_socket, inspection))
            stack.enter_context(verbosity_signal(verbosity))
            server = await assemble(ProcessContext(shutdown, inspection, verbosity), stack)
            resort.disarm()
            await server.run(shutdown.wait)
        except Exception as error:
            log.error("hub ends", error=str(error))  # noqa: TRY400 - `main` logs the stack trace after everything is closed
            raise
        finally:
            resort.arm(CLOSED_WITHIN, "what was opened cannot be closed")
    log.info("hub stopped")
