"""Which hub an agent goes to, why and when: rows, what holds for every list, and times that no setting of a clock changes."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from machinery.identity import HubId
from machinery.runtime.clock import ManualClock
from spoke.credentials.owner import Owner
from spoke.domain.hubs import (
    HubCandidate,
    HubDecision,
    HubSelectionPolicy,
    HubState,
    ListedHub,
    Unaccepted,
    Why,
    choose,
    is_better,
    is_good,
    next_epoch,
    refuse_move,
)
from spoke.failover.candidates import HubList, ReconnectBudget
from spoke.observability.progress import AgentProgress
from spoke.options import Hubs, Pause
from tests.fakes.reserve import A, B, C, ReserveStage
from tests.fakes.virtual_time import ManualTimetable

NOW = datetime(2026, 1, 1, tzinfo=UTC)
READY, NOT_ACCEPTED, REGISTERING = HubState.READY, HubState.NOT_ACCEPTED, HubState.REGISTERING
DENIED, UNREACHABLE, LOST = HubState.DENIED, HubState.UNREACHABLE, HubState.LOST
USUAL = HubSelectionPolicy()
WAITING = HubSelectionPolicy(unaccepted=Unaccepted.WAIT)
BACK = HubSelectionPolicy(fail_back_after=timedelta(minutes=5))
ALONE = HubSelectionPolicy(registers_ahead=False)


def hub(name: str, state: HubState = READY, *, rests: float = 0, ready_for: float | None = None) -> HubCandidate:
    """`rests` and `ready_for` in seconds."""
    return HubCandidate(
        ListedHub(HubId(name), name, f"https://{name}", state),
        rests_until=NOW + timedelta(seconds=rests) if rests else None,
        trouble="connection refused" if rests else "",
        ready_since=NOW - timedelta(seconds=ready_for) if ready_for is not None else None,
    )


@dataclass(frozen=True, slots=True)
class Row:
    case: str
    hubs: tuple[HubCandidate, ...]
    owner: str | None
    chosen: str
    why: Why
    policy: HubSelectionPolicy = USUAL
    lost_for: float | None = None


ROWS = [
    Row("the first of a new list", (hub("a"), hub("b")), None, "a", Why.CHOSEN),
    Row("the first that is ready", (hub("a", REGISTERING), hub("b")), None, "b", Why.CHOSEN),
    Row("nobody ready: the first is registered at", (hub("a", REGISTERING), hub("b", REGISTERING)), None, "a", Why.CHOSEN),
    Row("the owner is kept, whatever comes before it", (hub("a"), hub("b")), "b", "b", Why.KEPT),
    Row("a resting owner is left", (hub("a", rests=1), hub("b")), "a", "b", Why.FAILED_OVER),
    Row("not for a hub that rests as well", (hub("a", rests=1), hub("b", rests=2)), "a", "a", Why.KEPT),
    Row("whichever may be tried first", (hub("a", rests=3), hub("b", rests=2)), "a", "b", Why.FAILED_OVER),
    Row("not for one without a credential", (hub("a", rests=9), hub("b", REGISTERING)), "a", "a", Why.KEPT),
    Row("nor for one that denies", (hub("a", rests=9), hub("b", DENIED)), "a", "a", Why.KEPT),
    Row("nor for one that is lost", (hub("a", rests=9), hub("b", LOST)), "a", "a", Why.KEPT),
    Row("nor for one that does not answer", (hub("a", rests=9), hub("b", UNREACHABLE)), "a", "a", Why.KEPT),
    Row("which is better than one without credential", (hub("b", UNREACHABLE), hub("a", LOST)), "a", "b", Why.FAILED_OVER),
    Row("a denied agent leaves", (hub("a", DENIED), hub("b")), "a", "b", Why.FAILED_OVER),
    Row("a withdrawn acceptance is left", (hub("a", NOT_ACCEPTED), hub("b")), "a", "b", Why.FAILED_OVER),
    Row("not for another that has not accepted", (hub("b", NOT_ACCEPTED), hub("a", NOT_ACCEPTED)), "a", "a", Why.KEPT),
    Row("waited for, if so wished", (hub("a", NOT_ACCEPTED), hub("b")), "a", "a", Why.KEPT, WAITING),
    Row("waited for from the start, if so wished", (hub("a", NOT_ACCEPTED), hub("b")), None, "a", Why.CHOSEN, WAITING),
    Row("skipped at the start", (hub("a", NOT_ACCEPTED), hub("b")), None, "b", Why.CHOSEN),
    Row("waited for where there is nothing better", (hub("a", rests=9), hub("b", NOT_ACCEPTED)), "a", "b", Why.FAILED_OVER),
    Row("an owner that left the list", (hub("a"), hub("b")), "gone", "a", Why.FAILED_OVER),
    Row("back, in time", (hub("a", ready_for=300), hub("b")), "b", "a", Why.FAILED_BACK, BACK),
    Row("not before it is time", (hub("a", ready_for=299), hub("b")), "b", "b", Why.KEPT, BACK),
    Row("not back to a hub that rests", (hub("a", ready_for=300, rests=1), hub("b")), "b", "b", Why.KEPT, BACK),
    Row("never back to what comes later", (hub("a"), hub("b", ready_for=300)), "a", "a", Why.KEPT, BACK),
    Row("never back unless told", (hub("a", ready_for=9000), hub("b")), "b", "b", Why.KEPT),
    Row("registering takes over from a lost owner", (hub("a", rests=9), hub("b", REGISTERING)), "a", "b", Why.FAILED_OVER,
        ALONE, 600),
    Row("but not soon", (hub("a", rests=9), hub("b", REGISTERING)), "a", "a", Why.KEPT, ALONE, 599),
    Row("and never where it is done ahead", (hub("a", rests=9), hub("b", REGISTERING)), "a", "a", Why.KEPT,
        HubSelectionPolicy(), 9999),
]  # fmt: skip


def test_each_row_has_its_choice() -> None:
    wrong = []
    for row in ROWS:
        owner = HubId(row.owner) if row.owner else None
        lost_since = NOW - timedelta(seconds=row.lost_for) if row.lost_for is not None else None
        decision = choose(row.hubs, owner, NOW, row.policy, lost_since=lost_since)
        if decision is None or (decision.hub_id, decision.why) != (row.chosen, row.why) or not decision.message:
            wrong.append((row.case, decision))
    assert wrong == []
    assert choose((), HubId("a"), NOW, HubSelectionPolicy()) is None


def test_decision_says_from_where_to_where_what_failed_and_until_when_it_rests() -> None:
    decision = choose((hub("a", rests=1), hub("b")), HubId("a"), NOW, HubSelectionPolicy())
    assert decision == HubDecision(
        HubId("b"), Why.FAILED_OVER, "the hub a is lost: connection refused; the hub b is ready", None
    )
    decision = choose((hub("a", rests=5), hub("b", rests=7)), HubId("a"), NOW, HubSelectionPolicy())
    assert decision is not None
    assert decision.not_before == NOW + timedelta(seconds=5)


def test_move_is_refused_with_the_reason() -> None:
    rows = [
        ((hub("a"), hub("b")), ""),
        ((hub("a"),), "the hub b is not on the list; ready: a"),
        ((hub("a"), hub("b", REGISTERING)), "the hub b is registering; ready: a"),
        ((hub("c", DENIED), hub("b", NOT_ACCEPTED)), "the hub b is not accepted; ready: none"),
        ((hub("a"), hub("b", rests=1)), "the hub b has failed a moment ago: connection refused"),
    ]
    assert [refuse_move(hubs, HubId("b"), NOW) for hubs, _ in rows] == [says for _, says in rows]


def drawn_list(random: Random) -> tuple[HubCandidate, ...]:
    return tuple(
        hub(
            name,
            random.choice(list(HubState)),
            rests=random.choice([0, 0, 0, 1, 30, -5]),
            ready_for=random.choice([None, 0, 299, 300, 9000]),
        )
        for name in random.sample("abcde", random.randint(1, 5))
    )


def test_choice_from_any_list_is_the_first_good_hub_unless_the_owner_is_good() -> None:
    random = Random(1)
    for _ in range(4_000):
        hubs = drawn_list(random)
        owner = random.choice([None, HubId("z"), *(each.hub.hub_id for each in hubs)])
        policy = random.choice([HubSelectionPolicy(), WAITING, BACK, ALONE])
        lost_since = random.choice([None, NOW, NOW - timedelta(hours=1)])
        decision = choose(hubs, owner, NOW, policy, lost_since=lost_since)
        assert decision is not None
        by_id = {each.hub.hub_id: each for each in hubs}
        chosen = by_id[decision.hub_id]
        good = [each for each in hubs if is_good(each, NOW, policy)]
        if good:
            assert is_good(chosen, NOW, policy)
            assert not chosen.rests(NOW)
        if owner in by_id and is_good(by_id[owner], NOW, policy):
            assert decision.hub_id == owner or decision.why is Why.FAILED_BACK
        elif good:
            assert chosen is good[0]
        if decision.why is Why.FAILED_BACK:
            assert policy.fail_back_after is not None
            assert hubs.index(chosen) < hubs.index(by_id[owner or HubId("")])
        assert (decision.why is Why.KEPT) == (decision.hub_id == owner)
        assert (decision.not_before is not None) == chosen.rests(NOW)
        assert is_better(hubs, owner, NOW, policy) == any(each.hub.hub_id != owner for each in good)


def test_no_claim_and_no_time_of_a_hub_makes_an_epoch_that_other_hubs_refuse() -> None:
    """It is above what was kept and told, and never behind the hub's time. One up to a day ahead is kept, as hubs take it."""
    now, hour = int(NOW.timestamp() * 1000), 3_600_000
    rows = [
        ((0, 0, NOW), now),
        ((now, 0, NOW), now + 1),
        ((0, now + 7, NOW), now + 8),
        ((now + 9, now + 7, NOW), now + 10),
        *(((0, told, NOW), now) for told in (now + hour + 1, now + 24 * hour, 2**63 - 1, 2**64)),
        ((0, 0, NOW + timedelta(days=36500)), now + hour),
        ((now + 24 * hour + 1, 0, NOW), now),
        ((2**63 - 1, now + hour, NOW), now + hour + 1),
        ((now + 23 * hour, 0, NOW), now + 23 * hour + 1),
    ]
    assert [next_epoch(*row, NOW) for row, _ in rows] == [expected for _, expected in rows]


