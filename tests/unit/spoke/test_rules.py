"""The agent's decisions: names, renewals, stored credentials, reports, the next step, and the choice of a hub."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest
import yaml

from machinery.identity import AgentId, CertificateSubject, ClusterName, HubId, SerialNumber
from machinery.meta.conditions import FALSE, TRUE
from machinery.runtime.clock import ManualClock
from spoke.credentials.owner import Owner
from spoke.domain import hubs as hub_rules, report
from spoke.domain.credential import CERTIFICATE, KEY, KUBECONFIG, CertificateView, Flaw, HubEntry, StoredCredential, judge
from spoke.domain.names import AgentNames
from spoke.domain.next_step import Action, AgentState, decide
from spoke.domain.report import NodeResources, ReportedClaim
from spoke.domain.schedule import BACKDATE, EARLIEST, LATEST, rotate_at, threshold
from spoke.failover.candidates import HubList, ReconnectTimeout
from spoke.observability.progress import AgentProgress
from spoke.options import Hubs, Pause
from tests.checks import CASE_FILES, check_refusals, check_results, present
from tests.fakes.several import A, B, C, ReserveStage
from tests.fakes.virtual_time import ManualScheduler

NOW = datetime(2026, 11, 21, tzinfo=UTC)
NAMES = AgentNames(ClusterName("berlin"), AgentId("abcde"))
SERIAL = SerialNumber(1)
HUB = HubEntry("hub", "https://hub:6443", b"ca", "hub:8443", HubId("id"))
DAY = timedelta(days=1)
BACK_AFTER = timedelta(minutes=10)
RESTS = Pause(timedelta(seconds=30), timedelta(minutes=1), jitter=0)
OPTIONS = Hubs()
WHOLE = OPTIONS.timeout.total_seconds()
AT_A = AgentState(A, owner=A)
MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
READY, NOT_ACCEPTED, REGISTERING = hub_rules.HubState.READY, hub_rules.HubState.NOT_ACCEPTED, hub_rules.HubState.REGISTERING
DENIED, KEPT = hub_rules.HubState.DENIED, hub_rules.ChoiceReason.KEPT
FAILED_OVER, FAILED_BACK = hub_rules.ChoiceReason.FAILED_OVER, hub_rules.ChoiceReason.FAILED_BACK
WAITING = hub_rules.HubSelectionPolicy(unaccepted=hub_rules.Unaccepted.WAIT)
BACK = hub_rules.HubSelectionPolicy(fail_back_after=timedelta(minutes=5))
ALONE = hub_rules.HubSelectionPolicy(registers_ahead=False)


def test_renewal_threshold_is_drawn_once_per_serial_and_spread_over_the_window() -> None:
    drawn = [threshold(SerialNumber(number)) for number in range(1000)]
    assert all(LATEST < value <= EARLIEST for value in drawn)
    assert drawn == [threshold(SerialNumber(number)) for number in range(1000)]
    assert max(drawn) - min(drawn) > 0.045
    assert abs(sum(drawn) / 1000 - 0.225) < 0.002


def test_certificate_is_due_in_the_last_quarter_of_its_life_however_short() -> None:
    for life in (timedelta(days=30), timedelta(hours=1), timedelta(seconds=20)):
        assert NOW + life * 0.75 <= rotate_at(SerialNumber(5), NOW - BACKDATE, NOW + life) <= NOW + life * 0.80, life
    assert NOW < rotate_at(SerialNumber(5), NOW, NOW + timedelta(minutes=2)) < NOW + timedelta(minutes=2)


@dataclass(frozen=True, slots=True)
class View(CertificateView):
    serial: SerialNumber = SERIAL
    subject: CertificateSubject = NAMES.subject
    public_key: bytes = b"key"
    not_before: datetime = NOW - timedelta(days=1)
    not_after: datetime = NOW + timedelta(days=1)


GOOD = StoredCredential(frozenset((KUBECONFIG, CERTIFICATE, KEY)), HUB, (View(),), b"key")
OTHER_AGENT = AgentNames(NAMES.cluster, AgentId("zzzzz")).subject
OTHER_CLUSTER = AgentNames(ClusterName("paris"), NAMES.agent).subject


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    stored: StoredCredential
    flaw: Flaw | None
    says: str = ""


ROWS = [
    Row("good", GOOD, None),
    Row("nothing", StoredCredential(frozenset()), Flaw.ABSENT),
    Row("names alone", StoredCredential(frozenset(("cluster-name",))), Flaw.ABSENT),
    Row("no kubeconfig", replace(GOOD, present=frozenset((CERTIFICATE, KEY))), Flaw.INCOMPLETE, "kubeconfig missing"),
    Row("no key", replace(GOOD, present=frozenset((CERTIFICATE, KUBECONFIG))), Flaw.INCOMPLETE, "tls.key missing"),
    Row("no certificate", replace(GOOD, present=frozenset((KEY, KUBECONFIG))), Flaw.INCOMPLETE, "tls.crt missing"),
    Row("garbled kubeconfig", replace(GOOD, hub=None), Flaw.GARBLED, "kubeconfig"),
    Row("garbled key", replace(GOOD, public_key=None), Flaw.GARBLED, "tls.key"),
    Row("garbled certificate", replace(GOOD, chain=None), Flaw.GARBLED, "tls.crt"),
    Row("empty chain", replace(GOOD, chain=()), Flaw.GARBLED, "tls.crt"),
    Row("cluster entry", replace(GOOD, hub=replace(HUB, cluster="x")), Flaw.OTHER_HUB, "cluster entry's name"),
    Row("server", replace(GOOD, hub=replace(HUB, server="https://x")), Flaw.OTHER_HUB, "server"),
    Row("grpc server", replace(GOOD, hub=replace(HUB, grpc_server="x:1")), Flaw.OTHER_HUB, "gRPC server"),
    Row("hub id", replace(GOOD, hub=replace(HUB, hub_id=HubId("x"))), Flaw.OTHER_HUB, "hub id"),
    Row("proxy", replace(GOOD, hub=replace(HUB, proxy_url="http://p")), Flaw.OTHER_HUB, "proxy"),
    Row("ca", replace(GOOD, hub=replace(HUB, ca=b"x")), Flaw.OTHER_HUB, "certificate authority"),
    Row("grpc ca", replace(GOOD, hub=replace(HUB, grpc_ca=b"x")), Flaw.OTHER_HUB, "certificate authority"),
    Row("other agent", replace(GOOD, chain=(View(subject=OTHER_AGENT),)), Flaw.OTHER_SUBJECT, "zzzzz"),
    Row("other cluster", replace(GOOD, chain=(View(subject=OTHER_CLUSTER),)), Flaw.OTHER_SUBJECT, "paris"),
    Row("other key", replace(GOOD, public_key=b"x"), Flaw.WRONG_KEY),
    Row("expired", replace(GOOD, chain=(View(not_after=NOW - timedelta(seconds=1)),)), Flaw.EXPIRED, "2026-11-20T23:59:59Z"),
    Row("last instant", replace(GOOD, chain=(View(not_after=NOW),)), None),
    Row("first instant", replace(GOOD, chain=(View(not_before=NOW),)), None),
    Row("not begun", replace(GOOD, chain=(View(not_before=NOW + timedelta(seconds=1)),)), Flaw.NOT_YET_VALID),
    Row("expired issuer", replace(GOOD, chain=(View(), View(not_after=NOW - timedelta(days=1)))), Flaw.EXPIRED),
]


def test_each_flaw_of_a_stored_credential_is_found_and_named() -> None:
    findings = [(row, judge(row.stored, HUB, NAMES, NOW)) for row in ROWS]
    wrong = [
        (row.name, found)
        for row, found in findings
        if (found.flaw if found else None) is not row.flaw or row.says not in (found.message if found else "")
    ]
    assert wrong == []
    assert {row.flaw for row, found in findings if found and found.about_time} == {Flaw.EXPIRED, Flaw.NOT_YET_VALID}
    other = replace(GOOD, hub=replace(HUB, server="https://x"))
    assert judge(other, None, NAMES, NOW) is None, "without a bootstrap kubeconfig the stored hub is taken as it is"


def test_quantities_add_up_exactly() -> None:
    rows = [("4", "4", "8"), ("500m", "500m", "1"), ("1", "250m", "1250m"), ("8Gi", "8Gi", "16Gi"), ("0", "8Gi", "8Gi")]
    rows += [("16384Mi", "1Ki", "16777217Ki"), ("1Ki", "1", "1025"), ("2k", "1", "2001"), ("1e3", "1", "1001")]
    rows += [("1.5Gi", "512Mi", "2Gi"), ("100n", "1", "1000000100n"), ("1023Ei", "1", "1179438699212804456449")]
    check_results(report.add, rows)
    wrong = ("", "x", "1Gb", "1 Gi", "--1", "1e9999", "Ki")
    check_refusals(ValueError, report.add, [(text, "1", "not a Kubernetes quantity") for text in wrong])


def test_capacity_counts_all_nodes_and_allocatable_only_schedulable_ones() -> None:
    nodes = [
        NodeResources("a", {"cpu": "4", "memory": "8Gi"}, {"cpu": "4"}, schedulable=True),
        NodeResources("b", {"cpu": "3500m", "memory": "8Gi"}, {"cpu": "3500m"}, schedulable=False),
    ]
    assert (report.capacity_of(nodes), report.allocatable_of(nodes)) == ({"cpu": "7500m", "memory": "16Gi"}, {"cpu": "4"})


def failed(state: report.Availability, at: float) -> report.Availability:
    return state.observed(ok=False, status_code=500, detail="boom", began=at, ended=at)


def well(state: report.Availability, at: float) -> report.Availability:
    return state.observed(ok=True, status_code=200, detail="ok", began=at, ended=at)


def test_cluster_is_unavailable_after_twenty_seconds_of_failure_and_not_before() -> None:
    state = well(report.Availability(), 0)
    for tenth in range(199):
        state = failed(state, 100 + tenth / 10)
    assert state.verdict is True, "however often a short failure is seen"
    assert state.condition is not None
    assert state.condition.status == TRUE
    state = failed(failed(well(report.Availability(), 0), 100), 120)
    assert state.verdict is False
    assert state.condition is not None
    assert (state.condition.status, state.condition.message) == (FALSE, "The kube-apiserver is not ok, status code: 500, boom")
    state = failed(well(failed(well(report.Availability(), 0), 100), 110), 125)
    assert [state.verdict, failed(state, 144).verdict, failed(state, 145).verdict] == [True, True, False], "a success resets it"
    assert failed(failed(report.Availability(), 0), 19.9).verdict is None, "it never answered"
    slow = report.Availability().observed(ok=False, status_code=None, detail="", began=0, ended=5)
    slow = slow.observed(ok=False, status_code=None, detail="", began=15, ended=20)
    assert slow.verdict is False, "counted from the start of the first probe"


def test_claims_are_reserved_first_sorted_and_custom_ones_are_cut() -> None:
    names = ["z", "b", "a", "product.open-cluster-management.io", "id.k8s.io", "id-test.k8s.io", "x.mine.io"]
    rules = report.ClusterClaimRules(max_custom=2, reserved_suffixes=("mine.io",))
    claims = [ReportedClaim(name, name) for name in names]
    exposed = [claim.name for claim in report.exposed_claims(claims, rules)]
    assert exposed == ["id.k8s.io", "product.open-cluster-management.io", "x.mine.io", "a", "b"]
    assert report.truncated_claims(claims, rules) == 2


def hub(
    name: str, state: hub_rules.HubState = READY, *, rests: float = 0, ready_for: float | None = None
) -> hub_rules.HubCandidate:
    """`rests` and `ready_for` in seconds."""
    return hub_rules.HubCandidate(
        hub_rules.ListedHub(HubId(name), name, f"https://{name}", state),
        rests_until=MOMENT + timedelta(seconds=rests) if rests else None,
        trouble="connection refused" if rests else "",
        ready_since=MOMENT - timedelta(seconds=ready_for) if ready_for is not None else None,
    )


CHOICES: list[dict[str, Any]] = yaml.safe_load((CASE_FILES / "hub-choices.yaml").read_text())
POLICIES = {"usual": hub_rules.HubSelectionPolicy(), "waiting": WAITING, "back": BACK, "alone": ALONE}


def test_each_row_has_its_choice() -> None:
    wrong = []
    for row in CHOICES:
        owner, lost_for = row.get("owner"), row.get("lost_for")
        lost_since = MOMENT - timedelta(seconds=lost_for) if lost_for is not None else None
        hubs = tuple(
            hub(
                name,
                hub_rules.HubState[each.get("state", "READY")],
                rests=each.get("rests", 0),
                ready_for=each.get("ready_for"),
            )
            for name, each in row["hubs"].items()
        )
        policy = POLICIES[row.get("policy", "usual")]
        decision = hub_rules.choose(hubs, HubId(owner) if owner else None, MOMENT, policy, lost_since=lost_since)
        expected = row["chosen"], hub_rules.ChoiceReason[row["why"]]
        if decision is None or (decision.hub_id, decision.why) != expected or not decision.message:
            wrong.append((row["case"], decision))
    assert wrong == []
    assert hub_rules.choose((), HubId("a"), MOMENT, hub_rules.HubSelectionPolicy()) is None


def test_decision_says_from_where_to_where_what_failed_and_until_when_it_rests() -> None:
    decision = hub_rules.choose((hub("a", rests=1), hub("b")), HubId("a"), MOMENT, hub_rules.HubSelectionPolicy())
    assert decision == hub_rules.HubDecision(
        HubId("b"), FAILED_OVER, "the hub a is lost: connection refused; the hub b is ready", None
    )
    decision = present(
        hub_rules.choose((hub("a", rests=5), hub("b", rests=7)), HubId("a"), MOMENT, hub_rules.HubSelectionPolicy())
    )
    assert decision.not_before == MOMENT + timedelta(seconds=5)


def test_move_is_refused_with_the_reason() -> None:
    rows = [
        *(((hub("a"), hub("b")), ""), ((hub("a"),), "the hub b is not on the list; ready: a")),
        ((hub("a"), hub("b", REGISTERING)), "the hub b is registering; ready: a"),
        ((hub("c", DENIED), hub("b", NOT_ACCEPTED)), "the hub b is not accepted; ready: none"),
        ((hub("a"), hub("b", rests=1)), "the hub b has just failed: connection refused"),
    ]
    assert [hub_rules.refuse_move(hubs, HubId("b"), MOMENT) for hubs, _ in rows] == [says for _, says in rows]


def drawn_list(random: Random) -> tuple[hub_rules.HubCandidate, ...]:
    return tuple(
        hub(
            name,
            random.choice(list(hub_rules.HubState)),
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
        policy = random.choice([hub_rules.HubSelectionPolicy(), WAITING, BACK, ALONE])
        lost_since = random.choice([None, MOMENT, MOMENT - timedelta(hours=1)])
        decision = present(hub_rules.choose(hubs, owner, MOMENT, policy, lost_since=lost_since))
        by_id = {each.hub.hub_id: each for each in hubs}
        chosen = by_id[decision.hub_id]
        good = [each for each in hubs if hub_rules.is_good(each, MOMENT, policy)]
        if good:
            assert hub_rules.is_good(chosen, MOMENT, policy)
            assert not chosen.rests(MOMENT)
        if owner in by_id and hub_rules.is_good(by_id[owner], MOMENT, policy):
            assert decision.hub_id == owner or decision.why is FAILED_BACK
        elif good:
            assert chosen is good[0]
        if decision.why is FAILED_BACK:
            assert policy.fail_back_after is not None
            assert hubs.index(chosen) < hubs.index(by_id[owner or HubId("")])
        assert (decision.why is KEPT, decision.not_before is not None) == (decision.hub_id == owner, chosen.rests(MOMENT))
        assert hub_rules.is_better(hubs, owner, MOMENT, policy) == any(each.hub.hub_id != owner for each in good)


def test_no_claim_and_no_time_of_a_hub_makes_an_epoch_that_other_hubs_refuse() -> None:
    """It is above the stored and the reported epoch, and not behind the hub's time. Up to a day ahead is accepted."""
    now, hour = int(MOMENT.timestamp() * 1000), 3_600_000
    rows = [
        ((0, 0, MOMENT), now),
        ((now, 0, MOMENT), now + 1),
        ((0, now + 7, MOMENT), now + 8),
        ((now + 9, now + 7, MOMENT), now + 10),
        *(((0, hub_time, MOMENT), now) for hub_time in (now + hour + 1, now + 24 * hour, 2**63 - 1, 2**64)),
        ((0, 0, MOMENT + timedelta(days=36500)), now + hour),
        ((now + 24 * hour + 1, 0, MOMENT), now),
        ((2**63 - 1, now + hour, MOMENT), now + hour + 1),
        ((now + 23 * hour, 0, MOMENT), now + 23 * hour + 1),
    ]
    assert [hub_rules.next_epoch(*row, MOMENT) for row, _ in rows] == [expected for _, expected in rows]


