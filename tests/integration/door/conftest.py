"""A store on SQLite, the door's storage over it, and the whole door on a real port with real certificates."""

import asyncio
import os
import socket
import sys
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from hub.access import AccessLimits, Capacity, Peers
from hub.apiserver import verbosity
from hub.apiserver.auditing import Auditing
from hub.apiserver.clientca import ClientAuthorityFile
from hub.apiserver.credentials import HubAddress
from hub.apiserver.door import Door, build_door
from hub.apiserver.entrance import WayIn
from hub.apiserver.feed import ChangeFeed
from hub.apiserver.lists import RevocationLists
from hub.apiserver.login import LoginSettings
from hub.apiserver.storage import ServiceStorage
from hub.audit import Auditor, Policy, default_policy
from hub.audit.filesink import FileSink
from hub.audit.storesink import StoreSink
from hub.audit.trail import Trail
from hub.domain.certificate import Holder, IssuedCertificate, Lifetimes, Profile, Purpose
from hub.domain.request import CLUSTER_LABEL, SIGNER, USAGES, Requester
from hub.issuer import LocalIssuer, ServingNames
from hub.ports import Issuer, Transaction
from hub.services import certificates, clusters, namespaces, operators, requests
from hub.services.credentials import Terms, create_token
from hub.store import SqlStore
from machinery import kubeconfig, pki
from machinery.apiserver.draining import Draining
from machinery.apiserver.filters import Filters
from machinery.apiserver.limiting import Limiting
from machinery.apiserver.limits import REQUEST_LIMIT
from machinery.apiserver.serving import serve
from machinery.clock import SystemClock
from machinery.identity import AgentId, ClusterName, HubId, SerialNumber, agent_subject, bootstrap_user
from machinery.lifecycle.verbosity import Verbosity
from machinery.metrics import Registry
from machinery.product import GROUP_SUFFIX
from machinery.tasks import GuardedTasks
from machinery.tls import Serving
from tests.fakes.databases import SEAL, migrated

LIFETIMES = Lifetimes()
HUB_ID = HubId("3f9f6a3e-58a6-4b6c-9a0e-1f5c3c2b7d11")
ROOT = Path(__file__).parents[3]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{migrated(tmp_path / 'hub.db')}"


@pytest.fixture
async def store(url: str) -> AsyncIterator[SqlStore]:
    opened = SqlStore(url, SEAL)
    await opened.open()
    await opened.run(namespaces.ensure_standing)
    yield opened
    await opened.close()


@pytest.fixture
async def feed(store: SqlStore) -> AsyncIterator[ChangeFeed]:
    following = ChangeFeed(store, queue=4)
    task = asyncio.create_task(following.run(), name="feed")
    yield following
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


@pytest.fixture
def storage(store: SqlStore, feed: ChangeFeed) -> ServiceStorage:
    return ServiceStorage(store, feed, GROUP_SUFFIX)


@dataclass(frozen=True)
class Ended:
    """What a program said and how it ended."""

    code: int
    out: str
    err: str


