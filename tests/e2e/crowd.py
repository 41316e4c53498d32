"""Many whole agents in one process: the program's own loop and controllers, over gRPC, with clusters in memory behind them."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from random import Random

from machinery.clock import SystemClock
from machinery.conditions import Condition
from machinery.identity import AddOnName, HubId
from machinery.kubeconfig import Credential, read_kubeconfig, write_kubeconfig
from spoke.agent import SpokeAgent
from spoke.bootstraps import BootstrapFile, Bootstraps
from spoke.domain.hubs import ListedHub
from spoke.domain.news import News
from spoke.domain.report import ClusterReport
from spoke.hubclient.client import GrpcHubClient
from spoke.hubclient.recovering import RecoveringHubClient
from spoke.options import Options, Pauses, World
from spoke.ports import ClientIdentity, Desired, Drain, Greeting, HubAddress, HubLostError, HubSession, Loss
from tests.e2e.joining import entrance
from tests.e2e.processes import until
from tests.fakes.cluster import MemoryCluster
from tests.fakes.credentials import MemorySecrets
from tests.fakes.timetable import LoopTimetable


@dataclass
class Tally:
    """What became of one agent's beats. Its sessions are numbered as they begin to open."""

    begun: int = 0
    opened: int = 0
    acknowledged: int = 0
    carried: int = 0
    """The newest session that has carried a beat."""
    heard: float = 0.0
    """When the newest was acknowledged, by the event loop's clock."""
    widest: float = 0.0
    """The longest time between two that were acknowledged one after the other, in seconds; set to 0 to begin anew."""
    missed: int = 0
    why: Counter[str] = field(default_factory=Counter)
    hoped: list[int] = field(default_factory=list)
    """For each beat that a session lost while another was about to take over: that other one's number."""
    leaving: bool = False
    """It is being stopped: what it does not hear any more is not lost."""

    @property
    def lost(self) -> int:
        """Beats that were sent, of sessions that ended before they were acknowledged, and whose successor was not there.

        Of an older session nothing is expected once its successor has carried a beat.
        """
        return self.missed + len(self.hoped)

    def hears(self, session: int) -> None:
        self.acknowledged += 1
        self.carried = max(self.carried, session)
        self.hoped = [other for other in self.hoped if other > session]
        now = asyncio.get_running_loop().time()
        self.widest = max(self.widest, now - self.heard if self.heard else 0.0)
        self.heard = now

    def loses(self, session: int, error: HubLostError) -> None:
        if self.leaving or error.loss is Loss.SUPERSEDED or self.carried > session:
            return
        self.why[f"{error.loss.name}: {error.message}"] += 1
        if self.begun > session:
            self.hoped.append(self.begun)
        else:
            self.missed += 1


class Counted(HubSession):
    """A session whose beats are counted."""

    def __init__(self, session: HubSession, tally: Tally, number: int) -> None:
        self._session = session
        self._tally = tally
        self._number = number

    @property
    def beat_interval(self) -> timedelta:
        return self._session.beat_interval

    @property
    def hub_time_offset(self) -> timedelta:
        return self._session.hub_time_offset

    async def beat(self, *, available: bool | None) -> None:
        try:
            await self._session.beat(available=available)
        except HubLostError as error:
            self._tally.loses(self._number, error)
            raise
        self._tally.hears(self._number)

    async def report(self, report: ClusterReport) -> int:
        return await self._session.report(report)

    async def report_addon(self, addon: AddOnName, conditions: Sequence[Condition], *, driver: str = "") -> int:
        return await self._session.report_addon(addon, conditions, driver=driver)

    async def tell(self, news: News) -> None:
        await self._session.tell(news)

    def desired(self) -> AsyncGenerator[Desired, None]:
        return self._session.desired()

    async def ended(self) -> Exception:
        return await self._session.ended()

    async def drained(self) -> Drain:
        return await self._session.drained()

    async def trust_bundle(self) -> bytes:
        return await self._session.trust_bundle()

    async def trust_installed(self, trusted: Sequence[str]) -> None:
        await self._session.trust_installed(trusted)

    async def tell_hubs(self, hubs: Sequence[ListedHub]) -> None:
        await self._session.tell_hubs(hubs)

    async def farewell(self, hub_id: HubId, epoch: int) -> None:
        await self._session.farewell(hub_id, epoch)


