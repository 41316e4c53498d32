"""Which hub owns an agent, and orders to move to another one."""

from datetime import UTC, datetime, timedelta

import pytest

from hub.api.liveness import Beat
from hub.api.managedclusters import agent_annotations, availability, cluster as rules
from hub.api.managedclusters.agent_annotations import AgentHubState, ReportedHub
from hub.api.managedclusters.availability import Departure
from hub.api.managedclusters.cluster import StatusReport
from hub.api.revocations import RevocationTarget
from hub.ports import HUB_ID
from hub.registry import owners, revocations as revocation
from hub.registry.hubreplicas import service as replicas
from hub.registry.hubreplicas.service import Opened
from hub.registry.liveness import heartbeats
from hub.registry.managedclusters import actions, service as clusters
from hub.registry.owners import StandbyStatus
from machinery.errors import AlreadyExistsError, BadRequestError, ForbiddenError, InvalidError, NotFoundError, StaleEpochError
from machinery.identity import AgentId, ClusterName, HubId
from machinery.runtime.clock import ManualClock
from tests.checks import check_refusal, check_refusals
from tests.fakes.inline_store import InlineStore
from tests.fakes.registration import AGENT, EDGE, OPERATOR, Newcomer

ME, OTHER, THIRD = HubId("hub-a"), HubId("hub-b"), HubId("hub-c")
NONE, GRACE, WINDOW = timedelta(), timedelta(seconds=300), timedelta(seconds=1)
HERE = HubId("aaaa-1")
ENDS = datetime(2026, 12, 1, tzinfo=UTC)
LIST = (
    ReportedHub(HERE, "eu-1", "https://eu-1:6443", AgentHubState.READY, ENDS),
    ReportedHub("bbbb-2", "eu-2", "https://eu-2:6443", AgentHubState.READY, ENDS),
    ReportedHub("bbcc-3", "eu-3", "https://eu-3:6443", AgentHubState.NOT_ACCEPTED),
    ReportedHub("", "us-1", "https://us-1:6443", AgentHubState.REGISTERING),
)


@pytest.fixture
def accepted(newcomer: Newcomer, store: InlineStore) -> InlineStore:
    newcomer.accepted()
    store.transact(clusters.set_condition, EDGE, rules.ACCEPTED, "hub")
    return store


@pytest.fixture
def living(accepted: InlineStore) -> InlineStore:
    """It has reported here, in epoch 5."""
    accepted.transact(owners.claim, EDGE, 5)
    accepted.transact(clusters.report_status, EDGE, StatusReport(conditions=(rules.AVAILABLE,)), "agent")
    accepted.transact(lambda tx: tx.heartbeats.store([Beat(EDGE, NONE, available=True, epoch=5)]))
    return accepted


def stand_by(store: InlineStore, owner: str, epoch: int, *, uid: str = "uid-1", cluster: ClusterName = EDGE) -> StandbyStatus:
    return store.transact(owners.stand_by, Departure(cluster, HubId(owner), epoch), uid, ME, "agent")


def available(store: InlineStore) -> tuple[str, str, str]:
    condition = rules.availability(store.transact(clusters.find, EDGE).document)
    return (condition.status, condition.reason, condition.message) if condition else ("", "", "")


def kept(store: InlineStore) -> tuple[int, str | None]:
    last = store.state.beats[EDGE]
    return last.epoch, last.owner


def expire(store: InlineStore, clock: ManualClock) -> None:
    since = clock.now() - timedelta(days=30)
    store.transact(lambda tx: heartbeats.expire(tx, EDGE, window=WINDOW, since=since, actor="hub"))


