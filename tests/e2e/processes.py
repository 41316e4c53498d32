"""Programs of ours as processes, a bench of them, and waiting for what they say."""

import asyncio
import inspect
import json
import os
import pty
import signal
import socket
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from random import randrange
from typing import IO, Any

import pytest

from machinery.client.rest import KubeClient
from machinery.errors import MusterError, NotFoundError
from machinery.pki import CertificateFacts, parse_certificate
from tests import programs
from tests.checks import present

CLUSTERS = "/apis/cluster.open-cluster-management.io/v1/managedclusters"
AVAILABLE = "ManagedClusterConditionAvailable"
PATIENCE = 100.0  # seconds after which a test gives up: a little less than its own time-out, so that it fails with a sentence
OFTEN, SELDOM = 0.03, 0.15  # seconds between two questions: of what is to happen soon, and of what takes its time
NO_AUTHORITIES = {"SSL_CERT_FILE": os.devnull, "SSL_CERT_DIR": os.devnull}
"""None of this machine's CAs, of which a test needs none: to read them all takes every process a tenth of a second."""
SHORT_LEASE = ("--default-lease-duration=1s", "--beat-interval=300ms", "--flush-window=100ms")
REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"


def new_cluster(name: str) -> dict[str, Any]:
    return {"apiVersion": "cluster.open-cluster-management.io/v1", "kind": "ManagedCluster", "metadata": {"name": name}}


async def until(condition: Callable[[], Any], *, what: str, within: float | None = None) -> Any:
    """The first true answer of a condition, which may be a coroutine function. A MusterError or OSError counts as "not yet".

    It is asked at least once, and more seldom the longer it takes: to ask costs both sides a handshake.
    """
    within = PATIENCE if within is None else within
    last: object = None
    time = asyncio.get_running_loop().time
    began = time()
    while True:
        try:
            answer = condition()
            if inspect.isawaitable(answer):
                answer = await answer
            if answer:
                return answer
            last = answer
        except (MusterError, OSError) as error:
            last = error
        passed = time() - began
        if passed >= within:
            pytest.fail(f"{what}: not within {within:g} s; last seen: {last!r}", pytrace=False)
        await asyncio.sleep(min(SELDOM, OFTEN + passed / 20))


async def until_all(count: Callable[[], int], goal: int, *, what: str) -> None:
    """Waits until a number that only grows is `goal`. Fails when it stands still for as long as `until` waits."""
    reached = count()

    def grown() -> int:
        return now if (now := count()) > reached else 0

    while reached < goal:
        reached = await until(grown, what=f"{what}: more than {reached} of {goal}")


async def is_gone(asked: Awaitable[Any]) -> bool:
    """Whether an object that is asked for is not there."""
    try:
        await asked
    except NotFoundError:
        return True
    return False


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
    return status_of(document, AVAILABLE) == "True"


