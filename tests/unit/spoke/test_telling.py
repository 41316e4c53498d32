"""Events that the agent tells at the hub, and what it keeps of its ManagedCluster."""

import asyncio
from contextlib import suppress
from dataclasses import replace

import pytest

from machinery.conditions import FALSE, TRUE, Condition
from machinery.errors import ForbiddenError
from machinery.identity import AgentId, ClusterName
from spoke.controllers.cluster_upkeep import KEY, ClusterUpkeep
from spoke.domain.news import NORMAL, WARNING, News, left_out, news_of
from spoke.domain.report import ClusterClaim
from spoke.domain.status import ClaimRules
from spoke.ports import HubLostError
from spoke.telling import AT_ONCE, WAITING, Telling
from tests.fakes.cluster import MemoryCluster
from tests.fakes.stage import Stage, until
from tests.fakes.virtual_time import in_virtual_time


class Listener:
    """A session as far as news go."""

    def __init__(self) -> None:
        self.told: list[News] = []
        self.refuse: Exception | None = None

    async def tell(self, news: News) -> None:
        if self.refuse:
            raise self.refuse
        self.told.append(news)


def test_a_condition_that_is_not_true_is_a_warning() -> None:
    assert news_of(Condition("X", FALSE, "Failed", "why")) == News("Failed", "why", WARNING)
    assert news_of(Condition("X", TRUE, "Done", ""), "logs") == News("Done", "", NORMAL, "logs")

    assert "--max-custom-cluster-claims" in left_out(3, 20).message


async def test_the_same_news_is_told_once_and_other_news_of_the_same_reason_again() -> None:
    session = Listener()
    telling = Telling(session)  # type: ignore[arg-type]
    for message in ("a", "a", "b", "b", "a"):
        telling.tell(News("R", message))
    running = asyncio.create_task(telling.run())
    await until(lambda: len(session.told) == 3)
    running.cancel()
    assert [each.message for each in session.told] == ["a", "b", "a"]


def test_news_without_end_are_told_slowly_and_the_oldest_give_way() -> None:
    async def many() -> tuple[list[str], list[str]]:
        session = Listener()
        telling = Telling(session)  # type: ignore[arg-type]
        for number in range(3 * WAITING):
            telling.tell(News(f"R{number}", ""))
        running = asyncio.create_task(telling.run())
        await asyncio.sleep(1)
        first = [each.reason for each in session.told]
        await asyncio.sleep(3600)
        running.cancel()
        return first, [each.reason for each in session.told]

    first, later = in_virtual_time(many())
    assert len(first) == AT_ONCE
    assert later == [f"R{number}" for number in range(2 * WAITING, 3 * WAITING)]


async def test_news_that_the_hub_refuses_are_lost_and_a_lost_session_ends_the_telling() -> None:
    session = Listener()
    telling = Telling(session)  # type: ignore[arg-type]
    session.refuse = ForbiddenError("no right to it")
    telling.tell(News("R", "a"))
    running = asyncio.create_task(telling.run())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not running.done()
    session.refuse = HubLostError("gone")
    telling.tell(News("R", "b"))
    with pytest.raises(HubLostError):
        await running


NOTES = {"agent.open-cluster-management.io/site": "b"}


async def test_left_out_claims_are_an_event_and_new_annotations_but_no_labels_reach_a_joined_cluster(stage: Stage) -> None:
    """OCM's agent tells annotations at the first join alone."""
    stage.cluster.set_claims([ClusterClaim(name, "x") for name in "abc"])
    stage.options = replace(stage.options, labels={"site": "b"}, claims=ClaimRules(max_custom=2))
    async with stage.at_work():
        await until(lambda: stage.hub.session.news)
    assert stage.hub.session.news == [left_out(1, 2)], "claims that are left out are an event at the hub"
    stage.options = replace(stage.options, annotations=NOTES, labels={"site": "c"})
    async with stage.at_work():
        (known,) = stage.hub.clusters.values()
        await until(lambda: known.annotations == NOTES)
        assert stage.hub.calls.count("ensure_cluster") == 2
    assert known.labels == {"site": "b"}


class Refusing:
    """A hub that does not let an agent keep its ManagedCluster."""

    def __init__(self) -> None:
        self.asked = 0

    async def ensure_cluster(self, *_: object, **__: object) -> None:
        self.asked += 1
        raise ForbiddenError("no right to it")


async def test_a_hub_that_does_not_let_an_agent_keep_its_cluster_is_asked_once() -> None:
    hub = Refusing()
    names = ClusterName("c1"), AgentId("bcdfg")
    upkeep = ClusterUpkeep(hub, MemoryCluster(), names, NOTES, ())  # type: ignore[arg-type]
    for _ in range(3):
        with suppress(ForbiddenError):
            await upkeep.reconcile(KEY)
    assert hub.asked == 1
