"""`make demo` as a person runs it: to Available, through a killed agent, and away without a trace."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hollow.demo.processes import ask
from tests.e2e.processes import until

pytestmark = pytest.mark.e2e
GRACE = 10.0
"""Seconds: five leases of the demo's clusters."""
SHOWN, LATE = 1.0, 2.0
"""Seconds in which it shows that a session is gone, and that a grace is over."""
SPARE = 5
"""Deadlines in tests are so many times what is promised."""


def processes_naming(path: Path) -> list[str]:
    """The command lines of all processes that name `path`, zombies and ourselves left out."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            except OSError:
                continue
            if str(path) in command:
                found.append(command)
    return found


class Demo:
    """A running demo, and what it has printed so far."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.printed = ""

    async def prints(self, pattern: str, within: float = 70) -> re.Match[str]:
        """Waits until it has printed `pattern`."""
        assert self.process.stdout is not None
        async with asyncio.timeout(within):
            while not (found := re.search(pattern, self.printed)):
                line = await self.process.stdout.readline()
                assert line, f"the demo ended before it printed {pattern!r}:\n{self.printed}"
                self.printed += line.decode()
        return found

    async def ended(self, within: float = 40) -> int:
        assert self.process.stdout is not None
        async with asyncio.timeout(within):
            self.printed += (await self.process.stdout.read()).decode()
            return await self.process.wait()


@asynccontextmanager
async def demo(directory: Path, *arguments: str) -> AsyncIterator[Demo]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "hollow.demo",
        f"--directory={directory}",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        yield Demo(process)
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


async def test_demo_once_brings_every_cluster_to_available_and_leaves_nothing(tmp_path: Path) -> None:
    async with demo(tmp_path / "demo", "--once") as running:
        code = await running.ended(within=90)
    assert code == 0, running.printed
    table = running.printed[running.printed.rindex("NAME") :]
    for name in ("cluster-0", "cluster-1", "cluster-2"):
        row = re.search(rf"^{name}\s.*$", table, re.MULTILINE)
        assert row, running.printed
        assert row[0].split()[1:4].count("true") + row[0].split().count("True") >= 2, row[0]
    assert processes_naming(tmp_path) == []


async def test_demo_of_two_hubs_kills_the_owner_and_shows_every_cluster_arrive_on_the_other(tmp_path: Path) -> None:
    async with demo(tmp_path / "demo", "--once", "--hubs=2") as running:
        code = await running.ended(within=120)
    assert code == 0, running.printed
    killed = running.printed.index("hub-0          is killed")
    for name in ("cluster-0", "cluster-1", "cluster-2"):
        assert f"{name}      has arrived on hub-1" in running.printed[killed:]
    assert processes_naming(tmp_path) == []


async def test_ctrl_c_ends_every_process_and_is_a_success(tmp_path: Path) -> None:
    async with demo(tmp_path / "demo") as running:
        await running.prints("Everything ends with Ctrl-C")
        assert len(processes_naming(tmp_path / "demo")) >= 6
        running.process.send_signal(signal.SIGINT)
        assert await running.ended() == 0, running.printed
    assert processes_naming(tmp_path) == []


async def test_killed_agent_shows_within_a_second_and_reads_unknown_within_twelve(tmp_path: Path) -> None:
    admin = f"--kubeconfig={tmp_path / 'demo' / 'hub' / 'admin.kubeconfig'}"

    async def row() -> str:
        answer = await ask([sys.executable, "-m", "hub.cli", admin, "get", "clusters", "cluster-0"])
        return answer.output.splitlines()[-1] if answer.code == 0 else answer.error

    async with demo(tmp_path / "demo") as running:
        victim = await running.prints(r"kill -9 (\d+)")
        assert "True" in await row()
        os.kill(int(victim[1]), signal.SIGKILL)
        await until(lambda: shows(row, "(no session)"), what="the session is seen to be gone", within=SPARE * SHOWN)
        await until(lambda: shows(row, "Unknown"), what="cluster-0 reads Unknown", within=GRACE + SPARE * LATE)
        await running.prints("spoke-cluster-0 was ended by SIGKILL")
        assert running.process.returncode is None, "the demo stays"


async def shows(row: Callable[[], Awaitable[str]], text: str) -> bool:
    return text in await row()


async def test_demo_that_cannot_succeed_says_why_and_where_the_logs_are(tmp_path: Path) -> None:
    async with demo(tmp_path / "demo", "--once", "--within=0.1") as running:
        code = await running.ended()
    assert code == 1
    assert "The demo failed: " in running.printed
    assert f"The logs are in {tmp_path / 'demo' / 'logs'}" in running.printed
    assert processes_naming(tmp_path) == []
