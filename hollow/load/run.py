"""Runs a load: starts the worker processes, waits for the agents, measures, shows the progress and returns the report."""

import asyncio
import json
import resource
import shutil
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TextIO

import click

from hollow.load.fleet import REPORT_PERIOD, Fleet, read_bootstrap
from hollow.load.report import Document, LoadResult, Measures, summary_lines, write_report
from hollow.load.settings import LoadSettings, Profile
from machinery.durations import human_duration
from machinery.errors import InvalidError, UnavailableError
from machinery.identity import cluster_name
from machinery.lifecycle.process import stop_signals
from machinery.runtime.directory import DataDirectory

PATIENCE = 20.0
"""A worker that does not end within this many seconds is killed."""
LONGEST_LINE = 16 * 1024 * 1024
FILES_BESIDE = 64
"""Number of open files of a worker in addition to one per agent."""
PLAIN_PERIOD = 10.0
"""Seconds between two lines of progress if standard error is not a terminal."""
PERIODIC = (Profile.STORM, Profile.FLAP)
"""Profiles whose name is sent to the fleets as a command once per period (`LoadSettings.every`)."""


class Workers:
    def __init__(self, processes: list[asyncio.subprocess.Process]) -> None:
        self._processes = processes
        self._snapshots: dict[int, Document] = {}

    def execute(self, command: str) -> None:
        for process in self._processes:
            if process.stdin is not None:
                process.stdin.write(f"{command}\n".encode())
        if command == "measure":
            self._snapshots = {}

    def snapshot(self) -> Document:
        """Return the sum of the workers' last reports. Raises UnavailableError if a worker has ended."""
        for process in self._processes:
            if process.returncode is not None:
                raise UnavailableError(f"a process of the load ended with code {process.returncode}; its message is above")
        return Measures.merged(self._snapshots.values()).document()

    async def follow(self, index: int) -> None:
        output = self._processes[index].stdout
        while output is not None and (line := await output.readline()):
            self._snapshots[index] = json.loads(line)

    async def end(self) -> None:
        """End the workers by closing their standard input. Kill each worker that still runs after PATIENCE seconds."""
        for process in self._processes:
            if process.stdin is not None:
                process.stdin.close()
        waiting = [asyncio.ensure_future(process.wait()) for process in self._processes]
        await asyncio.wait(waiting, timeout=PATIENCE)
        for process in self._processes:
            if process.returncode is None:
                process.kill()
        await asyncio.gather(*waiting)


@asynccontextmanager
async def workers_of(settings: LoadSettings) -> AsyncIterator[Workers]:
    """Run the worker processes until the block ends."""
    pipe, processes = asyncio.subprocess.PIPE, []
    command = (sys.executable, "-m", "hollow.load.fleet")
    for index in range(settings.processes):
        # in a session of its own, so that Ctrl-C of the terminal reaches only the parent
        process = await asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=pipe, limit=LONGEST_LINE, start_new_session=True
        )
        processes.append(process)
        if process.stdin is not None:
            process.stdin.write(json.dumps({"settings": settings.document(), "process": index}).encode() + b"\n")
    workers = Workers(processes)
    following = [asyncio.create_task(workers.follow(index), name="load/follow") for index in range(len(processes))]
    try:
        yield workers
    finally:
        await workers.end()
        await asyncio.wait(following)


Pause = Callable[[float], Awaitable[bool]]
"""Waits for a number of seconds. Returns True if the load must end now."""


