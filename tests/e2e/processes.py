"""Programs of ours as processes, a bench of them, and waiting for what they say."""

import asyncio
import ctypes
import os
import resource
import signal
import socket
import sqlite3
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from random import randrange
from typing import Any

import pytest

from machinery.errors import MusterError
from machinery.kube.client import KubeClient

CLUSTERS = "/apis/cluster.open-cluster-management.io/v1/managedclusters"
LIBC = ctypes.CDLL(None, use_errno=True)
DROP_CAPABILITY, DAC_OVERRIDE = 24, 1  # as Linux numbers them
OFTEN, SELDOM = 0.03, 0.15
"""Seconds between two questions: of what is to happen soon, and of what takes its time."""
NO_AUTHORITIES = {"SSL_CERT_FILE": os.devnull, "SSL_CERT_DIR": os.devnull}
"""None of this machine's CAs, of which a test needs none: to read them all takes every process a tenth of a second."""
REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"


async def until(condition: Callable[[], Awaitable[Any]], *, what: str, within: float = 20) -> Any:
    """The condition's first true answer. A MusterError or OSError counts as "not yet"; fails with the last one.

    It is asked at least once, and more seldom the longer it takes: to ask costs both sides a handshake.
    """
    last: object = None
    time = asyncio.get_running_loop().time
    began = time()
    while True:
        try:
            if answer := await condition():
                return answer
            last = answer
        except (MusterError, OSError) as error:
            last = error
        passed = time() - began
        if passed >= within:
            pytest.fail(f"{what}: not within {within:g} s; last seen: {last!r}", pytrace=False)
        await asyncio.sleep(min(SELDOM, OFTEN + passed / 20))


def _ports() -> Iterator[int]:
    """Below those that outgoing connections get; others than another worker's, and none again before all were given."""
    worker, workers = os.environ.get("PYTEST_XDIST_WORKER", "gw0"), int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    share = 12_000 // workers
    first, place = 20_000 + int(worker.removeprefix("gw")) % workers * share, randrange(share)
    while True:
        yield first + place
        place = (place + 1) % share


_NEXT_PORTS = _ports()


def free_port() -> int:
    """Nobody takes it by chance while its hub is away, or is not up yet."""
    for port in islice(_NEXT_PORTS, 100):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    pytest.fail("no port is free", pytrace=False)


def status_of(document: Mapping[str, Any], kind: str) -> str | None:
    """The status of a condition; None: it is not there."""
    found = [each for each in document.get("status", {}).get("conditions", []) if each["type"] == kind]
    return found[0]["status"] if found else None


def is_available(document: Mapping[str, Any]) -> bool:
    return status_of(document, "ManagedClusterConditionAvailable") == "True"


