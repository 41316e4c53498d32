"""Child processes with log files, each in its own process group. They are ended by SIGTERM, then by SIGKILL."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from subprocess import CompletedProcess
from types import TracebackType
from typing import Self

_TAIL_BYTES = 4096


class Child:
    """One running program in its own process group, so that Ctrl-C of the terminal does not reach it."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name = name
        self.log = log
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The program's exit code; None while the program runs. The code -N means that the signal N ended the program."""
        return self._process.returncode

    def how_it_ended(self) -> str:
        code = self.exit_code
        if code is None:
            return "is running"
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    def last_words(self, lines: int = 5) -> list[str]:
        with contextlib.suppress(OSError), self.log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            return file.read().decode(errors="replace").splitlines()[-lines:]
        return []

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process group, unless the whole group has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    async def ended(self) -> int:
        return await self._process.wait()


class Children:
    """The programs that were started in an `async with` block. The end of the block ends them.

    All programs get SIGTERM at the same time. Programs that still run after `patience` seconds get SIGKILL.
    """

    def __init__(self, logs: Path, patience: float = 10.0) -> None:
        self._logs = logs
        self._patience = patience
        self._children: list[Child] = []

    async def __aenter__(self) -> Self:
        self._logs.mkdir(parents=True, exist_ok=True)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for child in self._children:
            child.send(signal.SIGTERM)
        if self._children:
            await asyncio.wait([asyncio.ensure_future(child.ended()) for child in self._children], timeout=self._patience)
        self.kill()  # other processes of the groups may remain
        for child in self._children:
            await child.ended()

    async def start(self, name: str, command: Sequence[str]) -> Child:
        """Start a program. Its output is appended to `<name>.log`."""
        log = self._logs / f"{name}.log"
        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        child = Child(name, process, log)
        self._children.append(child)
        return child

    def kill(self) -> None:
        for child in self._children:
            child.send(signal.SIGKILL)


async def ask(command: Sequence[str], within: float = 30.0) -> CompletedProcess[str]:
    """Run a program to its end. After `within` seconds, kill it and raise TimeoutError."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        output, error = await asyncio.wait_for(process.communicate(), within)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return CompletedProcess(command, process.returncode or 0, output.decode(), error.decode())