def test_hub_that_never_had_the_cluster_keeps_it_on_standby(newcomer: Newcomer, store: InlineStore, clock: ManualClock) -> None:
    newcomer.join(newcomer.bootstrap())
    assert (stand_by(store, OTHER, 7), available(store)) == (StandbyStatus(accepted=False, epoch=7), ("", "", ""))
    newcomer.accept()
    store.transact(clusters.set_condition, EDGE, rules.ACCEPTED, "hub")
    expire(store, clock)
    assert (available(store)[1], stand_by(store, OTHER, 7)) == ("ManagedClusterStandby", StandbyStatus(accepted=True, epoch=7))
    message = "The registration agent reports to the hub hub-b; this one is a standby hub."
    assert available(store) == ("Unknown", "ManagedClusterStandby", message)
    for _ in range(3):
        clock.advance(10 * GRACE)
        expire(store, clock)
        assert available(store)[1] == "ManagedClusterStandby"


def test_hub_shows_where_its_cluster_moved_until_a_beat_of_a_newer_epoch(living: InlineStore) -> None:
    stand_by(living, "", 6)
    assert available(living)[1] == "ManagedClusterStandby", "the agent reports to no hub yet"
    stand_by(living, OTHER, 7)
    assert available(living) == ("Unknown", "ManagedClusterMoved", "The registration agent has moved to the hub hub-b.")
    before = living.state.revision
    stand_by(living, OTHER, 7)
    assert living.state.revision == before
    stand_by(living, THIRD, 8)
    assert available(living)[2] == "The registration agent has moved to the hub hub-c."
    with pytest.raises(StaleEpochError) as refused:
        living.transact(heartbeats.revive, Beat(EDGE, NONE, available=True, epoch=5), "hub")
    assert (refused.value.epoch, available(living)[1]) == (8, "ManagedClusterMoved")
    living.transact(owners.claim, EDGE, 9)
    living.transact(heartbeats.revive, Beat(EDGE, NONE, available=False, epoch=9), "hub")
    assert (available(living)[1], kept(living)) == ("ManagedClusterKubeAPIServerUnavailable", (9, None))


def test_lower_epoch_or_an_open_session_of_the_same_or_this_very_hub_change_nothing(living: InlineStore) -> None:
    assert stand_by(living, OTHER, 4) == StandbyStatus(accepted=True, epoch=5)
    assert (available(living)[0], kept(living)) == ("True", (5, None))
    living.transact(lambda tx: tx.heartbeats.set_session(EDGE, "s1"))
    stand_by(living, OTHER, 5)
    assert (available(living)[0], kept(living), stand_by(living, ME, 8).epoch) == ("True", (5, None), 8)
    assert (available(living)[0], kept(living)) == ("True", (8, None))


def test_who_was_silent_before_it_reported_where_it_is_has_moved(living: InlineStore, clock: ManualClock) -> None:
    clock.advance(2 * GRACE)
    expire(living, clock)
    assert available(living)[1] == "ManagedClusterLeaseUpdateStopped"
    tainted = availability.tainted(living.transact(clusters.find, EDGE).document)
    assert availability.UNREACHABLE in str(tainted["spec"]["taints"])
    stand_by(living, OTHER, 6)
    document = living.transact(clusters.find, EDGE).document
    assert (available(living)[1], availability.wanted_taint(rules.availability(document))) == ("ManagedClusterMoved", None)
    assert availability.silent_since(document) is None
    assert "taints" not in availability.tainted({**tainted, "status": document["status"]})["spec"]


def test_only_its_own_accepted_cluster_stands_by_for_a_valid_hub(accepted: InlineStore, newcomer: Newcomer) -> None:
    words = ((OTHER, 2**63, ""), ("a b", 1, ""), ("x" * 129, 1, ""), ("<script>", 1, ""))
    check_refusals(BadRequestError, lambda owner, epoch: stand_by(accepted, owner, epoch), words)
    check_refusal(AlreadyExistsError, stand_by, accepted, OTHER, 7, uid="another")
    check_refusal(NotFoundError, stand_by, accepted, OTHER, 7, cluster=ClusterName("gone"))
    newcomer.accept(accepted=False)
    check_refusal(ForbiddenError, stand_by, accepted, OTHER, 7, match="hubctl accept edge")


