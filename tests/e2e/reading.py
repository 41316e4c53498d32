"""A reader of a document, who types what it tells him to, line by line, and saves its YAML files."""

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

ROOT = Path(__file__).parents[2]
PROGRAMS = {"hub": "hub", "spoke": "spoke", "hubctl": "hub.cli", "hollow": "hollow"}
BLOCK = re.compile(r"^```(sh|yaml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
STAYS = re.compile(r"^(hub serve|hollow serve|spoke run)\b|\s(-w|--watch|--follow)(\s|$)")
MOST = 60.0
"""Seconds that a command may take."""
PATIENCE = 20.0
"""Seconds in which a command may fail because what was typed before has not taken effect."""


@dataclass(frozen=True, slots=True)
class Page:
    """What a reader of one document has before he begins, and what his machine spells differently."""

    joined: Sequence[str] = ()
    """Clusters that are Available."""
    hub: Sequence[str] | None = ()
    """The settings of the hub that is running; None: there is none yet."""
    before: Sequence[str] = ()
    """Commands that he typed earlier."""
    spelled: Mapping[str, str] = field(default_factory=dict)
    """Pieces of the text, and what they stand for here, as the shell has it."""
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    """How commands begin that are not typed here, and why, or the test that does."""
    code: Mapping[str, int] = field(default_factory=dict)
    """How commands begin that end with another code than 0."""


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
    """A folder in this one with our programs, for the path."""
    programs = folder / "bin"
    programs.mkdir()
    for name, module in PROGRAMS.items():
        file = programs / name
        file.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m {module} "$@"\n')
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return programs


@dataclass
class Reader:
    """Types commands in a folder of his own; what stays in the foreground gets a terminal of its own."""

    folder: Path
    environment: dict[str, str]
    running: list[asyncio.subprocess.Process] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    @classmethod
    def at(cls, folder: Path, ports: tuple[int, int]) -> "Reader":
        """In `folder`, with our programs and a home there. `ports`: of the hub's two doors."""
        programs = programs_in(folder)
        home, here = folder / "home", folder / "here"
        home.mkdir()
        here.mkdir()
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HUB", "SPOKE", "XDG", "KUBE"))}
        return cls(
            here,
            {
                **kept,
                "HOME": str(home),
                "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
                "PYTHONPATH": str(ROOT),
                "HUB_GRPC_LISTEN": f"127.0.0.1:{ports[0]}",
                "HUB_HTTPS_LISTEN": f"127.0.0.1:{ports[1]}",
                "KUBECONFIG": str(home / ".local/share/muster/admin.kubeconfig"),
            },
        )

    async def types(self, command: str, *, code: int = 0) -> None:
        """Fails when the command still ends otherwise after a while, or when one that should stay ends."""
        if STAYS.search(command):
            await self._leaves_running(command)
            return
        deadline = asyncio.get_running_loop().time() + PATIENCE
        while True:
            ended, output = await self._ran(command)
            if ended == code:
                self.said.append(output)
                return
            if asyncio.get_running_loop().time() > deadline:
                pytest.fail(f"$ {command}\n{output}\nended with {ended}, not {code}", pytrace=False)
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
                env=self.environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.running.append(process)
        async with asyncio.timeout(PATIENCE):
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
            async with asyncio.timeout(PATIENCE):
                await asyncio.gather(*(process.wait() for process in self.running))
        finally:
            for process in self.running:
                if process.returncode is None:
                    os.killpg(process.pid, signal.SIGKILL)