def recorded(database: Path, purpose: str) -> Counter[str]:
    """How many certificates of a purpose the hub has recorded, per cluster."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        rows = connection.execute("SELECT cluster FROM certificates WHERE purpose = ?", (purpose,)).fetchall()
    return Counter(cluster for (cluster,) in rows)


@dataclass
class Program:
    """One of our programs as a process; its output goes into one file."""

    name: str
    arguments: tuple[str, ...]
    log: Path
    environment: dict[str, str] = field(default_factory=dict)
    file_limit: int | None = None
    """Largest file it may write, in bytes: the disk is full beyond that."""
    mode_bound: bool = False
    """Root, too, must obey the modes of files."""
    process: asyncio.subprocess.Process | None = None

    async def start(self) -> "Program":
        limit, mode_bound = self.file_limit, self.mode_bound and os.geteuid() == 0

        def bounded() -> None:
            if limit is not None:
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            if mode_bound and LIBC.prctl(DROP_CAPABILITY, DAC_OVERRIDE):
                raise OSError(ctypes.get_errno(), "the capability could not be dropped")

        with self.log.open("ab") as output:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                *self.arguments,
                stdout=output,
                stderr=output if limit is None else asyncio.subprocess.PIPE,
                env={**os.environ, **NO_AUTHORITIES, **self.environment},
                preexec_fn=bounded if limit is not None or mode_bound else None,
            )
        return self

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    async def piped(self) -> str:
        """What a program with a limit said until it ended: a file of its own would be full, too."""
        assert self.process is not None
        assert self.process.stderr is not None
        return (await asyncio.wait_for(self.process.stderr.read(), 30)).decode()

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.returncode is None

    @property
    def output(self) -> str:
        """What it said, in whole lines: a long one is seen while it is still being written."""
        text = self.log.read_text("utf-8", "replace") if self.log.exists() else ""
        return text[: text.rfind("\n") + 1]

    async def ended(self, within: float = 20) -> int:
        """Its exit code."""
        assert self.process is not None
        try:
            return await asyncio.wait_for(self.process.wait(), within)
        except TimeoutError:
            pytest.fail(f"{self.name} did not end within {within:g} s", pytrace=False)

    async def stop(self, number: signal.Signals = signal.SIGTERM, within: float = 20) -> int:
        if self.running:
            self.send(number)
        return await self.ended(within)

    async def kill(self) -> None:
        await self.stop(signal.SIGKILL)


@dataclass
class Bench:
    """A hub, hollow clusters and spokes that a test starts, and what it reads from them."""

    folder: Path
    programs: list[Program] = field(default_factory=list)
    grpc_port: int = field(default_factory=free_port)
    https_port: int = field(default_factory=free_port)
    data_name: str = "hub"

    @property
    def data(self) -> Path:
        return self.folder / self.data_name

    @property
    def admin(self) -> Path:
        return self.data / "admin.kubeconfig"

    def program(self, name: str, *arguments: str, **options: Any) -> Program:
        program = Program(name, arguments, self.folder / f"{name}.log", **options)
        self.programs.append(program)
        return program

    def hub_program(self, *flags: str, name: str = "hub", **options: Any) -> Program:
        doors = (f"--grpc-listen=127.0.0.1:{self.grpc_port}", f"--https-listen=127.0.0.1:{self.https_port}")
        return self.program(name, "hub", "serve", f"--data-dir={self.data}", *doors, *flags, **options)

    async def hub(self, *flags: str, **options: Any) -> Program:
        """A hub that is ready."""
        program = await self.hub_program(*flags, **options).start()
        await self.ready(program)
        return program

    async def ready(self, program: Program) -> None:
        async def answers() -> bool:
            if not program.running:
                pytest.fail(f"{program.name} ended before it was ready:\n{program.output[-3000:]}", pytrace=False)
            async with await KubeClient.from_file(self.admin) as client:
                return (await client.raw("GET", "/readyz")).status == 200

        await until(answers, what="the hub is ready", within=90)

    async def hollow(self, name: str, *flags: str) -> Path:
        """A hollow cluster that answers; returns its kubeconfig."""
        file = self.folder / f"{name}.kubeconfig"
        await self.program(f"hollow-{name}", "hollow", "serve", "--name", name, "--kubeconfig-out", str(file), *flags).start()

        async def written() -> bool:
            return file.exists()

        await until(written, what=f"hollow cluster {name} answers")
        return file

    async def hubctl(self, *arguments: str, code: int = 0, within: float = 20) -> str:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "hub.cli", "--kubeconfig", str(self.admin), *arguments),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await asyncio.wait_for(process.communicate(), within)
        assert process.returncode == code, f"hubctl {' '.join(arguments)}: {process.returncode}\n{out.decode()}{err.decode()}"
        return out.decode() + (err.decode() if code else "")

    async def bootstrap(self, cluster: str) -> Path:
        file = self.folder / f"{cluster}.bootstrap"
        loopback = ("--allow-loopback",)
        await self.hubctl("create", "bootstrap-kubeconfig", "--cluster", cluster, "-o", str(file), *loopback)
        return file

    async def spoke(self, cluster: str, bootstrap: Path | None = None, *flags: str) -> Program:
        """A spoke for `cluster`, with a hollow cluster when there is none yet."""
        kubeconfig, file = await asyncio.gather(self._cluster(cluster), self._bootstrap(cluster, bootstrap))
        return await self.program(
            f"spoke-{cluster}-{len(self.programs)}",
            *("spoke", "run", "--cluster-name", cluster, "--kubeconfig", str(kubeconfig)),
            *("--bootstrap-kubeconfig", str(file)),
            *("--hub-kubeconfig-dir", str(self.folder / f"{cluster}.credentials"), *flags),
        ).start()

    async def _cluster(self, name: str) -> Path:
        file = self.folder / f"{name}.kubeconfig"
        return file if file.exists() else await self.hollow(name)

    async def _bootstrap(self, cluster: str, file: Path | None) -> Path:
        return file or await self.bootstrap(cluster)

    async def get(self, path: str) -> Any:
        async with await KubeClient.from_file(self.admin) as client:
            return await client.get(path)

    async def cluster(self, name: str) -> Any:
        return await self.get(f"{CLUSTERS}/{name}")

    async def cluster_when(
        self, name: str, condition: Callable[[Mapping[str, Any]], bool], *, what: str, within: float = 20
    ) -> Any:
        async def looked() -> Any:
            document = await self.cluster(name)
            return document if condition(document) else None

        return await until(looked, what=f"cluster {name} {what}", within=within)

    async def available(self, name: str, within: float = 20) -> Any:
        return await self.cluster_when(name, is_available, what="is Available", within=within)

    async def requests(self) -> list[Any]:
        return list((await self.get(REQUESTS))["items"])

    @property
    def logs(self) -> str:
        """All that any program said."""
        return "".join(program.output for program in self.programs)

    async def close(self) -> None:
        for program in reversed(self.programs):
            if program.running:
                await program.kill()
