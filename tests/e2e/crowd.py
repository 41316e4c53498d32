"""Many agents in one process: reduced to the protocol (`Joiner`), or whole, with clusters in memory (`Crowd`)."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, cast

from machinery import pki
from machinery.client.kubeconfig import Credential, read_kubeconfig, write_kubeconfig
from machinery.client.rest import KubeClient
from machinery.errors import MusterError, TooManyRequestsError, UnavailableError
from machinery.identity import AgentId, CertificateSubject, ClusterName, agent_subject
from machinery.runtime.clock import SystemClock
from spoke.agent.loop import SpokeAgent
from spoke.bootstraps.listing import BootstrapFile, Bootstraps
from spoke.domain.names import AgentIdentity, AgentNames
from spoke.domain.next_step import SessionLoss
from spoke.options import AgentOptions, Pauses
from spoke.ports.hub import ClientIdentity, CSRState, HubAddress, HubLostError, HubSession, SessionHello
from spoke.transports.grpc.client import GrpcHubClient, RecoveringHubClient
from tests.e2e.processes import until_all
from tests.fakes.credentials import MemoryCluster, MemorySecrets
from tests.fakes.stage import world_of

CREDENTIALS = "/apis/hub.open-cluster-management.io/v1alpha1/bootstrapcredentials"
AGENT = AgentId("xk7pq")
PAUSE = 0.1
PASSING = {"Timeout", "InternalError"}


@dataclass(frozen=True, slots=True)
class Entrance:
    """A bootstrap credential for several cluster names, and the hub that it opens."""

    address: HubAddress
    identity: ClientIdentity


async def entrance(admin: Path, uses: int) -> Entrance:
    key = pki.generate_key()
    body = {
        "apiVersion": "hub.open-cluster-management.io/v1alpha1",
        "kind": "BootstrapCredential",
        "metadata": {"generateName": "bootstrap-"},
        "spec": {"request": pki.build_request(CertificateSubject("bootstrap"), key).decode(), "uses": uses},
    }
    async with await KubeClient.from_file(admin) as client:
        status = (await client.create(CREDENTIALS, body))["status"]
    address = HubAddress(status["grpcServer"], status["certificateAuthority"].encode())
    return Entrance(address, ClientIdentity(status["certificate"].encode(), key))


@dataclass
class Joiner:
    """One agent: it knows its key and its name before it asks, and asks until it has its certificate."""

    name: ClusterName
    entrance: Entrance
    key: bytes = field(default_factory=pki.generate_key)
    request: str = ""
    issued: CSRState | None = None

    @property
    def identity(self) -> ClientIdentity:
        assert self.issued is not None
        return ClientIdentity(self.issued.certificate, self.key)

    async def join(self) -> CSRState:
        """Returns with the certificate. Raises what the hub refuses for good."""
        request = pki.build_request(agent_subject(self.name, AGENT), self.key)
        while self.issued is None:
            client = GrpcHubClient(self.entrance.address, self.entrance.identity, SystemClock())
            try:
                await self._attempt(client, request)
            except MusterError as error:
                if not isinstance(error, TooManyRequestsError | UnavailableError) and error.reason not in PASSING:
                    raise
                await asyncio.sleep(error.retry_after.total_seconds() if error.retry_after else PAUSE)
            finally:
                await client.close()
        return self.issued

    async def _attempt(self, client: GrpcHubClient, request: bytes) -> None:
        uid = f"uid-of-{self.name}"
        await client.ensure_cluster(AgentIdentity(AgentNames(self.name, AGENT), uid), endpoints=(), annotations={})
        self.request = await client.submit_request(AgentIdentity(AgentNames(self.name, AGENT), uid), request, duration=None)
        async for state in client.follow_request(self.request):
            if state.state == "issued":
                self.issued = state
                return


@dataclass
class Tally:
    """What became of one agent's beats. Its sessions are numbered as they begin to open."""

    begun: int = 0
    opened: int = 0
    acknowledged: int = 0
    carried: int = 0  # the newest session that has carried a beat
    heard: float = 0.0  # when the newest was acknowledged, by the event loop's clock
    sent: float = 0.0  # when that one was sent
    widest: float = 0.0
    """The longest time from sending one to the acknowledgement of the next, in seconds: no hub saw a longer gap."""
    missed: int = 0
    why: Counter[str] = field(default_factory=Counter)
    hoped: list[int] = field(default_factory=list)
    """For each beat that a session lost while another was about to take over: that other one's number."""
    leaving: bool = False  # it is being stopped: what it does not hear any more is not lost

    @property
    def lost(self) -> int:
        """Beats that were sent, of sessions that ended before they were acknowledged, and whose successor was not there.

        Of an older session nothing is expected once its successor has carried a beat.
        """
        return self.missed + len(self.hoped)

    def hears(self, session: int, sent: float) -> None:
        self.acknowledged += 1
        self.carried = max(self.carried, session)
        self.hoped = [other for other in self.hoped if other > session]
        now = asyncio.get_running_loop().time()
        self.widest = max(self.widest, now - self.sent if self.sent else 0.0)
        self.heard, self.sent = now, sent

    def loses(self, session: int, error: HubLostError) -> None:
        if self.leaving or error.loss is SessionLoss.SUPERSEDED or self.carried > session:
            return
        self.why[f"{error.loss.name}: {error.message}"] += 1
        if self.begun > session:
            self.hoped.append(self.begun)
        else:
            self.missed += 1