@pytest.fixture
def hub(accepted: InlineStore) -> InlineStore:
    """With one accepted cluster whose agent reports its hubs in epoch 5."""
    accepted.transact(lambda tx: tx.facts.set(HUB_ID, HERE))
    accepted.transact(owners.claim, EDGE, 5)
    accepted.transact(owners.report_hubs, EDGE, 5, agent_annotations.encoded(LIST), "agent")
    return accepted


def ordered(store: InlineStore) -> str:
    return agent_annotations.move_to(store.transact(clusters.find, EDGE).document)


def test_order_names_a_ready_hub_and_stays_until_it_is_canceled(hub: InlineStore) -> None:
    rows = (
        ("eu-3", r"no credential for \"eu-3\" that is ready.*eu-2 \(Ready\), eu-3 \(NotAccepted\), us-1 \(Registering\)"),
        *(("us-1", "no credential for"), ("eu-9", r"reports no hub \"eu-9\".*eu-1 \(Ready\)"), ("bb", "matches several")),
        *(("", "reports no hub"), ("eu-1", "is this hub"), (HERE, "is this hub")),
    )
    check_refusals(InvalidError, lambda word: hub.transact(actions.order_move, EDGE, word, OPERATOR), rows)
    hub.transact(lambda tx: actions.order_move(tx, EDGE, "eu-2", OPERATOR, dry_run=True))
    assert ordered(hub) == ""
    for word in ("eu-2", "bbbb-2", "bbb", "https://eu-2:6443"):
        assert hub.transact(actions.order_move, EDGE, word, OPERATOR)["id"] == "bbbb-2", word
        before = hub.state.revision
        hub.transact(actions.order_move, EDGE, word, OPERATOR)
        assert (ordered(hub), hub.state.revision) == ("bbbb-2", before), word
        assert hub.transact(lambda tx: actions.cancel_move(tx, EDGE, OPERATOR, dry_run=True)) == "bbbb-2"
        assert ordered(hub) == "bbbb-2"
        assert ([hub.transact(actions.cancel_move, EDGE, OPERATOR) for _ in range(2)], ordered(hub)) == (["bbbb-2", ""], "")
    check_refusal(NotFoundError, hub.transact, actions.order_move, ClusterName("gone"), "eu-2", OPERATOR)
    hub.transact(owners.report_hubs, EDGE, 5, '[{"id": 7, "name": "dr", "state": "Ready"}]', "agent")
    check_refusal(InvalidError, hub.transact, actions.order_move, EDGE, "dr", OPERATOR, match="no credential")


def test_an_order_ends_when_the_agent_has_gone_there_and_not_when_it_went_elsewhere(hub: InlineStore) -> None:
    hub.transact(actions.order_move, EDGE, "eu-2", OPERATOR)
    hub.transact(owners.stand_by, Departure(EDGE, HubId("bbcc-3"), 6), "uid-1", HERE, "agent")
    assert ordered(hub) == "bbbb-2"
    check_refusal(InvalidError, hub.transact, actions.order_move, EDGE, "eu-2", OPERATOR, match="uses another hub.*bbcc-3")
    hub.transact(owners.stand_by, Departure(EDGE, HubId("bbbb-2"), 7), "uid-1", HERE, "agent")
    assert ordered(hub) == ""


def test_a_list_of_an_outdated_session_is_not_kept_and_the_same_one_is_no_news(hub: InlineStore) -> None:
    before = hub.state.revision
    hub.transact(owners.report_hubs, EDGE, 5, agent_annotations.encoded(LIST), "agent")
    check_refusal(StaleEpochError, hub.transact, owners.report_hubs, EDGE, 4, agent_annotations.encoded(LIST[:1]), "agent")
    assert hub.state.revision == before
    hub.transact(owners.report_hubs, EDGE, 5, "", "agent")
    assert agent_annotations.hubs_of(hub.transact(clusters.find, EDGE).document) == []


