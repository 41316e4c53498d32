"""The hubs that an agent reports, and the orders to go to one of them."""

from datetime import UTC, datetime

import pytest

from hub.domain import cluster as rules
from hub.domain import reported
from hub.domain.parting import Departure
from hub.domain.reported import HubState, ReportedHub
from hub.rpc.moving import Moving
from hub.services import clusters, moves, owners
from machinery.errors import InvalidError, NotFoundError, StaleEpochError
from machinery.identity import ClusterName, HubId
from machinery.wire.session.v1 import session_pb2 as wire
from tests.fakes.memory_store import MemoryStore
from tests.fakes.registration import EDGE, OPERATOR, Newcomer

ME = HubId("aaaa-1")
ENDS = datetime(2026, 12, 1, tzinfo=UTC)
LIST = (
    ReportedHub(ME, "eu-1", "https://eu-1:6443", HubState.READY, ENDS),
    ReportedHub("bbbb-2", "eu-2", "https://eu-2:6443", HubState.READY, ENDS),
    ReportedHub("bbcc-3", "eu-3", "https://eu-3:6443", HubState.NOT_ACCEPTED),
    ReportedHub("", "us-1", "https://us-1:6443", HubState.REGISTERING),
)


@pytest.fixture
def hub(newcomer: Newcomer, store: MemoryStore) -> MemoryStore:
    """With one accepted cluster whose agent reports its hubs in epoch 5."""
    newcomer.join(newcomer.bootstrap())
    newcomer.accept()
    store.transact(clusters.set_condition, EDGE, rules.ACCEPTED, "hub")
    store.transact(lambda tx: tx.facts.set(moves.HUB_ID, ME))
    store.transact(owners.claim, EDGE, 5)
    store.transact(moves.report_hubs, EDGE, 5, reported.encoded(LIST), "agent")
    return store


def ordered(store: MemoryStore) -> str:
    return reported.move_to(store.transact(clusters.find, EDGE).document)


@pytest.mark.parametrize("word", ["eu-2", "bbbb-2", "bbb", "https://eu-2:6443"])
def test_a_hub_is_found_by_name_id_beginning_and_url_and_the_order_stays(hub: MemoryStore, word: str) -> None:
    assert hub.transact(moves.order, EDGE, word, OPERATOR)["id"] == "bbbb-2"
    before = hub.state.revision
    hub.transact(moves.order, EDGE, word, OPERATOR)
    assert (ordered(hub), hub.state.revision) == ("bbbb-2", before)


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("eu-3", r"no credential that is ready.*eu-2 \(Ready\), eu-3 \(NotAccepted\), us-1 \(Registering\)"),
        ("us-1", "no credential that is ready"),
        ("eu-9", r"reports no hub \"eu-9\".*eu-1 \(Ready\)"),
        ("bb", "fits several"),
        ("", "reports no hub"),
        ("eu-1", "is this hub"),
        (ME, "is this hub"),
    ],
)
def test_where_there_is_no_ready_credential_nobody_is_sent_and_the_hubs_are_named(
    hub: MemoryStore, word: str, why: str
) -> None:
    with pytest.raises(InvalidError, match=why):
        hub.transact(moves.order, EDGE, word, OPERATOR)
    assert ordered(hub) == ""


def test_a_trial_changes_nothing_and_an_order_is_taken_back(hub: MemoryStore) -> None:
    hub.transact(lambda tx: moves.order(tx, EDGE, "eu-2", OPERATOR, dry_run=True))
    assert ordered(hub) == ""
    hub.transact(moves.order, EDGE, "eu-2", OPERATOR)
    assert hub.transact(lambda tx: moves.cancel(tx, EDGE, OPERATOR, dry_run=True)) == "bbbb-2"
    assert ordered(hub) == "bbbb-2"
    assert [hub.transact(moves.cancel, EDGE, OPERATOR) for _ in range(2)] == ["bbbb-2", ""]
    assert ordered(hub) == ""
    with pytest.raises(NotFoundError):
        hub.transact(moves.order, ClusterName("gone"), "eu-2", OPERATOR)


def test_an_order_ends_when_the_agent_has_gone_there_and_not_when_it_went_elsewhere(hub: MemoryStore) -> None:
    hub.transact(moves.order, EDGE, "eu-2", OPERATOR)
    hub.transact(owners.stand_by, Departure(EDGE, HubId("bbcc-3"), 6), "uid-1", ME, "agent")
    assert ordered(hub) == "bbbb-2"
    with pytest.raises(InvalidError, match=r"not with this hub.*bbcc-3"):
        hub.transact(moves.order, EDGE, "eu-2", OPERATOR)
    hub.transact(owners.stand_by, Departure(EDGE, HubId("bbbb-2"), 7), "uid-1", ME, "agent")
    assert ordered(hub) == ""


def test_a_list_of_an_outdated_session_is_not_kept_and_the_same_one_is_no_news(hub: MemoryStore) -> None:
    before = hub.state.revision
    hub.transact(moves.report_hubs, EDGE, 5, reported.encoded(LIST), "agent")
    with pytest.raises(StaleEpochError):
        hub.transact(moves.report_hubs, EDGE, 4, reported.encoded(LIST[:1]), "agent")
    assert hub.state.revision == before
    hub.transact(moves.report_hubs, EDGE, 5, "", "agent")
    assert reported.hubs_of(hub.transact(clusters.find, EDGE).document) == []


def test_what_an_agent_lists_is_bounded_and_fit_to_be_shown() -> None:
    odd = [
        *(ReportedHub("x" * 254), ReportedHub("id", "a\nb"), ReportedHub("id", "\x1b[31m"), ReportedHub("id", "ü")),
        *(ReportedHub("id", "n", "u" * 1025), ReportedHub("", "")),
    ]
    assert reported.encoded(odd) == ""
    kept = reported.hubs_of(reported.with_hubs({}, reported.encoded([*odd, *(ReportedHub(f"h{n}") for n in range(99))])))
    assert [hub["id"] for hub in kept] == [f"h{n}" for n in range(reported.MAX_HUBS)]


@pytest.mark.parametrize("annotation", ["{", "7", '["a", 1]', '{"a": 1}'])
def test_an_annotation_that_somebody_spoilt_reads_as_no_hubs(annotation: str) -> None:
    assert reported.hubs_of(reported.with_hubs({}, annotation)) == []


def test_an_agent_is_asked_once_per_order_and_again_when_the_hub_is_ready_again() -> None:
    sent: list[wire.HubMessage] = []
    moving = Moving(sent.append)

    def listed(state: wire.Hub.State.ValueType) -> None:
        moving.listed(wire.Hubs(hubs=[wire.Hub(hub_id="b", state=state)]))

    moving.wanted("b")
    assert sent == []  # an agent that lists no hubs would take it for an ordinary drain
    listed(wire.Hub.STATE_UNREACHABLE)
    assert sent == []
    for _ in range(2):
        listed(wire.Hub.STATE_READY)
        moving.wanted("b")
    assert [message.drain.target_hub_id for message in sent] == ["b"]
    listed(wire.Hub.STATE_UNREACHABLE)
    listed(wire.Hub.STATE_READY)
    assert len(sent) == 2
    moving.wanted("")
    moving.wanted("b")
    assert len(sent) == 3
