"""The chronicle's news become Events."""

from collections.abc import Sequence

import pytest
import structlog

from hub.controllers.recorder import AT_MOST, TOGETHER, Recorder
from hub.domain.change import EVENTS, Query
from hub.domain.event import Told
from hub.ports import Transaction
from hub.services import events
from machinery.errors import InvalidError, UnavailableError
from tests.unit.hub.controllers.conftest import Hub

EAST = {"kind": "ManagedCluster", "metadata": {"name": "east", "uid": "u-1"}}


def news(number: int) -> Told:
    return Told("east", EAST, f"Reason{number}", "m")


def reasons(hub: Hub) -> set[str]:
    return {each.document["reason"] for each in hub.store.transact(lambda tx: tx.objects.find(EVENTS, Query())).items}


async def test_news_go_together_and_the_rest_at_once_after(hub: Hub) -> None:
    subject = Recorder(hub.store)
    for number in range(AT_MOST + 1):
        subject.wants(news(number))
    assert await subject.reconcile(TOGETHER) is not None
    assert len(reasons(hub)) == AT_MOST
    assert await subject.reconcile(TOGETHER) is None
    assert len(reasons(hub)) == AT_MOST + 1


async def test_news_that_wait_hold_no_whole_objects(hub: Hub) -> None:
    subject = Recorder(hub.store)
    large = {**EAST, "apiVersion": "v1", "status": {"much": ["x"] * 100}}
    subject.wants(Told("east", large, "Reason1", "m"))
    assert "status" not in subject.waiting[0].about
    await subject.reconcile(TOGETHER)
    (event,) = hub.store.transact(lambda tx: tx.objects.find(EVENTS, Query())).items
    assert event.document["involvedObject"] == {"apiVersion": "v1", "kind": "ManagedCluster", "name": "east", "uid": "u-1"}


async def test_news_wait_for_a_database_that_is_away(hub: Hub) -> None:
    subject = Recorder(hub.store)
    subject.wants(news(1))
    hub.store.failure = UnavailableError("away")
    with pytest.raises(UnavailableError):
        await subject.reconcile(TOGETHER)
    hub.store.failure = None
    subject.wants(news(2))
    await subject.reconcile(TOGETHER)
    assert reasons(hub) == {"Reason1", "Reason2"}


async def test_the_oldest_news_are_lost_first_and_memory_stays_bounded(hub: Hub) -> None:
    subject = Recorder(hub.store, kept=100)
    for number in range(102):
        subject.wants(news(number))
    while await subject.reconcile(TOGETHER) is not None:
        pass
    assert len(reasons(hub)) == 100
    assert not {"Reason0", "Reason1"} & reasons(hub)


async def test_one_that_cannot_be_recorded_costs_no_other(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    right = events.tell

    def wrong(tx: Transaction, told: Sequence[Told], actor: str) -> None:
        if any(each.reason == "Reason3" for each in told):
            raise InvalidError("it breaks a rule")
        right(tx, told, actor)

    monkeypatch.setattr(events, "tell", wrong)
    subject = Recorder(hub.store)
    for number in range(AT_MOST + 5):
        subject.wants(news(number))
    with structlog.testing.capture_logs() as lines:
        steps = 1
        while await subject.reconcile(TOGETHER) is not None:
            steps += 1
    assert len(reasons(hub)) == AT_MOST + 4
    assert steps == 1 + AT_MOST + 1, "those of the portion alone, and the rest together again"
    assert [(line["event"], line["reason"]) for line in lines] == [("an event cannot be recorded", "Reason3")]
