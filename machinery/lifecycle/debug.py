"""Stacks of all threads and tasks and counters of a process, for debugging one that hangs.

Served on a unix socket that only its owner can open (`socat - UNIX-CONNECT:PATH`, or `nc -U PATH`), and logged on SIGUSR1. Both
use their own thread, so they work while the event loop is blocked. Stacks contain files, lines and names, never values.
"""

import asyncio
import os
import signal
import socket
import stat
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

import structlog

from machinery.lifecycle.startup import StartError

Section = Callable[[], Mapping[str, Any]]
"""Counters of a part, such as queues and sessions. Called on another thread, so it must only read; never returns a secret."""

PATIENCE = 5.0
"""Seconds that a client of the socket may take to read."""

log = structlog.get_logger(__name__)


class Inspection:
    """The report about a process. `add` sections; call `report` from any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._sections: dict[str, Section] = {}

    def add(self, name: str, section: Section) -> None:
        """Raises ValueError for a duplicate name."""
        if name in self._sections:
            raise ValueError(f'a section named "{name}" is there already')
        self._sections[name] = section

    def report(self) -> str:
        """All sections, threads and tasks as text."""
        return "\n".join([*self._counts(), *self._threads(), *self._tasks(), ""])

    def _counts(self) -> Iterator[str]:
        yield f"process {os.getpid()}"
        for name, section in self._sections.items():
            yield f"\n== {name}"
            try:
                yield from (f"{key}: {value}" for key, value in section().items())
            except Exception as error:  # noqa: BLE001 - the rest is worth telling
                yield f"cannot be told: {type(error).__name__}"

    def _threads(self) -> Iterator[str]:
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        for ident, frame in sys._current_frames().items():  # noqa: SLF001 - documented for this purpose
            yield f"\n== thread {names.get(ident, 'of a library')}"
            yield from _lines(reversed([each for each, _ in traceback.walk_stack(frame)]))

    def _tasks(self) -> Iterator[str]:
        tasks = asyncio.all_tasks(self._loop)
        yield f"\n== {len(tasks)} tasks"
        for task in sorted(tasks, key=lambda each: each.get_name()):
            yield f"\n-- task {task.get_name()}"
            yield from _lines(_awaiting(task.get_coro()))


def _awaiting(waiter: Any) -> Iterator[FrameType]:
    """Frames of a suspended coroutine and of what it awaits, outermost first."""
    while waiter is not None:
        for prefix in ("cr", "gi", "ag"):
            frame = getattr(waiter, f"{prefix}_frame", None)
            if frame is not None:
                yield frame
                waiter = getattr(waiter, f"{prefix}_await", None) or getattr(waiter, "gi_yieldfrom", None)
                break
        else:
            return


def _lines(frames: Iterator[FrameType]) -> Iterator[str]:
    for frame in frames:
        yield f"  {frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_qualname}"


class DebugSocket:
    """A `with` block in which `path` answers each connection with a report, for its owner only."""

    def __init__(self, path: Path, inspection: Inspection) -> None:
        self._path = path
        self._inspection = inspection
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)

    def __enter__(self) -> Self:
        """Raises StartError when the path cannot be used."""
        try:
            self._clear()
            self._listener.bind(str(self._path))
            self._path.chmod(0o600)
            self._listener.listen()
        except OSError as error:
            self._listener.close()
            raise StartError(
                f"the debug socket {self._path} cannot be made ({error.strerror or error}): "
                "choose a short path in a directory of yours with --debug-socket"
            ) from error
        threading.Thread(target=self._serve, name="debug socket", daemon=True).start()
        log.info("debug socket open", path=str(self._path))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread, which `close` alone would not
        self._listener.close()
        self._path.unlink(missing_ok=True)

    def _clear(self) -> None:
        """Remove the socket of a killed process. Raises OSError when the path is no socket, or a process listens on it."""
        try:
            if not stat.S_ISSOCK(self._path.lstat().st_mode):
                raise FileExistsError(None, "there is a file of this name")
        except FileNotFoundError:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.connect(str(self._path))
            except ConnectionRefusedError:
                self._path.unlink()
            else:
                raise FileExistsError(None, "another process listens there")

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # closed
            with connection:
                connection.settimeout(PATIENCE)
                try:
                    connection.sendall(self._inspection.report().encode())
                except OSError:
                    continue  # the client has disconnected


class DebugSignal:
    """A `with` block in which SIGUSR1 logs a report.

    The interpreter's C signal handler writes a byte at once (`set_wakeup_fd`); a Python handler would wait for the main thread,
    which may be blocked.
    """

    def __init__(self, inspection: Inspection) -> None:
        self._inspection = inspection
        self._reading, self._writing = socket.socketpair()
        self._writing.setblocking(False)  # noqa: FBT003 - its one argument
        self._before: Any = None
        self._descriptor = -1

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGUSR1, lambda _number, _frame: None)
        self._descriptor = signal.set_wakeup_fd(self._writing.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=self._serve, name="debug signal", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        signal.set_wakeup_fd(self._descriptor)
        signal.signal(signal.SIGUSR1, self._before)
        self._writing.close()

    def _serve(self) -> None:
        with self._reading:
            while numbers := self._reading.recv(64):
                if signal.SIGUSR1 in numbers:
                    log.warning("asked what it does", report=self._inspection.report())
