"""Cost of the HTTPS door with many clusters: lists, selectors, pages, memory, and a change that many watchers get.

    python -m bench door [--clusters 5000] [--watchers 1000] [--database postgresql://...]

It uses a real `hub serve` with a database that was filled before with ManagedClusters of 3.3 kB, and one client with one TLS
connection without gzip. Processor time is user and system time of the hub. Each watcher has its own connection. A change counts
as received when its encrypted bytes arrive, so that the time does not include the work of a thousand clients in one process.
"""

import asyncio
import json
import os
import selectors
import socket
import ssl
import time
from base64 import b64decode
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from http.client import HTTPSConnection
from pathlib import Path
from typing import Annotated, Any

import yaml

from bench.stage import CLUSTERS, Stage, cpu_seconds, memory_mib, staged
from hub.api.meta.change import MANAGED_CLUSTERS
from hub.ports import Transaction
from hub.store import SqlStore
from machinery.meta.objects import Key

REGIONS = 60
BYTES = 3_300
BATCH = 100
CALM = 0.1
"""The hub counts as idle if it uses fewer seconds of processor time than this within two seconds."""
Database = Annotated[str, "An empty PostgreSQL database; without it SQLite."]


def document(number: int) -> dict[str, Any]:
    """Return a ManagedCluster with about BYTES bytes, as agents and operators write it."""
    name = f"cluster-{number:05}"
    conditions = [
        {
            "type": kind,
            "status": "True",
            "reason": reason,
            "message": f"{reason} as observed by the hub or told by the agent of {name}",
            "lastTransitionTime": "2026-11-21T10:00:00Z",
        }
        for kind, reason in (
            ("HubAcceptedManagedCluster", "HubClusterAdminAccepted"),
            ("ManagedClusterJoined", "ManagedClusterJoined"),
            ("ManagedClusterConditionAvailable", "ManagedClusterAvailable"),
        )
    ]
    made = {
        "apiVersion": "cluster.open-cluster-management.io/v1",
        "kind": "ManagedCluster",
        "metadata": {
            "name": name,
            "uid": f"00000000-0000-4000-8000-{number:012}",
            "creationTimestamp": "2026-11-21T10:00:00Z",
            "generation": 1,
            "labels": {"region": f"region-{number % REGIONS:02}", "cloud": "bench", "vendor": "Kubernetes"},
        },
        "spec": {"hubAcceptsClient": True, "leaseDurationSeconds": 60},
        "status": {
            "conditions": conditions,
            "capacity": {"cpu": "96", "memory": "395908Ki", "nodes": "12", "pods": "1320"},
            "allocatable": {"cpu": "95", "memory": "393860Ki", "nodes": "12", "pods": "1320"},
            "version": {"kubernetes": "v1.34.2"},
            "clusterClaims": [],
        },
    }
    claims: list[dict[str, str]] = made["status"]["clusterClaims"]  # type: ignore[index]
    while len(json.dumps(made, separators=(",", ":"))) < BYTES - 80:
        claims.append({"name": f"claim-{len(claims):02}.example.com", "value": f"the value of a claim of {name}"})
    return made


def put_new(tx: Transaction, documents: Sequence[dict[str, Any]]) -> None:
    for made in documents:
        if tx.objects.get(MANAGED_CLUSTERS, Key("", made["metadata"]["name"])) is None:
            tx.objects.put(MANAGED_CLUSTERS, made, None, "bench")


async def fill(
    url: str, documents: Sequence[dict[str, Any]], *writes: Callable[[Transaction, Sequence[dict[str, Any]]], None]
) -> None:
    store = SqlStore(url)
    await store.open()
    for first in range(0, len(documents), BATCH):
        for write in writes:
            await store.run(write, documents[first : first + BATCH])
    await store.close()


class Client:
    def __init__(self, kubeconfig: Path, port: int) -> None:
        user = yaml.safe_load(kubeconfig.read_text())["users"][0]["user"]
        file = kubeconfig.parent / "bench.pem"
        file.write_bytes(b64decode(user["client-certificate-data"]) + b64decode(user["client-key-data"]))
        self.context = ssl.create_default_context()
        self.context.check_hostname, self.context.verify_mode = False, ssl.CERT_NONE
        self.context.load_cert_chain(file)
        self.port = port
        self._connection = HTTPSConnection("127.0.0.1", port, context=self.context, timeout=60)
        self._connection.connect()

    def get(self, path: str) -> bytes:
        self._connection.request("GET", path, headers={"Accept": "application/json"})
        answer = self._connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{path}: {answer.status} {body[:300]!r}")
        return body

    def label(self, cluster: str, value: str) -> None:
        patch = json.dumps({"metadata": {"labels": {"bench": value}}})
        headers = {"Content-Type": "application/merge-patch+json"}
        self._connection.request("PATCH", f"{CLUSTERS}/{cluster}", patch, headers)
        answer = self._connection.getresponse()
        if answer.read() and answer.status != 200:
            raise RuntimeError(f"patch: {answer.status}")

    def watch(self, revision: str) -> ssl.SSLSocket:
        """Open a watch. Return its connection after the response headers have arrived."""
        opened = self.context.wrap_socket(socket.create_connection(("127.0.0.1", self.port)))
        opened.sendall(f"GET {CLUSTERS}?watch=1&resourceVersion={revision} HTTP/1.1\r\nHost: bench\r\n\r\n".encode())
        head = b""
        while b"\r\n\r\n" not in head:
            head += opened.recv(4096)
        if b" 200 " not in head:
            raise RuntimeError(f"watch: {head!r}")
        opened.setblocking(False)  # noqa: FBT003 - takes no keyword
        return opened