def hubs_of(clock: ManualClock, scheduler: ManualScheduler) -> HubList:
    """The agent is at B, and would rather be at A."""
    hubs = HubList(
        Hubs(policy=hub_rules.HubSelectionPolicy(fail_back_after=BACK_AFTER), rest=RESTS),
        ReserveStage(clock).standby,
        AgentProgress(clock),
        clock=clock,
        scheduler=scheduler,
        random=Random(1),
        wake_up=lambda: None,
    )
    hubs.update(ReserveStage(clock).listing, Owner(hub_id=B, epoch=1))
    for hub in (A, B):
        hubs.record_state(hub, hub_rules.HubState.READY)
    return hubs


@pytest.mark.parametrize("step", [timedelta(0), -DAY, DAY])
async def test_a_hub_rests_and_is_gone_back_to_in_time_though_the_clock_is_set(step: timedelta) -> None:
    clock = ManualClock()
    hubs = hubs_of(clock, ManualScheduler())
    hubs.fail(A, "it was away")
    clock.set_forward(step)
    assert "has just failed" in hubs.refuse_move(A)
    clock.advance(BACK_AFTER - timedelta(seconds=1))
    assert hubs.refuse_move(A) == ""
    assert (kept := hubs.decide()) is not None
    assert kept.hub_id == B
    clock.advance(timedelta(seconds=1))
    assert (back := hubs.decide()) is not None
    assert back.hub_id == A


