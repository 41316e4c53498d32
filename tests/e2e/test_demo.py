"""`make demo` as a person runs it: to Available, through a killed agent, and away without a trace."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.e2e.processes import PATIENCE, until
from tests.programs import run

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("usual ports of a hub")]


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

    async def prints(self, pattern: str) -> re.Match[str]:
        """Waits until it has printed `pattern`."""
        assert self.process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            while not (found := re.search(pattern, self.printed)):
                line = await self.process.stdout.readline()
                assert line, f"the demo ended before it printed {pattern!r}:\n{self.printed}"
                self.printed += line.decode()
        return found

    async def ended(self) -> int:
        assert self.process.stdout is not None
        async with asyncio.timeout(PATIENCE):
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


async def test_demo_of_two_hubs_brings_every_cluster_up_kills_the_owner_and_leaves_nothing(tmp_path: Path) -> None:
    async with demo(tmp_path / "demo", "--once", "--hubs=2") as running:
        code = await running.ended()
    assert code == 0, running.printed
    killed = running.printed.index("hub-0          is killed")
    table = running.printed[running.printed.rindex("NAME") :]
    for name in ("cluster-0", "cluster-1", "cluster-2"):
        row = re.search(rf"^{name}\s.*$", table, re.MULTILINE)
        assert row, running.printed
        assert row[0].split()[1:4].count("true") + row[0].split().count("True") >= 2, row[0]
        assert f"{name}      has arrived on hub-1" in running.printed[killed:]
    assert processes_naming(tmp_path) == []


async def test_demo_shows_a_killed_agent_and_ends_every_process_with_ctrl_c(tmp_path: Path) -> None:
    admin = f"--kubeconfig={tmp_path / 'demo' / 'hub' / 'admin.kubeconfig'}"

    async def shows(text: str) -> bool:
        ended = await run("hub.cli", admin, "get", "clusters", "cluster-0")
        return ended.returncode == 0 and text in ended.stdout.splitlines()[-1]

    async with demo(tmp_path / "demo") as running:
        victim = await running.prints(r"kill -9 (\d+)")
        await running.prints("Everything ends with Ctrl-C")
        assert len(processes_naming(tmp_path / "demo")) >= 6
        assert await shows("True")
        os.kill(int(victim[1]), signal.SIGKILL)
        await until(lambda: shows("(no session)"), what="the session is seen to be gone")
        await until(lambda: shows("Unknown"), what="cluster-0 reads Unknown")
        await running.prints("spoke-cluster-0 was ended by SIGKILL")
        assert running.process.returncode is None, "the demo stays"
        running.process.send_signal(signal.SIGINT)
        assert await running.ended() == 0, running.printed
    assert processes_naming(tmp_path) == []


async def test_demo_that_cannot_succeed_says_why_and_where_the_logs_are(tmp_path: Path) -> None:
    async with demo(tmp_path / "demo", "--once", "--within=0.1") as running:
        code = await running.ended()
    assert code == 1
    assert "The demo failed: " in running.printed
    assert f"The logs are in {tmp_path / 'demo' / 'logs'}" in running.printed
    assert processes_naming(tmp_path) == []