def stored(database: Path, query: str, *values: str) -> list[tuple[Any, ...]]:
    """The answer of a hub's SQLite database, beside the hub."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=5)) as connection:
        return connection.execute(query, values).fetchall()


def recorded(database: Path, purpose: str) -> Counter[str]:
    """How many certificates of a purpose the hub has recorded, per cluster."""
    return Counter(cluster for (cluster,) in stored(database, "SELECT cluster FROM certificates WHERE purpose = ?", purpose))


async def asked_for_debug(socket: Path) -> str:
    """The report of a debug socket."""
    reader, writer = await asyncio.open_unix_connection(str(socket))
    try:
        return (await asyncio.wait_for(reader.read(), 20)).decode()
    finally:
        writer.close()


@dataclass
class Program:
    """One of our programs as a process; its output goes into one file."""

    name: str
    arguments: tuple[str, ...]
    log: Path
    environment: dict[str, str] = field(default_factory=dict)
    file_limit: int | None = None  # largest file it may write, in bytes: the disk is full beyond that
    mode_bound: bool = False  # root, too, must obey the modes of files
    fresh: bool = False
    """It is not forked from a process that has imported the product: its arguments and environment are seen from outside."""
    terminal: bool = False  # it writes to a terminal, of which the file is a copy
    process: programs.Process | None = None

    async def start(self) -> "Program":
        with self._terminal() if self.terminal else self.log.open("ab") as output:
            self.process = await programs.start(
                *self.arguments,
                stdout=output,
                stderr=output if self.file_limit is None else programs.PIPE,
                env={**os.environ, **NO_AUTHORITIES, **self.environment},
                fresh=self.fresh,
                file_limit=self.file_limit,
                mode_bound=self.mode_bound,
            )
        return self

    def _terminal(self) -> IO[bytes]:
        loop, (own, theirs) = asyncio.get_running_loop(), pty.openpty()

        def copy() -> None:
            try:
                with self.log.open("ab") as log:
                    log.write(os.read(own, 1 << 16).replace(b"\r\n", b"\n"))
            except OSError:  # the program has ended
                loop.remove_reader(own)
                os.close(own)

        loop.add_reader(own, copy)
        return os.fdopen(theirs, "wb", 0)

    @property
    def pid(self) -> int:
        return present(self.process).pid

    def send(self, number: signal.Signals) -> None:
        present(self.process).send_signal(number)

    async def piped(self) -> str:
        """What a program with a limit said until it ended: a file of its own would be full, too."""
        return (await present(present(self.process).stderr).read()).decode()

    async def probe(self, path: str) -> tuple[int, str]:
        """Status and text of one of an agent's probes."""
        line = next(line for line in self.output.splitlines()[::-1] if "probes.listening" in line)
        reader, writer = await asyncio.open_connection("127.0.0.1", int(line.split('"address": "127.0.0.1:')[1].split('"')[0]))
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        answer = (await reader.read()).decode()
        writer.close()
        head, _, body = answer.partition("\r\n\r\n")
        return int(head.split()[1]), body.strip()

    @property
    def lines(self) -> list[dict[str, Any]]:
        """What it logged as JSON; sentences for people are left out."""
        return [json.loads(line) for line in self.output.splitlines() if line.startswith("{")]

    @property
    def signals(self) -> list[str]:
        """Its lifecycle signals so far."""
        return [line["signal"] for line in self.lines if line["event"] == "lifecycle signal"]

    async def signaled(self, name: str) -> None:
        await until(lambda: name in self.signals, what=f"{self.name} has signaled {name}")

    async def says(self, text: str, times: int = 1) -> None:
        """Waits until its output holds the text that often."""
        await until(lambda: self.output.count(text) >= times, what=f"{self.name} says {text!r}, {times} times")

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.returncode is None

    @property
    def output(self) -> str:
        """What it said, in whole lines: a long one is seen while it is still being written."""
        text = self.log.read_text("utf-8", "replace") if self.log.exists() else ""
        return text[: text.rfind("\n") + 1]

    async def ended(self) -> int:
        """Its exit code."""
        try:
            return await asyncio.wait_for(present(self.process).wait(), PATIENCE)
        except TimeoutError:
            pytest.fail(f"{self.name} did not end within {PATIENCE:g} s", pytrace=False)

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        if self.running:
            self.send(number)
        return await self.ended()

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
    fresh: bool = False

    @property
    def data(self) -> Path:
        return self.folder / self.data_name

    def stored(self, query: str) -> list[tuple[Any, ...]]:
        return stored(self.data / "hub.db", query)

    @property
    def admin(self) -> Path:
        return self.data / "admin.kubeconfig"

    def program(self, name: str, *arguments: str, **options: Any) -> Program:
        program = Program(name, arguments, self.folder / f"{name}.log", fresh=self.fresh, **options)
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

        await until(answers, what="the hub is ready")

    async def hollow(self, name: str, *flags: str) -> Path:
        """A hollow cluster that answers; returns its kubeconfig."""
        file = self.folder / f"{name}.kubeconfig"
        await self.program(f"hollow-{name}", "hollow", "serve", "--name", name, "--kubeconfig-out", str(file), *flags).start()
        await until(file.exists, what=f"hollow cluster {name} answers")
        return file

    async def hubctl(self, *arguments: str, code: int = 0) -> str:
        ended = await programs.run("hubctl", "--kubeconfig", str(self.admin), *arguments)
        assert ended.returncode == code, f"hubctl {' '.join(arguments)}: {ended.returncode}\n{ended.stdout}{ended.stderr}"
        return ended.stdout + (ended.stderr if code else "")

    async def bootstrap(self, cluster: str, *options: str, name: str = "") -> Path:
        """A bootstrap kubeconfig, in a file of that name or of the cluster's."""
        file = self.folder / f"{name or cluster}.bootstrap"
        create = ("create", "bootstrap-kubeconfig", "--cluster", cluster, "--allow-loopback", "-o", str(file))
        await self.hubctl(*create, *options)
        return file

    async def prepared(self, cluster: str, bootstrap: Path | None = None, *flags: str) -> Program:
        """A spoke for `cluster` that is not started yet, with a hollow cluster when there is none."""
        known = self.folder / f"{cluster}.kubeconfig"
        kubeconfig = known if known.exists() else await self.hollow(cluster)
        file = bootstrap or await self.bootstrap(cluster)
        return self.program(
            f"spoke-{cluster}-{len(self.programs)}",
            *("spoke", "run", "--cluster-name", cluster, "--kubeconfig", str(kubeconfig)),
            *("--bootstrap-kubeconfig", str(file)),
            *("--hub-kubeconfig-dir", str(self.folder / f"{cluster}.credentials"), *flags),
        )

    async def spoke(self, cluster: str, bootstrap: Path | None = None, *flags: str) -> Program:
        return await (await self.prepared(cluster, bootstrap, *flags)).start()

    async def get(self, path: str) -> Any:
        async with await KubeClient.from_file(self.admin) as client:
            return await client.get(path)

    async def cluster(self, name: str) -> Any:
        return await self.get(f"{CLUSTERS}/{name}")

    async def cluster_when(self, name: str, condition: Callable[[Mapping[str, Any]], bool], *, what: str) -> Any:
        async def looked() -> Any:
            document = await self.cluster(name)
            return document if condition(document) else None

        return await until(looked, what=f"cluster {name} {what}")

    async def available(self, name: str) -> Any:
        return await self.cluster_when(name, is_available, what="is Available")

    @asynccontextmanager
    async def kubernetes(self, cluster: str) -> AsyncIterator[KubeClient]:
        """The administrator of a hollow cluster."""
        async with await KubeClient.from_file(self.folder / f"{cluster}.kubeconfig") as client:
            yield client

    async def fault(self, cluster: str, *faults: str) -> None:
        """Makes a hollow cluster ill; `none`: well again."""
        ended = await programs.run("hollow", "fault", f"--kubeconfig={self.folder / f'{cluster}.kubeconfig'}", *faults)
        assert ended.returncode == 0, ended.stderr

    def certificate(self, cluster: str) -> CertificateFacts:
        """The certificate that the agent has at present."""
        return parse_certificate((self.folder / f"{cluster}.credentials" / "tls.crt").read_bytes())

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