def test_what_an_agent_lists_is_bounded_and_fit_to_be_shown() -> None:
    odd = [
        *(ReportedHub("x" * 254), ReportedHub("id", "a\nb"), ReportedHub("id", "\x1b[31m"), ReportedHub("id", "ü")),
        *(ReportedHub("id", "n", "u" * 1025), ReportedHub("", "")),
    ]
    assert agent_annotations.encoded(odd) == ""
    kept = agent_annotations.hubs_of(
        agent_annotations.with_hubs({}, agent_annotations.encoded([*odd, *(ReportedHub(f"h{n}") for n in range(99))]))
    )
    assert [hub["id"] for hub in kept] == [f"h{n}" for n in range(agent_annotations.MAX_HUBS)]
    spoilt = ("{", "7", '["a", 1]', '{"a": 1}')
    assert [agent_annotations.hubs_of(agent_annotations.with_hubs({}, annotation)) for annotation in spoilt] == [[]] * 4


def test_epoch_too_far_ahead_is_refused_and_a_stored_one_is_lowered(accepted: InlineStore, clock: ManualClock) -> None:
    present = int(clock.now().timestamp() * 1000)
    highest = present + 24 * 3_600_000
    for epoch in (highest + 1, 2**63 - 1, 2**64 - 1):
        for write in (owners.claim, owners.check):
            check_refusal(BadRequestError, accepted.transact, write, EDGE, epoch, match="set the clock")
        check_refusal(BadRequestError, stand_by, accepted, OTHER, epoch)
        check_refusal(BadRequestError, accepted.transact, owners.record_handover, Departure(EDGE, OTHER, epoch), 0, "agent")
    accepted.transact(owners.claim, EDGE, highest)
    assert (accepted.transact(owners.lower_epochs), kept(accepted)) == (0, (highest, None))
    accepted.transact(revocation.revoke, RevocationTarget(cluster=EDGE), "Compromised", OPERATOR)
    assert kept(accepted) == (present, None), "an administrator lowers it and ends the certificates of before"
    accepted.transact(lambda tx: tx.heartbeats.claim(EDGE, 2**63 - 1))
    assert (accepted.transact(owners.lower_epochs), kept(accepted)) == (1, (present, None))


def test_first_of_two_agents_has_a_while_to_come_back(living: InlineStore, newcomer: Newcomer, clock: ManualClock) -> None:
    """Where no second one is known nobody waits for it, and nobody waits for one whose certificate is revoked."""
    second = AgentId("second")
    for one in (newcomer, Newcomer(living, newcomer.issuer, agent=second)):
        one.issued(one.bootstrap())
    living.transact(owners.is_claimed, EDGE, 6, second)
    for held in (timedelta(seconds=30), timedelta()):
        living.transact(replicas.open_session, Opened(EDGE, AGENT, "s1", "v1", "one", epoch=5))
        living.transact(lambda tx: tx.heartbeats.store([Beat(EDGE, NONE, available=True, epoch=5)]))
        check_refusal(owners.SecondAgentError, living.transact, owners.is_claimed, EDGE, 6, second)
        living.transact(owners.note_second, EDGE, AGENT, second, "hub")
        living.transact(replicas.close_session, EDGE, AGENT, "s1")
        if held:
            clock.advance(held - timedelta(seconds=1))
            check_refusal(owners.SecondAgentError, living.transact, owners.is_claimed, EDGE, 6, second)
            living.transact(owners.is_claimed, EDGE, 5, AGENT)
            clock.advance(timedelta(seconds=1))
        else:
            living.transact(revocation.revoke, RevocationTarget(cluster=EDGE, agent=AGENT), "Superseded", OPERATOR)
        assert not living.transact(owners.is_claimed, EDGE, 6, second)