class CountedClient(GrpcHubClient):
    """The program's client, with counted sessions."""

    def __init__(self, address: HubAddress, identity: ClientIdentity, tally: Tally) -> None:
        super().__init__(address, identity, SystemClock())
        self._tally = tally

    @asynccontextmanager
    async def session(self, greeting: Greeting) -> AsyncIterator[HubSession]:
        self._tally.begun += 1
        number = self._tally.begun
        async with super().session(greeting) as session:
            self._tally.opened += 1
            yield Counted(session, self._tally, number)


@dataclass
class Crowd:
    """Agents called `<prefix>-<number>`, which join, beat and report until the block of `running` ends."""

    bootstraps: Sequence[Path]
    """One of each hub, in the order in which they are preferred."""
    count: int
    prefix: str = "edge"
    tallies: dict[str, Tally] = field(default_factory=dict)
    pauses: Pauses = field(default_factory=Pauses)
    """Between what they try again."""
    secrets: dict[str, MemorySecrets] = field(default_factory=dict)
    """What each of them keeps, also while it does not run."""

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
                self.tallies[f"{self.prefix}-{number}"].leaving = True
                task.cancel()
            await asyncio.wait(tasks)

    def _agent(self, number: int) -> SpokeAgent:
        name = f"{self.prefix}-{number}"
        tally = self.tallies[name] = Tally()
        cluster, secrets = MemoryCluster(uid=f"uid-of-{name}"), self.secrets.setdefault(name, MemorySecrets())
        world = World(
            bootstrap=Bootstraps([BootstrapFile(file) for file in self.bootstraps]),
            dial=lambda address, identity: CountedClient(address, identity, tally),
            spoke=cluster,
            management=cluster,
            secrets=secrets,
            addon_secrets=lambda _: secrets,
            directory=None,
            clock=SystemClock(),
            timetable=LoopTimetable(SystemClock()),
            random=Random(number),
            recover=lambda address, identity: RecoveringHubClient(address, identity, SystemClock()),
        )
        return SpokeAgent(Options(cluster_name=name, pauses=self.pauses), world)

    async def all_heard(self, since: float = 0.0, *, within: float) -> None:
        """Returns when a beat of every agent was acknowledged after `since`."""
        await self.every(lambda tally: tally.heard > since, what="all agents beat", within=within)

    async def all_heard_of(self, numbers: Iterable[int], *, within: float) -> None:
        """Returns when a beat of each of these was acknowledged from now on."""
        since, names = asyncio.get_running_loop().time(), [f"{self.prefix}-{number}" for number in numbers]

        async def all_are() -> bool:
            return all(self.tallies[name].heard > since for name in names)

        await until(all_are, what="these agents beat", within=within)

    async def every(self, holds: Callable[[Tally], bool], *, what: str, within: float) -> None:
        async def all_do() -> bool:
            return all(holds(tally) for tally in self.tallies.values())

        await until(all_do, what=what, within=within)

    @property
    def why(self) -> Counter[str]:
        """How often beats were lost, by what was said."""
        return sum((tally.why for tally in self.tallies.values()), Counter())

    @property
    def lost(self) -> int:
        return sum(tally.lost for tally in self.tallies.values())


async def crowd_of(admin: Path, count: int, *others: Path) -> Crowd:
    """Agents with one bootstrap credential for all of them, at the hub of this administrator and at those of `others`."""
    return Crowd([await _crowd_bootstrap(each, count) for each in (admin, *others)], count)


async def _crowd_bootstrap(admin: Path, count: int) -> Path:
    let_in = await entrance(admin, count)
    file = admin.parent / "crowd.bootstrap"
    credential = Credential(let_in.identity.certificate, let_in.identity.key)
    file.write_bytes(write_kubeconfig(read_kubeconfig(admin).cluster, credential, user="bootstrap"))
    return file