def repeated(hub: int, rounds: int, client: Client, path: str) -> dict[str, float]:
    """Repeat a request. Return its wall time (p50, p99, worst) and the hub's mean processor time, in milliseconds."""
    for _ in range(3):
        client.get(path)
    walls, cpu = [], cpu_seconds(hub)
    for _ in range(rounds):
        began = time.perf_counter()
        size = len(client.get(path))
        walls.append(time.perf_counter() - began)
    spent = (cpu_seconds(hub) - cpu) / rounds
    return {**spread(walls), "hub_cpu_ms": round(spent * 1e3, 1), "kb": size // 1000}


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """Return percentiles in milliseconds."""
    ordered = sorted(seconds)
    points = {"p50_ms": ordered[len(ordered) // 2], "p99_ms": ordered[int(len(ordered) * 0.99) - 1], "worst_ms": ordered[-1]}
    return {name: round(point * 1e3, 1) for name, point in points.items()}


def fan_out(hub: int, client: Client, watchers: int, changes: int) -> dict[str, float]:
    """Measure the time from the start of a PATCH to the arrival of its bytes at each watcher."""
    revision = json.loads(client.get(f"{CLUSTERS}?limit=1"))["metadata"]["resourceVersion"]
    streams = [client.watch(revision) for _ in range(watchers)]
    ready = selectors.DefaultSelector()
    for stream in streams:
        ready.register(stream, selectors.EVENT_READ, stream)
    took: list[float] = []
    time.sleep(1)
    cpu = cpu_seconds(hub)
    for change in range(changes):
        waiting = set(streams)
        began = time.perf_counter()
        client.label("cluster-00000", f"v{time.time_ns()}-{change}")
        while waiting:
            for key, _ in ready.select(10):
                stream = key.data
                now = time.perf_counter()
                socket.socket.recv(stream, 1 << 16)
                if stream in waiting:
                    waiting.discard(stream)
                    took.append(now - began)
        time.sleep(0.2)
    spent = cpu_seconds(hub) - cpu
    for stream in streams:
        stream.close()
    return {**spread(took), "hub_cpu_ms": round(spent / changes * 1e3, 1)}


def settle(hub: int) -> None:
    """Wait until the hub is idle, at most two minutes. After its start it examines all clusters."""
    for _ in range(60):
        before = cpu_seconds(hub)
        time.sleep(2)
        if cpu_seconds(hub) - before < CALM:
            return


def _all_requests(stage: Stage, hub: int, watchers: int, rounds: int) -> dict[str, Any]:
    settle(hub)
    found: dict[str, Any] = {"hub_rss_mib_at_rest": round(memory_mib(hub)[1], 1)}
    client = Client(stage.admin, stage.https_port)
    found["page"] = repeated(hub, rounds * 5, client, f"{CLUSTERS}?limit=100")
    found["selector"] = repeated(hub, rounds * 5, client, f"{CLUSTERS}?labelSelector=region%3Dregion-07")
    found["list"] = repeated(hub, rounds, client, CLUSTERS)
    time.sleep(1)
    found["hub_rss_mib_after_lists"] = round(memory_mib(hub)[1], 1)
    found["watch"] = fan_out(hub, client, watchers, rounds)
    return found


@asynccontextmanager
async def filled(database: str, fill_in: Callable[[str], Awaitable[None]], *flags: str) -> AsyncIterator[tuple[Stage, int]]:
    """Yield a stage and the pid of its hub. `fill_in` gets the URL of the database and fills it before the hub starts.

    `database`: a URL; empty: SQLite.
    """
    async with staged() as stage:
        folder = stage.folder / "hub"
        folder.mkdir(mode=0o700)
        await fill_in(database or f"sqlite:///{folder / 'hub.db'}")
        if database:
            os.environ["HUB_DATABASE_URL"] = database  # an environment variable, because the URL may contain a password
        yield stage, (await stage.start_hub(*flags)).pid


async def door(clusters: int = 5_000, watchers: int = 1_000, rounds: int = 20, database: Database = "") -> dict[str, Any]:
    """Lists, pages and watches over the HTTPS door."""
    documents = [document(number) for number in range(clusters)]
    async with filled(database, lambda url: fill(url, documents, put_new)) as (stage, hub):
        return await asyncio.to_thread(_all_requests, stage, hub, watchers, rounds)
