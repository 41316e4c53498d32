"""What one copy of an agent asks of the world, with a gate in between: shut, the copy stands still in whatever it was doing.

As with a process that is stopped, what was asked before arrives late, and what is answered is read late.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from random import Random

from machinery.conditions import Condition
from machinery.identity import AddOnName, HubId
from spoke.domain.hubs import ListedHub
from spoke.domain.news import News
from spoke.domain.report import ClusterReport
from spoke.ports import ClientIdentity, Desired, Drain, Greeting, HubSession, Secrets, SecretSnapshot
from tests.fakes.hub import MemoryHub, MemoryHubClient


class Gate:
    """Everything passes with a delay of up to `lag` seconds, and nothing while it is shut."""

    def __init__(self, random: Random, lag: float = 0.05) -> None:
        self._random = random
        self._lag = lag
        self._open = asyncio.Event()
        self._open.set()

    def shut(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    async def passed(self) -> None:
        await asyncio.sleep(self._random.uniform(0, self._lag))
        await self._open.wait()


class LaggingSecrets(Secrets):
    """Secrets behind a gate, on the way there and on the way back."""

    def __init__(self, inner: Secrets, gate: Gate) -> None:
        self._inner = inner
        self._gate = gate

    async def read(self, name: str) -> SecretSnapshot:
        await self._gate.passed()
        found = await self._inner.read(name)
        await self._gate.passed()
        return found

    async def write(self, name: str, contents: Mapping[str, bytes], version: str | None) -> SecretSnapshot:
        await self._gate.passed()
        written = await self._inner.write(name, contents, version)
        await self._gate.passed()
        return written

    async def delete(self, name: str) -> None:
        await self._gate.passed()
        await self._inner.delete(name)

    def changes(self, name: str) -> AsyncIterator[SecretSnapshot]:
        return self._inner.changes(name)


class LaggingClient(MemoryHubClient):
    """A hub in memory behind a gate: its sessions, that is, which are all that writes there."""

    def __init__(self, hub: MemoryHub, identity: ClientIdentity, gate: Gate) -> None:
        super().__init__(hub, identity)
        self._gate = gate

    @asynccontextmanager
    async def session(self, greeting: Greeting) -> AsyncIterator[HubSession]:
        await self._gate.passed()
        async with super().session(greeting) as session:
            await self._gate.passed()
            yield Lagging(session, self._gate)


class Lagging(HubSession):
    """A session behind a gate."""

    def __init__(self, session: HubSession, gate: Gate) -> None:
        self._session = session
        self._gate = gate

    @property
    def beat_interval(self) -> timedelta:
        return self._session.beat_interval

    @property
    def hub_time_offset(self) -> timedelta:
        return self._session.hub_time_offset

    async def beat(self, *, available: bool | None) -> None:
        await self._gate.passed()
        await self._session.beat(available=available)

    async def report(self, report: ClusterReport) -> int:
        await self._gate.passed()
        return await self._session.report(report)

    async def report_addon(self, addon: AddOnName, conditions: Sequence[Condition], *, driver: str = "") -> int:
        await self._gate.passed()
        return await self._session.report_addon(addon, conditions, driver=driver)

    async def tell(self, news: News) -> None:
        await self._session.tell(news)

    def desired(self) -> AsyncGenerator[Desired, None]:
        return self._session.desired()

    async def ended(self) -> Exception:
        ended = await self._session.ended()
        await self._gate.passed()
        return ended

    async def drained(self) -> Drain:
        return await self._session.drained()

    async def tell_hubs(self, hubs: Sequence[ListedHub]) -> None:
        await self._session.tell_hubs(hubs)

    async def farewell(self, hub_id: HubId, epoch: int) -> None:
        await self._session.farewell(hub_id, epoch)
