"""Programs of ours as processes, as `python -m MODULE` would start them, without the second that their imports take.

They are forked from a process that has imported the product (`tests/forkserver.py`), one per process that asks. Signals, exit
codes, standard streams, files and memory are those of a process of its own. A program whose environment matters to the
interpreter itself (PYTHON*, LD_*, ...) is started afresh.
"""

import asyncio
import atexit
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Protocol

DEVNULL, PIPE, STDOUT = subprocess.DEVNULL, subprocess.PIPE, subprocess.STDOUT
ROOT = Path(__file__).parents[1]
FRESH = ("PYTHON", "LD_", "GRPC_", "FAKETIME", "MALLOC_", "LC_", "LANG", "OPENSSL", "COVERAGE")
"""Variables that take effect when an interpreter starts or a library is loaded."""

Stream = Any  # none: the stream of this process. Else DEVNULL, PIPE, STDOUT, an open file or its number.


class Process(Protocol):
    """What a program shows of itself; asyncio's processes do as well."""

    stdout: asyncio.StreamReader | None
    stderr: asyncio.StreamReader | None

    @property
    def pid(self) -> int: ...
    @property
    def returncode(self) -> int | None: ...
    async def wait(self) -> int: ...
    async def communicate(self, input: bytes | None = None) -> tuple[bytes, bytes]: ...  # noqa: A002 - as asyncio calls it
    def send_signal(self, signal: int) -> None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


async def start(
    module: str,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    cwd: Path | str | None = None,
    stdin: Stream = DEVNULL,
    stdout: Stream = None,
    stderr: Stream = None,
    start_new_session: bool = False,
    unbuffered: bool = False,
    fresh: bool = False,
    file_limit: int | None = None,
    mode_bound: bool = False,
) -> Process:
    """Starts `python -m module arguments`, forked unless it is `fresh`.

    `file_limit`: the largest file that it may write, in bytes. `mode_bound`: modes of files bind it though it runs as root.
    """
    environment = dict(os.environ if env is None else env)
    if fresh or stdin == PIPE or _read_at_start(environment) != _server()[1]:
        assert file_limit is None
        assert not mode_bound
        return await asyncio.create_subprocess_exec(
            *(sys.executable, *(["-u"] if unbuffered else []), "-m", module, *arguments),
            env=environment,
            cwd=cwd,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=start_new_session,
        )
    request = {
        "module": module,
        "arguments": arguments,
        "environment": environment,
        "cwd": str(cwd or Path.cwd()),
        "session": start_new_session,
        "unbuffered": unbuffered,
        "file_limit": file_limit,
        "mode_bound": mode_bound and os.geteuid() == 0,
    }
    return await _Forked.start(request, stdin, stdout, stderr)


async def run(
    module: str, *arguments: str, given: str = "", within: float = 60, **options: Any
) -> subprocess.CompletedProcess[str]:
    """The outcome of a program that ends by itself; `given` is its standard input. It is killed after `within` seconds."""
    with TemporaryFile() as file:
        file.write(given.encode())
        file.seek(0)
        process = await start(module, *arguments, **{"stdin": file, "stdout": PIPE, "stderr": PIPE, **options})
    return await _outcome(process, None, within)


async def command(
    *words: str, given: str = "", within: float = 60, stderr: Stream = PIPE, **options: Any
) -> subprocess.CompletedProcess[str]:
    """The same of a program that is not ours."""
    process = await asyncio.create_subprocess_exec(*words, stdin=PIPE, stdout=PIPE, stderr=stderr, **options)
    return await _outcome(process, given.encode(), within)


async def _outcome(process: Process, given: bytes | None, within: float) -> subprocess.CompletedProcess[str]:
    try:
        out, err = await asyncio.wait_for(process.communicate(given), within)
    except BaseException:
        with suppress(ProcessLookupError):
            process.kill()
        raise
    assert process.returncode is not None
    return subprocess.CompletedProcess((), process.returncode, (out or b"").decode(), (err or b"").decode())


@contextmanager
def unread() -> Iterator[int]:
    """The descriptor of a pipe that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        yield writing
    finally:
        os.close(writing)


def _read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in environment.items() if key.startswith(FRESH)}


@cache
def _server() -> tuple[socket.socket, dict[str, str]]:
    """The socket for requests, and those variables of its environment that are not replaced in its programs."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.forkserver", str(theirs.fileno())],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )

    def close() -> None:
        ours.close()
        process.wait()

    atexit.register(close)
    return ours, _read_at_start(os.environ)


class _Forked(asyncio.Protocol):
    """A program that was forked; reads the answers of the process that did."""

    stdout: asyncio.StreamReader | None = None
    stderr: asyncio.StreamReader | None = None

    def __init__(self) -> None:
        self._answers = b""
        self._numbers: list[int] = []
        loop = asyncio.get_running_loop()
        self._started, self._ended = loop.create_future(), loop.create_future()

    @classmethod
    async def start(cls, request: Mapping[str, Any], *streams: Stream) -> "_Forked":
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        ours.settimeout(0)
        read: dict[int, int] = {}
        with ExitStack() as stack:
            stack.enter_context(theirs)
            numbers: list[int] = []
            for number, stream in enumerate(streams):
                if stream == PIPE:
                    read[number], given = os.pipe()
                    stack.callback(os.close, given)
                elif stream == DEVNULL:
                    given = os.open(os.devnull, os.O_RDWR)
                    stack.callback(os.close, given)
                elif stream == STDOUT:
                    given = numbers[1]
                else:
                    given = number if stream is None else stream if isinstance(stream, int) else stream.fileno()
                numbers.append(given)
            socket.send_fds(_server()[0], [json.dumps(request).encode()], [*numbers, theirs.fileno()])
        _, forked = await loop.create_connection(cls, sock=ours)
        readers = {number: await _reader(pipe) for number, pipe in read.items()}
        forked.stdout, forked.stderr = readers.get(1), readers.get(2)
        await forked._started
        return forked

    def data_received(self, data: bytes) -> None:
        *lines, self._answers = (self._answers + data).split(b"\n")
        for line in lines:
            self._numbers.append(int(line))
            future = self._started if len(self._numbers) == 1 else self._ended
            if not future.done():
                future.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        for future in (self._started, self._ended):
            if not future.done():
                future.set_exception(exc or ChildProcessError("the process that forks programs has ended"))

    @property
    def pid(self) -> int:
        return self._numbers[0]

    @property
    def returncode(self) -> int | None:
        return self._numbers[1] if len(self._numbers) > 1 else None

    async def wait(self) -> int:
        await asyncio.shield(self._ended)
        return self._numbers[1]

    async def communicate(self, input: bytes | None = None) -> tuple[bytes, bytes]:  # noqa: A002 - as asyncio calls it
        assert input is None
        out, err, _ = await asyncio.gather(_whole(self.stdout), _whole(self.stderr), self.wait())
        return out, err

    def send_signal(self, signal: int) -> None:
        if self.returncode is not None:
            raise ProcessLookupError
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal)

    def terminate(self) -> None:
        self.send_signal(15)

    def kill(self) -> None:
        self.send_signal(9)


async def _reader(pipe: int) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(pipe, "rb"))
    return reader


async def _whole(stream: asyncio.StreamReader | None) -> bytes:
    return b"" if stream is None else await stream.read()
