"""`make demo` as a person runs it: to Available, through a killed agent, and away without a trace."""

import os
import re
import signal
from pathlib import Path

import pytest

from tests.e2e.processes import Program, until
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


async def demo(folder: Path, *arguments: str) -> Program:
    log = folder / "demo.log"
    return await Program("demo", ("hollow.demo", f"--directory={folder / 'demo'}", *arguments), log, fresh=True).start()


async def test_demo_of_two_hubs_brings_every_cluster_up_kills_the_owner_and_leaves_nothing(tmp_path: Path) -> None:
    running = await demo(tmp_path, "--once", "--hubs=2")
    assert await running.ended() == 0, running.output
    killed = running.output.index("hub-0          is killed")
    table = running.output[running.output.rindex("NAME") :]
    for name in ("cluster-0", "cluster-1", "cluster-2"):
        row = re.search(rf"^{name}\s.*$", table, re.MULTILINE)
        assert row, running.output
        assert row[0].split()[1:4].count("true") + row[0].split().count("True") >= 2, row[0]
        assert f"{name}      has arrived on hub-1" in running.output[killed:]
    assert processes_naming(tmp_path) == []


async def test_demo_shows_a_killed_agent_and_ends_every_process_with_ctrl_c(tmp_path: Path) -> None:
    admin = f"--kubeconfig={tmp_path / 'demo' / 'hub' / 'admin.kubeconfig'}"

    async def shows(text: str) -> bool:
        ended = await run("hubctl", admin, "get", "clusters", "cluster-0")
        return ended.returncode == 0 and text in ended.stdout.splitlines()[-1]

    running = await demo(tmp_path)
    try:
        await running.says("Everything ends with Ctrl-C")
        assert len(processes_naming(tmp_path / "demo")) >= 6
        assert await shows("True")
        os.kill(int(re.findall(r"kill -9 (\d+)", running.output)[0]), signal.SIGKILL)
        await until(lambda: shows("(no session)"), what="the session is seen to be gone")
        await until(lambda: shows("Unknown"), what="cluster-0 reads Unknown")
        await running.says("spoke-cluster-0 was ended by SIGKILL")
        assert running.running, "the demo stays"
    finally:
        code = await running.stop(signal.SIGINT)
    assert code == 0, running.output
    assert processes_naming(tmp_path) == []


async def test_demo_that_cannot_succeed_says_why_and_where_the_logs_are(tmp_path: Path) -> None:
    running = await demo(tmp_path, "--once", "--within=0.1")
    assert await running.ended() == 1
    assert "The demo failed: " in running.output
    assert f"The logs are in {tmp_path / 'demo' / 'logs'}" in running.output
    assert processes_naming(tmp_path) == []