DAY = timedelta(days=1)
BACK_AFTER = timedelta(minutes=10)
RESTS = Pause(timedelta(seconds=30), timedelta(minutes=1), jitter=0)


def hubs_of(clock: ManualClock, timetable: ManualTimetable) -> HubList:
    """The agent is at B, and would rather be at A."""
    hubs = HubList(
        Hubs(policy=HubSelectionPolicy(fail_back_after=BACK_AFTER), rest=RESTS),
        ReserveStage(clock).standby,
        AgentProgress(clock),
        clock=clock,
        timetable=timetable,
        random=Random(1),
        stir=lambda: None,
    )
    hubs.settle(ReserveStage(clock).listing, Owner(hub_id=B, epoch=1))
    for hub in (A, B):
        hubs.meet(hub, HubState.READY)
    return hubs


@pytest.mark.parametrize("step", [timedelta(0), -DAY, DAY])
async def test_a_hub_rests_and_is_gone_back_to_in_time_though_the_clock_is_set(step: timedelta) -> None:
    clock = ManualClock()
    hubs = hubs_of(clock, ManualTimetable())
    hubs.fail(A, "it was away")
    clock.set_forward(step)
    assert "has failed a moment ago" in hubs.refuse_move(A)
    clock.advance(BACK_AFTER - timedelta(seconds=1))
    assert hubs.refuse_move(A) == ""
    assert (kept := hubs.decide()) is not None
    assert kept.hub_id == B
    clock.advance(timedelta(seconds=1))
    assert (back := hubs.decide()) is not None
    assert back.hub_id == A


