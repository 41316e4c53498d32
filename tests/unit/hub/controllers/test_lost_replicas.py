"""Which replicas are taken for dead: those that were silent while they could have spoken."""

from datetime import datetime, timedelta

import pytest

from hub.controllers.replicas import LostReplicas
from hub.domain.replica import LOST_AFTER, Replica
from hub.ports import Transaction
from hub.services import replicas
from hub.services.replicas import Opened
from machinery.clock import ManualClock
from machinery.identity import AgentId, ClusterName
from tests.fakes.inline_store import InlineStore

EDGE, FAR = ClusterName("edge"), ClusterName("far")
TICK = timedelta(milliseconds=1)


class World:
    """Two replicas, each with a session of an agent. `heard`: from when on the hub could write; None: it cannot."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = InlineStore(self.clock)
        self.heard: datetime | None = self.clock.now()
        self.controller = LostReplicas(self.store, since=self._since)
        for name, cluster in (("one", EDGE), ("two", FAR)):
            self.store.transact(replicas.begin, self.replica(name))
            session = Opened(cluster, AgentId("a1"), f"of {name}", "v1", name)
            self.store.transact(replicas.open_session, session)

    def _since(self, _tx: Transaction) -> datetime | None:
        return self.heard

    def replica(self, name: str) -> Replica:
        now = self.clock.now()
        return Replica(name, f"home of {name}", f"first {name}", "1", "grpc", "https", now, now)

    def beats(self, name: str) -> None:
        self.store.transact(replicas.beat, self.replica(name))

    async def sessions(self) -> set[str]:
        """Whose sessions stand after a look."""
        await self.controller.reconcile("")
        return set(self.store.transact(lambda tx: tx.agent_sessions.replicas()))


@pytest.fixture
def world() -> World:
    return World()


async def test_who_was_silent_while_others_spoke_is_dead(world: World) -> None:
    world.clock.advance(LOST_AFTER + TICK)
    world.beats("two")
    assert await world.sessions() == {"two"}


async def test_nobody_is_dead_who_could_not_speak_until_all_had_the_time_for_it(world: World) -> None:
    world.clock.advance(LOST_AFTER * 8)
    world.heard = None
    assert await world.sessions() == {"one", "two"}, "the database is away still"
    world.heard = world.clock.now()
    world.beats("two")  # the first of them whose connection came back
    assert await world.sessions() == {"one", "two"}
    world.clock.advance(LOST_AFTER)
    world.beats("two")
    assert await world.sessions() == {"one", "two"}
    world.clock.advance(TICK)
    assert await world.sessions() == {"two"}, "it is dead indeed"
