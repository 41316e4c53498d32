"""A clock that is wrong is reported, by the hub's stamp, and stops nothing."""

from datetime import timedelta

import pytest

from hub.domain import clocksync
from hub.domain import cluster as rules
from hub.domain.cluster import StatusReport
from hub.ports import Transaction
from hub.rpc.clocks import SAME, Clocks
from hub.services import clocksync as service
from hub.services import clusters
from machinery import conditions
from machinery.errors import UnavailableError
from machinery.identity import ClusterName
from tests.fakes.memory_store import MemoryStore
from tests.fakes.registration import EDGE, Newcomer

MINUTE = timedelta(minutes=1)
GRACE = 5 * MINUTE
NONE = timedelta()


@pytest.fixture
def accepted(newcomer: Newcomer, store: MemoryStore) -> MemoryStore:
    newcomer.join(newcomer.bootstrap())
    newcomer.accept()
    return store


def shown(store: MemoryStore) -> tuple[str, str] | None:
    document = store.transact(clusters.find, EDGE).document
    found = conditions.find(document.get("status", {}).get("conditions", []), conditions.CLOCK_SYNCED)
    return (found.status, found.reason) if found else None


def note(store: MemoryStore, skew: timedelta, limit: timedelta = NONE) -> tuple[str, str] | None:
    store.transact(service.note, EDGE, skew, limit, "hub")
    return shown(store)


SYNCED, OUT = ("True", "ManagedClusterClockSynced"), ("False", "ManagedClusterClockOutOfSync")
MICRO = timedelta(microseconds=1)


@pytest.mark.parametrize(
    ("skew", "limit", "expected"),
    [
        (NONE, NONE, SYNCED),
        (GRACE - MICRO, NONE, SYNCED),
        (MICRO - GRACE, NONE, SYNCED),
        (GRACE, NONE, OUT),
        (-GRACE, NONE, OUT),
        (MINUTE, 2 * MINUTE, SYNCED),
        (2 * MINUTE, 2 * MINUTE, OUT),
    ],
)
def test_a_clock_is_wrong_from_the_limit_on_in_both_directions(
    accepted: MemoryStore, skew: timedelta, limit: timedelta, expected: tuple[str, str]
) -> None:
    assert note(accepted, skew, limit) == expected


@pytest.mark.parametrize(("value", "expected"), [("true", SYNCED), ("yes", OUT)])
def test_an_annotation_turns_the_check_off(accepted: MemoryStore, value: str, expected: tuple[str, str]) -> None:
    def annotate(tx: Transaction) -> None:
        stored = clusters.find(tx, EDGE)
        metadata = {**stored.document["metadata"], "annotations": {clocksync.SKIPPED: value}}
        clusters.put(tx, {**stored.document, "metadata": metadata}, stored, "ann")

    accepted.transact(annotate)
    assert note(accepted, 2 * GRACE) == expected


def test_what_is_no_news_is_not_written(accepted: MemoryStore) -> None:
    note(accepted, NONE)
    before = accepted.state.revision
    note(accepted, MINUTE)
    assert accepted.state.revision == before


def test_a_wrong_clock_does_not_freeze_the_status(accepted: MemoryStore) -> None:
    note(accepted, 2 * GRACE)
    accepted.transact(
        clusters.report_status, EDGE, StatusReport(conditions=(rules.AVAILABLE,), kubernetes_version="v1"), "agent"
    )
    document = accepted.transact(clusters.find, EDGE).document
    assert (document["status"]["version"]["kubernetes"], shown(accepted)) == ("v1", OUT)


def test_nothing_is_said_of_clusters_that_are_gone_or_not_accepted(store: MemoryStore, newcomer: Newcomer) -> None:
    store.transact(service.note, ClusterName("gone"), NONE, NONE, "hub")
    newcomer.join(newcomer.bootstrap())
    assert note(store, 2 * GRACE) is None


async def test_a_clock_that_goes_as_before_is_told_once_in_a_session_and_anew_in_the_next(accepted: MemoryStore) -> None:
    clocks = Clocks(accepted, NONE)
    clocks.told(EDGE, 2 * GRACE)
    await clocks.write()
    accepted.transact(clusters.set_condition, EDGE, clocksync.SYNCED, "test")
    clocks.told(EDGE, 2 * GRACE + SAME - MICRO, again=True)
    await clocks.write()
    assert shown(accepted) == SYNCED, "nothing was written"
    clocks.told(EDGE, 2 * GRACE)
    await clocks.write()
    assert shown(accepted) == OUT
    clocks.told(EDGE, NONE, again=True)
    await clocks.write()
    assert shown(accepted) == SYNCED


async def test_what_cannot_be_written_now_is_written_later(accepted: MemoryStore) -> None:
    clocks = Clocks(accepted, NONE)
    accepted.failure = UnavailableError("away")
    clocks.told(EDGE, 2 * GRACE)
    await clocks.write()
    accepted.failure = None
    assert shown(accepted) is None
    await clocks.write()
    assert shown(accepted) == OUT
