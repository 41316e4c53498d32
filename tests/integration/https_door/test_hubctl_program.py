"""hubctl as a program: exit codes, streams, signals, watches that go on, and as shells and kubectl call it."""

import asyncio
import os
import re
import shutil
import signal
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from hubctl.__main__ import COMMANDS
from hubctl.errors import DONE, FAILED, INTERRUPTED, MISUSED, NOT_FOUND, NOT_WELL, UNREACHABLE
from tests.fakes.hubctl import Said
from tests.integration.https_door.conftest import HubUnderTest, kept_free, run

COMPLETED = """
source {script}
COMP_WORDS=({words}) COMP_CWORD={at}
_hubctl_completion "{name}"
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
CALLS = {
    "hubctl": "__main__ import main",
    "kubectl-hub": "kubectl_plugin import main",
    "kubectl_complete-hub": "kubectl_plugin import complete as main",
}


class Installed:
    """The programs as they are installed, and a hub with three clusters."""

    def __init__(self, hub: HubUnderTest, folder: Path) -> None:
        self.hub = hub
        self.folder = folder
        for name, call in CALLS.items():
            file = folder / name
            file.write_text(f"#!{sys.executable}\nfrom hubctl.{call}\nmain()\n")
            file.chmod(0o755)

    async def __call__(self, *command: str) -> Said:
        path = os.pathsep.join((str(self.folder), os.environ["PATH"]))
        return await run(*command, HUBCTL_KUBECONFIG=str(await self.hub.admin()), HOME=str(self.hub.folder), PATH=path)


@pytest.fixture
async def installed(hub: HubUnderTest, tmp_path: Path) -> Installed:
    for name in ("edge1", "edge2", "shop1"):
        await hub.join(name)
    (tmp_path / "bin").mkdir()
    return Installed(hub, tmp_path / "bin")


async def test_the_program_ends_with_the_code_of_its_command(installed: Installed) -> None:
    for words, code, said in (
        ("--help", DONE, "hubctl create bootstrap-kubeconfig --cluster edge1"),
        ("--version", DONE, "hubctl, version "),
        ("get clusters -o name", DONE, "managedcluster.cluster.open-cluster-management.io/edge1\n"),
        ("get cluster nope", NOT_FOUND, '"nope" not found'),
        ("certificate approve nope", NOT_FOUND, "hubctl get csr"),
        ("lable cluster edge1 a=b", MISUSED, 'there is no command "lable"'),
        ("get clusters --no-such-option", MISUSED, "--no-such-option"),
    ):
        ended = await installed("hubctl", *words.split())
        assert (ended.code, said in ended.out + ended.err) == (code, True), (words, ended)
    await installed.hub.stop()
    with kept_free(installed.hub.port):
        ended = await installed("hubctl", "get", "clusters")
    assert (ended.code, installed.hub.server in ended.err, "Traceback" in ended.err) == (UNREACHABLE, True, False)


async def test_a_reader_that_has_enough_is_no_error_and_an_answer_that_cannot_be_written_is_one(installed: Installed) -> None:
    for words in ("get clusters -o json", "get clusters -w", "--help"):
        ended = await installed("bash", "-c", f"hubctl {words} | true; exit ${{PIPESTATUS[0]}}")
        assert (ended.code, ended.out, ended.err) == (DONE, "", ""), words
    verdicts = (("get cluster nope", NOT_FOUND), ("diagnose cluster edge1", NOT_WELL), ("deny nope edge1", NOT_FOUND))
    for words, code in verdicts:
        ended = await installed("bash", "-c", f"hubctl {words} 2>&1 | true; exit ${{PIPESTATUS[0]}}")
        assert (ended.code, ended.out, ended.err) == (code, "", ""), words
    ended = await installed("bash", "-c", "hubctl get csr -o json > /dev/full")
    assert (ended.code, ended.err) == (FAILED, "error: the answer cannot be written: No space left on device\n")


async def test_an_interrupted_watch_ends_without_a_word(installed: Installed) -> None:
    watching = await installed.hub.start_hubctl("get", "cluster", "edge1", "-w", "-o", "name")
    assert (await watching.line()).endswith("/edge1")
    await installed.hub.output("hubctl accept edge1")
    assert (await watching.line()).endswith("/edge1"), "it waits for the next change"
    watching.process.send_signal(signal.SIGINT)
    _, err = await watching.process.communicate()
    assert (watching.process.returncode, err) == (INTERRUPTED, b"\n")


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not on the PATH")
async def test_bash_completes_names(installed: Installed, tmp_path: Path) -> None:
    script = tmp_path / "completion"
    script.write_text((await installed("hubctl", "completion", "bash")).out)
    line = COMPLETED.format(script=script, words="hubctl accept edge", at=2, name=installed.folder / "hubctl")
    assert (await installed("bash", "-c", line)).out.split() == ["edge1", "edge2"]


@pytest.mark.kubectl
async def test_kubectl_hub_is_hubctl_and_completes_as_it(installed: Installed) -> None:
    said = await installed("kubectl", "hub", "get", "clusters", "-o", "jsonpath={.items[*].metadata.name}")
    assert said.out == "edge1 edge2 shop1", said.err
    assert (await installed("kubectl", "hub", "get", "cluster", "nope")).code == NOT_FOUND
    completed = await installed("kubectl", "__complete", "hub", "accept", "edge")
    assert completed.out.splitlines() == ["edge1", "edge2", ":4"], completed.err


async def test_hubctl_starts_without_what_is_slow_to_load() -> None:
    """The figure (200 ms) is measured in bench; what would break it is caught here."""
    slow = ("asyncio", "kubernetes", "sqlalchemy", "aiohttp", "grpc", "cryptography", "pydantic", "rich", "structlog")
    modules = ", ".join(sorted({target.partition(":")[0] for target, _ in COMMANDS.values()}))
    code = f"import sys, {modules}; print([name for name in {slow} if name in sys.modules])"
    assert (await run(sys.executable, "-c", code)).out == "[]\n"


async def test_a_watch_shows_every_change_once_across_a_restart(hub: HubUnderTest) -> None:
    await hub.join("edge1")
    watching = await hub.start_hubctl("get", "clusters", "-w")
    one = await hub.start_hubctl("get", "cluster", "edge1", "-w", "-o", "name")
    assert (await watching.line()).startswith("NAME ")
    assert (await watching.line()).startswith("edge1 ")
    assert (await one.line()).endswith("/edge1")
    await hub.join("edge2")
    assert (await watching.line()).startswith("edge2 ")
    await hub.restart()
    for name in ("edge3", "edge4"):
        await hub.join(name)
    await hub.output("hubctl delete cluster edge2")
    assert [(await watching.line()).split()[0] for _ in range(2)] == ["edge3", "edge4"]
    assert re.fullmatch(r"edge2 .*\(deleted\)", await watching.line())
    await hub.output("hubctl accept edge1")
    assert (await one.line()).endswith("/edge1"), "a watch of one cluster shows only that one"
    for each in (watching, one):
        said = await each.end()
        assert (said.count("trying again") <= 1, "Traceback" in said) == (True, False), said


async def test_a_watch_outlives_a_hub_that_ends_it_and_takes_a_while_to_stop(hub: HubUnderTest) -> None:
    """Meanwhile it refuses what is asked, as does what stands before it: with a status, and without a word that is a hub's."""
    await hub.join("edge1")
    watching = await hub.start_hubctl("get", "clusters", "-w", "-o", "name")
    assert (await watching.line()).endswith("/edge1")
    hub.operators.draining.refuse()
    await hub.operators.door.end_watches(timedelta(seconds=1))
    assert watching.process.stderr is not None
    async with asyncio.timeout(15):
        assert "trying again" in (await watching.process.stderr.readline()).decode()
    await hub.stop()
    await hub.start()
    await hub.join("edge2")
    assert (await watching.line()).endswith("/edge2")
    assert "Traceback" not in await watching.end()