class Counted:
    """A session whose beats are counted."""

    def __init__(self, session: HubSession, tally: Tally, number: int) -> None:
        self._session = session
        self._tally = tally
        self._number = number

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    async def beat(self, *, available: bool | None) -> None:
        sent = asyncio.get_running_loop().time()
        try:
            await self._session.beat(available=available)
        except HubLostError as error:
            self._tally.loses(self._number, error)
            raise
        self._tally.hears(self._number, sent)


class CountedClient(GrpcHubClient):
    """The program's client, with counted sessions."""

    def __init__(self, address: HubAddress, identity: ClientIdentity, tally: Tally) -> None:
        super().__init__(address, identity, SystemClock())
        self._tally = tally

    @asynccontextmanager
    async def session(self, greeting: SessionHello) -> AsyncIterator[HubSession]:
        self._tally.begun += 1
        number = self._tally.begun
        async with super().session(greeting) as session:
            self._tally.opened += 1
            yield cast("HubSession", Counted(session, self._tally, number))


@dataclass
class Crowd:
    """Agents called `<prefix>-<number>`, which join, beat and report until the block of `running` ends."""

    bootstraps: Sequence[Path]  # one of each hub, in the order in which they are preferred
    count: int
    prefix: str = "edge"
    use_counts: dict[str, Tally] = field(default_factory=dict)
    pauses: Pauses = field(default_factory=Pauses)  # between what they try again
    secrets: dict[str, MemorySecrets] = field(default_factory=dict)  # what each of them keeps, also while it does not run

    @asynccontextmanager
    async def running(self, numbers: Iterable[int] | None = None) -> AsyncIterator["Crowd"]:
        """All of them, or only these."""
        chosen = list(range(self.count) if numbers is None else numbers)
        tasks = [asyncio.create_task(self._agent(number).run()) for number in chosen]
        try:
            yield self
            failed = [task.exception() for task in tasks if task.done()]
            assert not failed, failed
        finally:
            for number, task in zip(chosen, tasks, strict=True):
                self.use_counts[f"{self.prefix}-{number}"].leaving = True
                task.cancel()
            await asyncio.wait(tasks)

    def _agent(self, number: int) -> SpokeAgent:
        name = f"{self.prefix}-{number}"
        tally = self.use_counts[name] = Tally()
        world = world_of(
            SystemClock(),
            self.secrets.setdefault(name, MemorySecrets()),
            bootstrap=Bootstraps([BootstrapFile(file) for file in self.bootstraps]),
            dial=lambda address, identity: (
                RecoveringHubClient(address, identity, SystemClock())
                if identity.recovers
                else CountedClient(address, identity, tally)
            ),
            managed_cluster=MemoryCluster(uid=f"uid-of-{name}"),
            random=Random(number),
        )
        return SpokeAgent(AgentOptions(cluster_name=name, pauses=self.pauses), world)

    async def all_heard(self, since: float = 0.0) -> None:
        """Returns when a beat of every agent was acknowledged after `since`."""
        await self.every(lambda tally: tally.heard > since, what="all agents beat")

    async def all_heard_of(self, numbers: Iterable[int]) -> None:
        """Returns when a beat of each of these was acknowledged from now on."""
        since, names = asyncio.get_running_loop().time(), [f"{self.prefix}-{number}" for number in numbers]
        await until_all(lambda: sum(self.use_counts[name].heard > since for name in names), len(names), what="they beat")

    async def every(self, holds: Callable[[Tally], bool], *, what: str) -> None:
        await until_all(lambda: sum(map(holds, self.use_counts.values())), len(self.use_counts), what=what)

    @property
    def why(self) -> Counter[str]:
        """How often beats were lost, by what was said."""
        return sum((tally.why for tally in self.use_counts.values()), Counter())

    @property
    def lost(self) -> int:
        return sum(tally.lost for tally in self.use_counts.values())


async def crowd_of(admin: Path, count: int, *others: Path) -> Crowd:
    """Agents with one bootstrap credential for all of them, at the hub of this administrator and at those of `others`."""
    files = []
    for each in (admin, *others):
        let_in, file = await entrance(each, count), each.parent / "crowd.bootstrap"
        credential = Credential(let_in.identity.certificate, let_in.identity.key)
        file.write_bytes(write_kubeconfig(read_kubeconfig(each).cluster, credential, user="bootstrap"))
        files.append(file)
    return Crowd(files, count)
