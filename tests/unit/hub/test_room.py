"""An agent whose cluster's object is larger than agents may make it: it goes on, and fills no more of it."""

from collections.abc import Callable
from typing import Any

import pytest

from hub.domain import cluster as rules
from hub.domain import document as doc
from hub.domain.cluster import Joining, StatusReport
from hub.domain.parting import Departure
from hub.ports import Transaction
from hub.services import clusters, owners, room
from machinery import conditions
from machinery.apiserver.limits import OBJECT_CEILING, OBJECT_LIMIT
from machinery.conditions import Condition
from machinery.errors import TooLargeError
from machinery.identity import HubId
from tests.fakes.memory_store import MemoryStore
from tests.fakes.registration import EDGE, Newcomer

AGENT = f"system:open-cluster-management:{EDGE}:agent"
ME, OTHER = HubId("hub-a"), HubId("hub-b")
WORKS = Condition("Works", conditions.TRUE, "Seen", "")
FAILS = Condition("Works", conditions.FALSE, "NotSeen", "x" * 100)


@pytest.fixture
def accepted(newcomer: Newcomer, store: MemoryStore) -> MemoryStore:
    newcomer.join(newcomer.bootstrap())
    newcomer.accept()
    store.transact(clusters.set_condition, EDGE, rules.ACCEPTED, "hub")
    store.transact(clusters.set_condition, EDGE, rules.AVAILABLE, "hub")
    return store


@pytest.fixture(params=[room.MOST + 1, OBJECT_LIMIT + 1])
def large(accepted: MemoryStore, request: pytest.FixtureRequest) -> MemoryStore:
    fill(accepted, request.param)
    return accepted


def report(store: MemoryStore, length: int, *, said: Condition = WORKS, actor: str = AGENT) -> None:
    words = StatusReport(conditions=(said,), kubernetes_version="x" * length)
    store.transact(clusters.report_status, EDGE, words, actor)


def size(store: MemoryStore) -> int:
    return len(store.transact(clusters.find, EDGE).encoded)


def fill(store: MemoryStore, wanted: int) -> None:
    """As an earlier release let an agent do."""
    for _ in range(2):
        report(store, length(store) + wanted - size(store), actor="an earlier release")
    assert size(store) == wanted


def length(store: MemoryStore) -> int:
    return len(doc.mapping(store.transact(clusters.find, EDGE).document, "status", "version").get("kubernetes", ""))


def departing(use_case: Callable[..., Any]) -> Callable[[Transaction], object]:
    departure = Departure(EDGE, OTHER, 6)
    if use_case is owners.stand_by:
        return lambda tx: owners.stand_by(tx, departure, "uid-1", ME, AGENT)
    return lambda tx: owners.bid_farewell(tx, departure, 6, AGENT)


def test_what_it_reports_may_be_a_few_bytes_longer(large: MemoryStore) -> None:
    before = size(large)
    report(large, length(large), said=FAILS)
    assert size(large) > before
    with pytest.raises(TooLargeError, match="an agent may fill"):
        report(large, length(large) + 2 * room.FEW)


def test_it_says_where_it_runs_as_it_comes_back(large: MemoryStore) -> None:
    joining = Joining(name=EDGE, cluster_uid="uid-1", annotations={rules.AGENT_ANNOTATIONS + "node": "x" * 100})
    before = size(large)
    large.transact(clusters.ensure, joining, AGENT)
    assert size(large) > before


@pytest.mark.parametrize("use_case", [owners.stand_by, owners.bid_farewell])
def test_where_it_has_gone_is_told_however_large_it_is(accepted: MemoryStore, use_case: Callable[..., Any]) -> None:
    fill(accepted, OBJECT_CEILING)
    accepted.transact(departing(use_case))
    found = rules.availability(accepted.transact(clusters.find, EDGE).document)
    assert found is not None
    assert (found.status, OTHER in found.message) == (conditions.UNKNOWN, True)


def test_byte_by_byte_it_does_not_fill_what_is_left_for_operators(accepted: MemoryStore) -> None:
    assert room.MOST < OBJECT_LIMIT < room.LAST < OBJECT_CEILING
    assert OBJECT_CEILING - room.LAST == 128 * 1024
    fill(accepted, room.LAST)
    report(accepted, length(accepted))
    with pytest.raises(TooLargeError, match="an agent may fill"):
        report(accepted, length(accepted) + 100)
    report(accepted, length(accepted) - 1)
