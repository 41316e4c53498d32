"""The program `spoke`: `spoke run` runs the agent of one cluster; the other commands inspect or remove the agent."""

import machinery.startup_imports  # isort: skip

import asyncio
import gc
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from contextlib import AbstractAsyncContextManager

    from machinery.observability.telemetry import TraceExporter
    from spoke.cli.findings import DoctorStep
    from spoke.settings import SpokeSettings

STOP_WITHIN = 10
"""Seconds after a stop signal in which the agent must end its session and finish its writes."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Return the exit code.

    `spoke run` returns 0 after SIGTERM or SIGINT, 1 after a fatal error, and 2 for invalid settings. A second signal ends the
    process immediately with exit code 1.
    """
    machinery.startup_imports.require_extra("spoke")
    gc.disable()  # imported objects are never freed; collecting them costs a tenth of the start-up time
    from spoke.cli.flags import parser  # noqa: PLC0415 - after gc.disable

    arguments = sys.argv[1:] if arguments is None else arguments
    flags = vars(parser(arguments).parse_args(arguments))
    command = flags.pop("command")
    own: dict[str, Any] = {name: flags.pop(name) for name in ("timeout", "force", "output") if name in flags}
    # Imported late, because `--help` and usage errors need none of these modules.
    from machinery import product  # noqa: PLC0415
    from machinery.errors import InvalidError  # noqa: PLC0415
    from machinery.observability import logs, telemetry  # noqa: PLC0415
    from machinery.runtime.closed_pipe import ignore_closed_pipe  # noqa: PLC0415
    from spoke.settings import load  # noqa: PLC0415

    try:
        settings = load(flags, os.environ, flags.pop("config"))
    except InvalidError as error:
        print(f"spoke: {error.message}", file=sys.stderr)  # noqa: T201 - before there is a log
        return 2
    if command != "run":
        ignore_closed_pipe()
        return _run_command(command, settings, own)
    machinery.startup_imports.load_http_client()
    logs.configure(settings.log_level, logs.LogFormat(settings.log_format))
    import structlog  # noqa: PLC0415

    log = structlog.get_logger("spoke")
    log.info("spoke.starting", version=product.version(), pid=os.getpid())
    try:
        with telemetry.sending(_traces_of(settings)):
            asyncio.run(_serve(settings))
    except (InvalidError, OSError) as error:
        log.error("spoke.cannot_start", error=str(error))  # noqa: TRY400 - the message suffices
        return 1
    except Exception:
        log.exception("spoke.failed")
        return 1
    else:
        log.info("spoke.stopped")
        return 0
    finally:
        logs.flush()


def _run_command(command: str, settings: "SpokeSettings", own: dict[str, Any]) -> int:
    """Run a command other than `run` and print each step. Return 0 for success, 1 for a failed step, 2 for wrong usage."""
    from machinery.durations import parse_duration  # noqa: PLC0415
    from machinery.errors import MusterError  # noqa: PLC0415
    from spoke.cli import commands  # noqa: PLC0415

    try:
        if command == "status":
            return asyncio.run(_print_status(settings, own["output"]))
        if command == "doctor":
            return 0 if asyncio.run(_print_steps(lambda: commands.examine(settings))) else 1
        within = parse_duration(own["timeout"])
    except ValueError as error:
        sys.stderr.write(f"spoke: --timeout: {error}\n")
        return 2
    except (MusterError, OSError) as error:
        sys.stderr.write(f"spoke: {error}\n")
        return 1
    try:
        force, rejoin = own.get("force", False), command == "rejoin"
        well = asyncio.run(_print_steps(lambda: commands.depart(settings, force=force, rejoin=rejoin, within=within)))
    except (MusterError, OSError) as error:
        sys.stderr.write(f"spoke: {error}; call `spoke {command}` again, and it continues with the remaining steps\n")
        return 1
    return 0 if well or force else 1


async def _print_status(settings: "SpokeSettings", form: str) -> int:
    import json  # noqa: PLC0415

    import yaml  # noqa: PLC0415

    from spoke.cli.commands import status_source  # noqa: PLC0415
    from spoke.cli.status import render, status  # noqa: PLC0415

    async with status_source(settings) as source:
        document, outcome = await status(source)
        written = {
            "json": lambda: json.dumps(document, indent=2) + "\n",
            "yaml": lambda: yaml.safe_dump(document, sort_keys=False),
            "text": lambda: render(document, source.clock.now()),
        }
        sys.stdout.write(written[form]())
    return outcome


async def _print_steps(
    walked: "Callable[[], AbstractAsyncContextManager[Callable[[], AsyncGenerator[DoctorStep, None]]]]",
) -> bool:
    well = True
    async with walked() as steps:
        async for step in steps():
            well = well and step.ok
            sys.stdout.write(f"{'ok  ' if step.ok else 'FAIL'} {step.name}: {step.said}\n")
            if not step.ok and step.advice:
                sys.stdout.write(f"     -> {step.advice}\n")
            sys.stdout.flush()
    return well


def _traces_of(settings: "SpokeSettings") -> "TraceExporter | None":
    from machinery import product  # noqa: PLC0415
    from machinery.observability import telemetry  # noqa: PLC0415

    if not settings.trace_endpoint:
        return None
    instance = settings.cluster_name or os.environ.get("POD_NAME", "")
    return telemetry.TraceExporter(f"{product.NAME}-spoke", settings.trace_endpoint, settings.trace_share, instance)


async def _serve(settings: "SpokeSettings") -> None:
    import structlog  # noqa: PLC0415

    from machinery.lifecycle.process import Verbosity, stop_signals, verbosity_signal  # noqa: PLC0415
    from spoke.app import build  # noqa: PLC0415
    from spoke.cli.network import published  # noqa: PLC0415
    from spoke.observability import probes  # noqa: PLC0415
    from spoke.observability.progress import StateAnnouncer  # noqa: PLC0415
    from spoke.settings.fields import parse_address  # noqa: PLC0415

    gc.freeze()
    gc.enable()
    host, port = parse_address(settings.health_listen)
    with ExitStack() as stack, stop_signals() as stop, verbosity_signal(Verbosity(settings.log_level)):
        async with build(settings) as agent, probes.serve(agent.progress, host, port) as bound:
            structlog.get_logger("spoke").info("probes.listening", address=f"{host}:{bound}")
            stack.enter_context(published(settings, f"{host}:{bound}"))
            agent.progress.on_step = StateAnnouncer().update
            running = asyncio.create_task(agent.run(), name="agent")
            stopping = asyncio.create_task(stop.wait(), name="signals")
            await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            if running.done():
                running.result()
            running.cancel()
            await asyncio.wait((running,), timeout=STOP_WITHIN)


if __name__ == "__main__":
    sys.exit(main())