@pytest.mark.parametrize("slept", [timedelta(0), DAY])
async def test_whoever_goes_back_is_woken_for_it_though_the_machine_slept_or_another_hub_rests(slept: timedelta) -> None:
    clock, timetable = ManualClock(), ManualTimetable()
    hubs = hubs_of(clock, timetable)
    clock.advance(BACK_AFTER)
    for hub in (A, A, C):  # A for a minute, C for half of one
        hubs.fail(hub, "it was away")
    clock.set_forward(slept)
    while (found := hubs.decide()) is not None and found.hub_id != A:
        assert timetable.instants, "nobody is woken"
        woken = min(timetable.instants.values())
        timetable.instants.clear()
        clock.advance(max(woken - clock.now(), timedelta(0)))
    assert clock.monotonic() < (BACK_AFTER + timedelta(seconds=61)).total_seconds()


OPTIONS = Hubs()
WHOLE = OPTIONS.patience.total_seconds()


def trial(clock: ManualClock, *, seed: int = 1, spent: bool = False) -> ReconnectBudget:
    return ReconnectBudget(OPTIONS, lambda: spent, clock, Random(seed))


def test_between_a_third_of_the_patience_and_the_whole_is_waited_for_the_first_of_several_dead_hubs_alone() -> None:
    for seed in range(20):
        patience = trial(ManualClock(), seed=seed)
        assert (patience.left, patience.is_over) == (None, False)
        patience.opened()
        patience.lost()
        assert WHOLE / 3 <= (patience.left or 0) <= WHOLE
    patience = trial(ManualClock(), spent=True)
    patience.lost()
    assert patience.is_over


def test_patience_is_drawn_anew_when_a_session_did_its_work_and_not_while_the_hub_stays_lost() -> None:
    clock = ManualClock()
    patience = trial(clock)
    patience.opened()
    patience.lost()
    for _ in range(3):
        clock.advance(OPTIONS.patience / 2)
        assert not patience.lost()
    assert patience.is_over
    patience.opened()
    clock.advance(OPTIONS.steady)
    assert patience.lost()
    assert not patience.is_over