@dataclass
class HubUnderTest:
    """A hub's HTTPS door over a data directory; `stop` and `start` keep port and files."""

    folder: Path
    advertised: str = "127.0.0.1"
    port: int = 0
    policy: Policy | None = None
    capacity: Capacity | None = None
    audit_log: Path | None = None
    replica: str = "here"
    database: str | None = None
    """None: SQLite in the folder."""
    store: SqlStore = field(init=False)
    issuer: LocalIssuer = field(init=False)
    door: Door = field(init=False)
    auditor: Auditor = field(init=False)
    limits: AccessLimits = field(init=False)
    serving: Serving = field(init=False)
    draining: Draining = field(init=False)
    client_cas: tuple[Path, tuple[str, ...]] | None = None
    make_ways_in: Callable[[Serving], tuple[WayIn, ...]] | None = None
    ways_in: tuple[WayIn, ...] = ()
    group_suffix: str = GROUP_SUFFIX
    lease: timedelta = timedelta(seconds=60)
    login: LoginSettings | None = None
    metrics: Registry = field(default_factory=Registry)
    join_labels: tuple[str, ...] = ()
    verbosity: Verbosity = field(default_factory=lambda: Verbosity("info", lambda _level: None))
    _running: AsyncExitStack | None = None

    async def start(self) -> None:
        async with AsyncExitStack() as stack:
            now, clock = datetime.now(UTC), SystemClock()
            url = self.database or f"sqlite:///{migrated(self.folder / 'hub.db')}"
            self.store = SqlStore(url, SEAL, group_suffix=self.group_suffix)
            stack.push_async_callback(self.store.close)
            await self.store.open()
            await self.store.run(namespaces.ensure_standing)
            self.issuer = LocalIssuer.open(self.folder, LIFETIMES, now)
            names = ServingNames(("localhost", "hub.example.org"), ("127.0.0.1",))
            self.serving = serving = Serving(self.issuer.serving(self.folder, names, LIFETIMES, now))
            peers = Peers(self.store, clock)
            if self.client_cas is not None:
                path, groups = self.client_cas
                self.ways_in = (ClientAuthorityFile(path, groups, serving, clock),)
            if self.make_ways_in is not None:
                self.ways_in = self.make_ways_in(serving)
            sinks = [StoreSink(self.store, self.replica), *([FileSink(str(self.audit_log))] if self.audit_log else [])]
            trails = [Trail(sink, clock, window=timedelta(milliseconds=20)) for sink in sinks]
            self.auditor = Auditor(self.policy or default_policy(GROUP_SUFFIX), trails, clock)
            await self.auditor.open()
            self.limits, self.draining = AccessLimits(clock, self.capacity), Draining()
            address = HubAddress(HUB_ID, f"https://{self.advertised}:6443", f"{self.advertised}:8443")
            self.door = build_door(
                self.store,
                self.issuer,
                peers.identify,
                address,
                clock=clock,
                revocations=peers.listen,
                group_suffix=self.group_suffix,
                default_lease_duration=self.lease,
                filters=Filters(
                    gate=(self.draining.gate,),
                    in_flight=(RevocationLists(self.store, self.issuer, clock),),
                    audit=(Auditing(self.auditor),),
                    limits=(Limiting(self.limits.place, self.limits.rates, clock, REQUEST_LIMIT, self.limits.watches),),
                ),
                ways_in=self.ways_in,
                login=self.login,
                join_labels=self.join_labels,
                metrics=self.metrics.scrape,
                pages={verbosity.PATH: verbosity.LogLevel(self.store, self.verbosity, self.replica)},
            )
            await self.door.prepare()
            tasks = await stack.enter_async_context(GuardedTasks("hub"))
            tasks.start("door", self.door.run())
            tasks.start("revocations", peers.run())
            tasks.start("audit", self.auditor.run())
            listening = await serve(self.door.application(), "127.0.0.1", self.port, serving.context)
            stack.push_async_callback(listening.close)
            self.port = listening.port
            self._running = stack.pop_all()

    async def stop(self) -> None:
        if self._running is not None:
            running, self._running = self._running, None
            await running.aclose()

    async def restart(self) -> None:
        await self.stop()
        with kept_free(self.port):
            await self.start()

    @property
    def server(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def kubeconfig(self, name: str, issued: IssuedCertificate, key: bytes, **entry: Any) -> Path:
        """A kubeconfig file for a certificate."""
        fields = {"name": "muster", "server": self.server, "certificate_authority": self.issuer.trust_bundle, **entry}
        content = kubeconfig.write_kubeconfig(
            kubeconfig.ClusterEntry(**fields), kubeconfig.Credential(issued.chain, key), user=name
        )
        path = self.folder / f"{name}.kubeconfig"
        path.write_bytes(content)
        return path

    def token_kubeconfig(self, name: str, token: str) -> Path:
        entry = kubeconfig.ClusterEntry("muster", self.server, self.issuer.trust_bundle)
        path = self.folder / f"{name}-token.kubeconfig"
        path.write_bytes(kubeconfig.write_token_kubeconfig(entry, token, user=name))
        return path

    async def admin(self) -> Path:
        path = self.folder / "admin.kubeconfig"
        if path.exists():
            return path
        key = pki.generate_key()
        issued = await self.store.run(operators.admit, "admin", pki.public_key_of(key), self.issuer, LIFETIMES)
        return self.kubeconfig("admin", issued, key)

    async def agent(self, cluster: str, *, expired_since: timedelta | None = None) -> Path:
        """The kubeconfig of an agent of `cluster`."""
        key = pki.generate_key()
        left = LIFETIMES.agent if expired_since is None else -expired_since
        issued = await self.store.run(_sign_agent, self.issuer, ClusterName(cluster), pki.public_key_of(key), left)
        return self.kubeconfig(f"agent-{cluster}", issued, key)

    async def join(self, name: str, **labels: str) -> None:
        """A ManagedCluster, as an operator enters it."""
        document = {"metadata": {"name": name, "labels": labels}, "spec": {"hubAcceptsClient": False}}
        await self.store.run(clusters.put, document, None, "test")

    async def request(self, cluster: str, name: str) -> None:
        """A certificate request that waits, as the door for agents stores it."""
        submission = {
            "apiVersion": "certificates.k8s.io/v1",
            "kind": "CertificateSigningRequest",
            "metadata": {"name": name, "labels": {CLUSTER_LABEL: cluster}},
            "spec": {
                "request": b64encode(_request(cluster)).decode(),
                "signerName": SIGNER,
                "usages": list(USAGES),
            },
        }
        terms = Terms(ClusterName(cluster), None, LIFETIMES.bootstrap)
        credential, _token = await self.store.run(create_token, terms, "test")
        await self.store.run(requests.put, submission, None, Requester(bootstrap_user(credential.id)))

    async def revoke(self, path: Path) -> None:
        """Revokes the certificate in a kubeconfig."""
        serial = pki.parse_certificate(kubeconfig.read_kubeconfig(path).require_credential().chain).serial
        await self.store.run(lambda tx: tx.certificates.revoke([SerialNumber(serial)], tx.now, "Test"))

    async def hubctl(self, *arguments: str, path: Path | None = None, **environment: str) -> Ended:
        """Runs hubctl as a process with the admin kubeconfig, or `path`."""
        chosen = path or await self.admin()
        return await run(sys.executable, "-m", "hub.cli", *arguments, HUBCTL_KUBECONFIG=str(chosen), **environment)

    async def kubectl(self, *arguments: str, path: Path | None = None) -> Ended:
        chosen = path or await self.admin()
        return await run("kubectl", f"--kubeconfig={chosen}", f"--cache-dir={self.folder / 'cache'}", *arguments)


@contextmanager
def kept_free(port: int) -> Iterator[None]:
    """A block in which nobody listens at a port but who asks for it by number: no other test is given it meanwhile."""
    with socket.socket() as holding:
        holding.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as a server has it that begins to listen there
        holding.bind(("127.0.0.1", port))
        yield


def _sign_agent(tx: Transaction, issuer: Issuer, cluster: ClusterName, public_key: bytes, left: timedelta) -> IssuedCertificate:
    agent, ends = AgentId("bcdfg"), tx.now + left
    begins = min(tx.now, ends) - LIFETIMES.backdate
    profile = Profile(Purpose.AGENT, agent_subject(cluster, agent), public_key, begins, ends)
    if ends <= tx.now:  # as one signed long ago: the hub itself signs none that has ended
        return issuer.issue(profile, SerialNumber(pki.random_serial()), tx.now)
    return certificates.sign(tx, issuer, profile, Holder(cluster=cluster, agent=agent))


def _request(cluster: str) -> bytes:
    return pki.build_request(agent_subject(ClusterName(cluster), AgentId("bcdfg")), pki.generate_key())


def environment(**more: str) -> Mapping[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return {**kept, "PYTHONPATH": str(ROOT), **more}


async def run(*command: str, **variables: str) -> Ended:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(**variables),
    )
    try:
        async with asyncio.timeout(30):
            out, err = await process.communicate()
    except BaseException:
        process.kill()
        await process.wait()
        raise
    return Ended(process.returncode or 0, out.decode(), err.decode())


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[HubUnderTest]:
    running = HubUnderTest(tmp_path)
    await running.start()
    yield running
    await running.stop()