@pytest.mark.parametrize("slept", [timedelta(0), DAY])
async def test_whoever_goes_back_is_woken_for_it_though_the_machine_slept_or_another_hub_rests(slept: timedelta) -> None:
    clock, scheduler = ManualClock(), ManualScheduler()
    hubs = hubs_of(clock, scheduler)
    clock.advance(BACK_AFTER)
    for hub in (A, A, C):  # A for a minute, C for half of one
        hubs.fail(hub, "it was away")
    clock.set_forward(slept)
    while (found := hubs.decide()) is not None and found.hub_id != A:
        assert scheduler.instants, "nobody is woken"
        woken = min(scheduler.instants.values())
        scheduler.instants.clear()
        clock.advance(max(woken - clock.now(), timedelta(0)))
    assert clock.monotonic() < (BACK_AFTER + timedelta(seconds=61)).total_seconds()


def trial(clock: ManualClock, *, seed: int = 1, spent: bool = False) -> ReconnectTimeout:
    return ReconnectTimeout(OPTIONS, lambda: spent, clock, Random(seed))


def test_between_a_third_of_the_timeout_and_the_whole_is_waited_for_the_first_of_several_dead_hubs_alone() -> None:
    for seed in range(20):
        timeout = trial(ManualClock(), seed=seed)
        assert (timeout.left, timeout.is_over) == (None, False)
        timeout.opened()
        timeout.lost()
        assert WHOLE / 3 <= (timeout.left or 0) <= WHOLE
    timeout = trial(ManualClock(), spent=True)
    timeout.lost()
    assert timeout.is_over


