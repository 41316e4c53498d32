"""The commands of the documents are typed in order: some pages in `make test`, all of them in `make soak`."""

import asyncio
import os
import re
import shlex
import signal
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from tests.e2e.processes import Bench, free_port
from tests.trials import SOAKING, soaked

pytestmark = [pytest.mark.e2e, pytest.mark.kubectl, pytest.mark.timeout(180), pytest.mark.xdist_group("usual ports of a hub")]

ROOT = Path(__file__).parents[2]
PROGRAMS = {"hub": "hub", "spoke": "spoke", "hubctl": "hubctl", "hollow": "hollow"}
AVAILABLE = {*PROGRAMS, "kubectl", "export", "python3", "mkdir", "curl"}  # commands on every machine that types the pages
BLOCK = re.compile(r"^```(sh|yaml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SERVES = re.compile(r"^(hub serve|hollow serve|spoke run)\b")
STAYS = re.compile(rf"{SERVES.pattern}|^hubctl console\b|\s(-w|--watch|--follow)(\s|$)")
LOGIN = ("PATH", "LANG", "LC_ALL", "TMPDIR", "USER", "PYTHONPYCACHEPREFIX")  # variables that every terminal has, beside HOME
MOST = 60.0  # seconds that a command may take
TAKES_EFFECT = 20.0  # seconds in which a command may fail because what was typed before has not taken effect


@dataclass(frozen=True, slots=True)
class Page:
    """A document in tests/fixtures/pages.yaml, where the fields are described."""

    joined: Sequence[str] = ()
    hub: Sequence[str] | None = ()
    before: Sequence[str] = ()
    spelled: Mapping[str, str] = field(default_factory=dict)
    elsewhere: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def left_out(self) -> tuple[str, ...]:
        """How commands begin that are not typed."""
        return tuple(beginning for beginnings in self.elsewhere.values() for beginning in beginnings)


def typed(text: str) -> Iterator[str]:
    """The commands of a document, in order; those that go over several lines as one."""
    for kind, block in BLOCK.findall(text):
        if kind == "sh":
            for line in block.replace("\\\n", " ").splitlines():
                if shlex.split(line, comments=True):
                    yield line.strip()


def files(text: str) -> Iterator[tuple[str, str]]:
    """Its YAML blocks by the names that a reader gives them: `metadata.name`."""
    for kind, block in BLOCK.findall(text):
        if kind == "yaml":
            documents = [each for each in yaml.safe_load_all(block) if isinstance(each, dict)]
            name = (documents[0].get("metadata") or {}).get("name") if documents else None
            if name:
                yield f"{name}.yaml", block


def programs_in(folder: Path) -> Path:
    """A folder with our programs, for the path: one in `folder`, or the one of `make test INSTALLED=FOLDER`."""
    if installed := os.environ.get("INSTALLED"):
        return Path(installed)
    programs = folder / "bin"
    programs.mkdir()
    for name, module in PROGRAMS.items():
        file = programs / name
        program = f"PYTHONPATH={shlex.quote(str(ROOT))} exec {shlex.quote(sys.executable)}"
        file.write_text(f'#!/bin/sh\n{program} -m {module} "$@"\n')
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return programs


@dataclass
class Reader:
    """Types commands in one terminal, in a folder of its own. Programs that serve get terminals of their own."""

    folder: Path
    login: Mapping[str, str]  # the environment of a new terminal
    environment: Mapping[str, str]  # the environment of the terminal in which commands are typed: `export` changes it
    running: list[asyncio.subprocess.Process] = field(default_factory=list)

    @classmethod
    def at(cls, folder: Path) -> "Reader":
        """In `folder`, with our programs on the path and a home there."""
        programs = programs_in(folder)
        home, here = folder / "home", folder / "here"
        home.mkdir()
        here.mkdir()
        login = {name: os.environ[name] for name in LOGIN if name in os.environ}
        login |= {"HOME": str(home), "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
        return cls(here, login, login)

    async def types(self, command: str) -> None:
        """Fails when the command still fails after a while, or when one that should stay ends."""
        if STAYS.search(command):
            await self._leaves_running(command)
            return
        if command.startswith("export "):
            _, output = await self._ran(f"{command}; env -0")
            self.environment = dict(each.split("=", 1) for each in output.split("\0") if each)
            return
        deadline = asyncio.get_running_loop().time() + TAKES_EFFECT
        while True:
            ended, output = await self._ran(command)
            if ended == 0:
                return
            if asyncio.get_running_loop().time() > deadline:
                pytest.fail(f"$ {command}\n{output}\nended with {ended}", pytrace=False)
            await asyncio.sleep(0.2)

    async def _ran(self, command: str) -> tuple[int | None, str]:
        process = await asyncio.create_subprocess_exec(
            *("bash", "-o", "pipefail", "-c", command),
            cwd=self.folder,
            env=self.environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            output, _ = await asyncio.wait_for(process.communicate(), MOST)
        except TimeoutError:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            return None, f"not over after {MOST:g} s"
        return process.returncode, output.decode("utf-8", "replace")

    async def _leaves_running(self, command: str) -> None:
        log = self.folder.parent / f"terminal-{len(self.running)}.log"
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *("bash", "-c", f"exec {command}"),
                cwd=self.folder,
                env=self.login if SERVES.search(command) else self.environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.running.append(process)
        async with asyncio.timeout(TAKES_EFFECT):
            while not log.read_bytes():
                if process.returncode is not None:
                    break
                await asyncio.sleep(0.05)
        if process.returncode is not None:
            pytest.fail(f"$ {command}\n{log.read_text()}\nended with {process.returncode}", pytrace=False)

    async def leaves(self) -> None:
        """Ctrl-C in every terminal; each must end by that."""
        for process in reversed(self.running):
            if process.returncode is None:
                process.send_signal(signal.SIGINT)
        try:
            async with asyncio.timeout(TAKES_EFFECT):
                await asyncio.gather(*(process.wait() for process in self.running))
        finally:
            for process in self.running:
                if process.returncode is None:
                    os.killpg(process.pid, signal.SIGKILL)


ON_THIS_MACHINE = {"create bootstrap-kubeconfig ": "create bootstrap-kubeconfig --allow-loopback "}
"""What the documents write for hubs that others reach."""
TABLE = yaml.safe_load((ROOT / "tests" / "fixtures" / "pages.yaml").read_text())
PAGES = {name: Page(**fields) for name, fields in TABLE["pages"].items()}
IN_EVERY_RUN = ("docs/how-to/run-by-hand.md", "docs/tutorial/first-fleet.md", "docs/how-to/join-a-cluster.md")


def text_of(page: str) -> str:
    return (ROOT / page).read_text()


def spelled(command: str, page: Page, bench: Bench) -> str:
    """The command with the values of this machine; a hub gets free ports by its flags."""
    https = f"127.0.0.1:{bench.https_port}"
    listen = f"--grpc-listen 127.0.0.1:{bench.grpc_port} --https-listen {https}"
    for written, meant in {**ON_THIS_MACHINE, **page.spelled}.items():
        command = command.replace(written, meant.replace("{https}", https).replace("{listen}", listen))
    return f"{command} {listen}" if command.startswith("hub serve") else command


@soaked(1)
@pytest.mark.parametrize("name", sorted(PAGES) if SOAKING else IN_EVERY_RUN)
async def test_commands_of_a_document_work_as_typed(name: str, tmp_path: Path) -> None:
    page, text = PAGES[name], text_of(name)
    bench = Bench(tmp_path, data_name="home/.local/share/muster")
    reader = Reader.at(tmp_path)
    for file, content in files(text):
        (reader.folder / file).write_text(spelled(content, page, bench))
    try:
        if page.hub is not None:
            await bench.hub(*(("--auto-approve=*",) if page.joined else ()), *page.hub)
        for cluster in page.joined:
            await bench.spoke(cluster)
            await bench.available(cluster)
        for command in page.before:
            await reader.types(re.sub(r"\{port\}", lambda _: str(free_port()), command))
        for command in typed(text):
            if not command.startswith(page.left_out):
                await reader.types(spelled(command, page, bench))
    finally:
        try:
            await reader.leaves()
        finally:
            await bench.close()


def test_each_page_with_commands_is_typed_and_its_exceptions_exist() -> None:
    documents = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    flaws = [str(path) for path in documents if any(typed(path.read_text())) and str(path.relative_to(ROOT)) not in PAGES]
    for name, page in PAGES.items():
        commands = list(typed(text_of(name)))
        here = [command for command in commands if not command.startswith(page.left_out)]
        flaws += [f"{name}: {command}: not on this machine" for command in here if command.split()[0] not in AVAILABLE]
        idle = [each for each in page.left_out if not any(command.startswith(each) for command in commands)]
        flaws += [f"{name} has no command that begins {beginning}" for beginning in idle]
        flaws += [f"{name}: there is no reason {reason}" for reason in page.elsewhere if reason not in TABLE["reasons"]]
    named = re.findall(r"tests/[\w/]+\.py", " ".join(TABLE["reasons"].values()))
    flaws += [f"there is no {file}" for file in named if not (ROOT / file).exists()]
    assert not flaws, "\n".join(flaws)
