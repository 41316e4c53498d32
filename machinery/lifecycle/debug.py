"""A report with the stacks of all threads and tasks and with counters, for debugging a process that hangs.

The report is available on a unix socket (`socat - UNIX-CONNECT:PATH`, or `nc -U PATH`), and in the log after SIGUSR1. Socket
and signal have threads of their own, so they work while the event loop is blocked. Stacks contain files, lines and names, but
no values.
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
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import structlog

from machinery.lifecycle.startup import StartError

Section = Callable[[], Mapping[str, Any]]
"""Returns counters of a component, such as queue lengths, and no secrets. Another thread calls it, so it must only read."""

READ_TIMEOUT = 5.0
"""Seconds that a client of the socket may take to read."""

log = structlog.get_logger(__name__)


class Inspection:
    """Makes the report about a process. `add` adds a section to the report. Any thread may call `report`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._sections: dict[str, Section] = {}

    def add(self, name: str, section: Section) -> None:
        """Add a section. Raises ValueError for a duplicate name."""
        if name in self._sections:
            raise ValueError(f'a section named "{name}" is there already')
        self._sections[name] = section

    def report(self) -> str:
        """Return the sections, and the stacks of all threads and tasks, as text."""
        return "\n".join([*self._lines(), ""])

    def _lines(self) -> Iterator[str]:
        yield f"process {os.getpid()}"
        for name, section in self._sections.items():
            yield f"\n== {name}"
            try:
                yield from (f"{key}: {value}" for key, value in section().items())
            except Exception as error:  # noqa: BLE001 - other sections are still useful
                yield f"cannot be read: {type(error).__name__}"
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        for ident, frame in sys._current_frames().items():  # noqa: SLF001 - documented for this purpose
            yield f"\n== thread {names.get(ident, 'of a library')}"
            yield from map(_place, reversed([each for each, _ in traceback.walk_stack(frame)]))
        tasks = asyncio.all_tasks(self._loop)
        yield f"\n== {len(tasks)} tasks"
        for task in sorted(tasks, key=lambda each: each.get_name()):
            yield f"\n-- task {task.get_name()}"
            yield from map(_place, _awaiting(task.get_coro()))


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


def _place(frame: FrameType) -> str:
    return f"  {frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_qualname}"


@contextmanager
def debug_socket(path: Path, inspection: Inspection) -> Iterator[None]:
    """A block in which the socket at `path` answers each connection with a report. Only the process's user can connect.

    Raises StartError if the path cannot be used.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        try:
            _remove_left_socket(path)
            listener.bind(str(path))
            path.chmod(0o600)
            listener.listen()
        except OSError as error:
            raise StartError(
                f"the debug socket {path} cannot be made ({error.strerror or error}): "
                "choose a short path in a directory of yours with --debug-socket"
            ) from error
        threading.Thread(target=_serve_reports, args=(listener, inspection), name="debug socket", daemon=True).start()
        log.info("debug socket open", path=str(path))
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)  # wakes the thread; `close` alone does not
            path.unlink(missing_ok=True)


def _remove_left_socket(path: Path) -> None:
    """Remove the socket of a killed process. Raises OSError if the path is not a socket, or a process listens on it."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise FileExistsError(None, "there is a file of this name")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
        else:
            raise FileExistsError(None, "another process listens there")


def _serve_reports(listener: socket.socket, inspection: Inspection) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return  # closed
        with connection, suppress(OSError):  # the client has disconnected
            connection.settimeout(READ_TIMEOUT)
            connection.sendall(inspection.report().encode())


@contextmanager
def debug_signal(inspection: Inspection) -> Iterator[None]:
    """A block in which SIGUSR1 logs a report.

    The interpreter's C signal handler immediately writes a byte to a pipe (`set_wakeup_fd`), and a thread reads it. A Python
    signal handler would have to wait for the main thread, which may be blocked.
    """
    reading, writing = socket.socketpair()

    def serve() -> None:
        with reading:
            while numbers := reading.recv(64):
                if signal.SIGUSR1 in numbers:
                    log.warning("debug report requested", report=inspection.report())

    with writing:
        writing.setblocking(False)  # noqa: FBT003 - takes no keyword
        before = signal.signal(signal.SIGUSR1, lambda _number, _frame: None)
        descriptor = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=serve, name="debug signal", daemon=True).start()
        try:
            yield
        finally:
            signal.set_wakeup_fd(descriptor)
            signal.signal(signal.SIGUSR1, before)
