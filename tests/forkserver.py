"""A process that has imported the product and forks into a program of ours on request: `python -m tests.forkserver FD`.

It has no thread, no event loop and no gRPC object, so a fork of it is as good as a fresh process. Requests arrive on the socket
FD, one packet each: a JSON object, with the new program's standard streams and a socket for the answers as file descriptors.
The answers are its pid, and at its end its exit code as `subprocess` counts. When the other end of FD is closed, all programs
that still run are killed.
"""

import machinery.startup_imports  # noqa: F401 - before anything else  # isort: skip

import contextlib
import ctypes
import gc
import io
import json
import os
import pkgutil
import random
import resource
import runpy
import select
import signal
import socket
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

PACKAGES = ("machinery", "hub", "hubctl", "spoke", "hollow")
LAZY = (
    *("alembic.command", "alembic.config", "alembic.ddl.postgresql", "alembic.ddl.sqlite", "alembic.runtime.environment"),
    *("cryptography.hazmat.primitives.serialization.pkcs12", "cryptography.x509.ocsp", "grpc.aio", "psycopg", "yaml"),
    *("sqlalchemy.dialects.postgresql.psycopg", "sqlalchemy.dialects.sqlite.pysqlite", "uvloop", "zoneinfo"),
)  # what programs import when they need it
NO_MODULES = ("hub.store.migrations", "machinery.wire.google")
PACKET = 1 << 20
DROP_CAPABILITY, DAC_OVERRIDE = 24, 1  # as Linux numbers them


def preload() -> None:
    for package in map(import_module, PACKAGES):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith(".__main__") and not module.name.startswith(NO_MODULES):
                import_module(module.name)
    for name in LAZY:
        with contextlib.suppress(ModuleNotFoundError):
            import_module(name)
    if len(list(Path("/proc/self/task").iterdir())) > 1:
        raise RuntimeError("an import has started a thread")
    gc.collect()
    gc.freeze()


def serve(control: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Returns in each new program, with its request and its standard streams."""
    poll = select.poll()
    poll.register(control, select.POLLIN)
    programs: dict[int, tuple[int, socket.socket]] = {}
    while True:
        for descriptor, _ in poll.poll():
            if descriptor != control.fileno():
                poll.unregister(descriptor)
                os.close(descriptor)
                pid, answers = programs.pop(descriptor)
                _answer(answers, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                answers.close()
                continue
            packet, descriptors, _, _ = socket.recv_fds(control, PACKET, 4)
            if not packet:
                for pid, _ in programs.values():
                    os.kill(pid, signal.SIGKILL)
                os._exit(0)
            *streams, answering = descriptors
            pid = os.fork()
            if not pid:
                return json.loads(packet), streams
            for stream in streams:
                os.close(stream)
            answers = socket.socket(fileno=answering)
            _answer(answers, pid)
            watched = os.pidfd_open(pid)
            programs[watched] = pid, answers
            poll.register(watched, select.POLLIN)


def _answer(answers: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):  # nobody waits for it any more
        answers.sendall(f"{number}\n".encode())


def become(request: dict[str, Any], streams: list[int]) -> None:
    """Makes this process what a fresh one would be."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if request["session"]:
        os.setsid()
    if request["file_limit"] is not None:  # beyond so many bytes the disk is full
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["file_limit"],) * 2)
    # root, too, must obey the modes of files
    if request["mode_bound"] and ctypes.CDLL(None, use_errno=True).prctl(DROP_CAPABILITY, DAC_OVERRIDE):
        raise OSError(ctypes.get_errno(), "the capability could not be dropped")
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    random.seed()
    sys.path[0] = request["cwd"]
    sys.argv = [request["module"], *request["arguments"]]
    sys.stdin = sys.__stdin__ = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), "utf-8")  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = _written(1, "strict", unbuffered=request["unbuffered"])  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _written(2, "backslashreplace", unbuffered=True)  # type: ignore[misc]
    if request["mode_bound"]:  # a capability that is dropped is lost when a program is executed
        os.execv(sys.executable, [sys.executable, "-m", *sys.argv])  # noqa: S606 - no shell is wanted
    sys.modules.pop(f"{request['module']}.__main__", None)
    gc.enable()


def _written(number: int, errors: str, *, unbuffered: bool) -> io.TextIOWrapper:
    raw = io.FileIO(number, "w", closefd=False)
    stream: Any = raw if unbuffered else io.BufferedWriter(raw)
    return io.TextIOWrapper(stream, "utf-8", errors, write_through=unbuffered, line_buffering=os.isatty(number))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    preload()
    request, streams = serve(socket.socket(fileno=int(sys.argv[1])))
    become(request, streams)
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