async def measure(driver: Workers | Fleet, settings: LoadSettings, pause: Pause, progress: "Progress") -> LoadResult:
    """Run the profile and return its result. Raises UnavailableError if a worker process has ended.

    The measurement of JOIN begins with the first agent. Other measurements begin when all agents are connected.
    """
    began = time.monotonic()
    stopped = False
    while not stopped:
        found = Measures.merged([driver.snapshot()])
        progress.update(found)
        if found.counts["ready"] >= settings.agents or time.monotonic() - began > settings.start_within:
            break
        stopped = await pause(REPORT_PERIOD)
    if settings.profile is Profile.JOIN or stopped or found.counts["ready"] < settings.agents:
        return write_report(found, settings, time.monotonic() - began)
    driver.execute("measure")
    began = time.monotonic()
    next_storm = began + min(settings.every, settings.duration / 2) if settings.profile in PERIODIC else float("inf")
    while not stopped and (now := time.monotonic()) < began + settings.duration:
        if now >= next_storm:
            driver.execute(settings.profile)
            next_storm += settings.every
        stopped = await pause(min(REPORT_PERIOD, began + settings.duration - now))
        found = Measures.merged([driver.snapshot()])
        progress.update(found)
    return write_report(found, settings, time.monotonic() - began)


class Progress:
    """Shows the state of the load on standard error: on a terminal in one line that changes, else as lines in intervals."""

    def __init__(self, settings: LoadSettings, stream: TextIO | None = None) -> None:
        self._agents = settings.agents
        self._stream = stream or sys.stderr
        self._is_terminal = self._stream.isatty()
        self._began = self._at = time.monotonic()
        self._next = 0.0
        self._before = Measures()

    def update(self, found: Measures) -> None:
        """Show the rates since the last line, and the latencies since the measurement began."""
        now = time.monotonic()
        if now < self._next or not found.counts:
            return
        passed, counts = max(now - self._at, 1e-3), found.counts
        before = self._before.counts if counts["beats"] >= self._before.counts["beats"] else Measures().counts
        sent, acknowledged = ((counts[name] - before[name]) / passed for name in ("beats", "beats_acknowledged"))
        p50, p99, lag = (
            found.get(name).percentile(share) * 1e3 for name, share in (("beat", 0.5), ("beat", 0.99), ("lag", 0.99))
        )
        errors = ", ".join(f"{kind} {count}" for kind, count in found.errors.most_common(3)) or "none"
        line = (
            f"{human_duration(now - self._began):>6}  sessions {counts['open']}/{self._agents}"
            f"  beats/s {sent:.1f}  acknowledged/s {acknowledged:.1f}  p50 {p50:.0f} ms  p99 {p99:.0f} ms"
            f"  lag {lag:.1f} ms  errors: {errors}"
        )
        if self._is_terminal:
            self._stream.write(f"\r\x1b[K{line[: shutil.get_terminal_size().columns - 1]}")
        else:
            self._stream.write(f"{line}\n")
            self._next = now + PLAIN_PERIOD
        self._stream.flush()
        self._at, self._before = now, found

    def end(self) -> None:
        if self._is_terminal:
            self._stream.write("\n")


async def run_load(settings: LoadSettings) -> LoadResult:
    """Run the load in its worker processes, and print progress and result. Raises MusterError, OSError."""
    read_bootstrap(settings.bootstrap_kubeconfig)
    cluster_name(f"{settings.name_prefix}-{settings.first_index + settings.agents}")
    each, (_, most) = len(settings.names_of(0)) + FILES_BESIDE, resource.getrlimit(resource.RLIMIT_NOFILE)
    if most not in (resource.RLIM_INFINITY, -1) and each > most:
        raise InvalidError(
            f"a process of {each} connections may open {most} files: raise `ulimit -Hn`, or use more --processes"
        )
    with DataDirectory(Path(settings.state_dir), "hollow"), stop_signals() as stop:

        async def pause(seconds: float) -> bool:
            await asyncio.wait({stopping}, timeout=seconds)
            return stopping.done()

        stopping = asyncio.create_task(stop.wait(), name="load/stop")
        progress = Progress(settings)
        try:
            async with workers_of(settings) as workers:
                result = await measure(workers, settings, pause, progress)
        finally:
            stopping.cancel()
            progress.end()
    for line in summary_lines(result):
        click.echo(line)
    return result