def test_timeout_is_drawn_anew_when_a_session_did_its_work_and_not_while_the_hub_stays_lost() -> None:
    clock = ManualClock()
    timeout = trial(clock)
    timeout.opened()
    timeout.lost()
    for _ in range(3):
        clock.advance(OPTIONS.timeout / 2)
        assert not timeout.lost()
    assert timeout.is_over
    timeout.opened()
    clock.advance(OPTIONS.steady)
    assert timeout.lost()
    assert not timeout.is_over


def test_an_observation_has_one_next_action() -> None:
    rows = [
        *((AgentState(None), Action.GIVE_UP), (replace(AT_A, rests=True, is_flawed=True), Action.REST)),
        (replace(AT_A, is_flawed=True), Action.GIVE_UP),
        (replace(AT_A, is_flawed=True, can_register=True, needs_epoch=True), Action.REGISTER),
        *((replace(AT_A, is_new=True), Action.GIVE), (replace(AT_A, owner=None), Action.GIVE)),
        *((replace(AT_A, owner=B, needs_epoch=True), Action.GIVE), (replace(AT_A, needs_epoch=True), Action.RAISE_EPOCH)),
        (AT_A, Action.KEEP),
    ]
    assert [(state, decide(state), action) for state, action in rows if decide(state) is not action] == []
