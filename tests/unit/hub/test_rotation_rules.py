"""Rules of CAs, certificates and requests: steps of a change of CA, orders to renew, ends of requests."""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from hub.api.certificateauthorities.authority import AuthorityId, AuthorityOrder, AuthorityRecord, Follower, Phase
from hub.api.certificateauthorities.rotation import Act, RotationAgent, RotationSnapshot, RotationStep, due_steps, goes_by_time
from hub.api.certificates import Purpose
from hub.api.certificatesigningrequests import RequestRetention, removed_at
from hub.api.managedclusters import agent_annotations as orders
from machinery.errors import InvalidError
from machinery.identity import AgentId, ClusterName
from machinery.meta.timestamps import format_time
from tests.checks import check_refusals, check_results

NOW = datetime(2026, 1, 2, tzinfo=UTC)
PATIENCE = timedelta(hours=24)
OLD, NEW = AuthorityId("old"), AuthorityId("new")
MARKS = {OLD: "f-old", NEW: "f-new"}
BOTH, ONLY_OLD = frozenset(MARKS.values()), frozenset({"f-old"})


def ca(one: AuthorityId, phase: Phase, **more: Any) -> AuthorityRecord:
    begun = NOW - timedelta(days=9 if one == OLD else 1) + timedelta(minutes=1)
    return replace(AuthorityRecord(one, b"", phase, begun, NOW - timedelta(hours=1)), **more)


def agent(signer: AuthorityId = OLD, **more: Any) -> RotationAgent:
    return replace(RotationAgent(ClusterName("edge"), AgentId("a"), signer, connected=True, trusted=BOTH), **more)


@dataclass(frozen=True)
class Row:
    about: str
    authorities: tuple[AuthorityRecord, ...]
    due: Act | None
    of: AuthorityId = NEW
    members: tuple[RotationAgent, ...] = ()
    signed: dict[AuthorityId, dict[Purpose, int]] = field(default_factory=dict)
    lagging: bool = False

    def rotation_snapshot(self) -> RotationSnapshot:
        followers = (
            () if self.lagging else tuple(Follower("one", each.id, each.phase, has_key=True) for each in self.authorities)
        )
        return RotationSnapshot(
            NOW, self.authorities, MARKS, self.members, signed=self.signed, followers=followers, living=frozenset({"one"})
        )


ISSUING, COMING = ca(OLD, Phase.ISSUING, order=AuthorityOrder.ROTATE), ca(NEW, Phase.DISTRIBUTING)
OUTGOING, CURRENT = ca(OLD, Phase.OUTGOING), ca(NEW, Phase.ISSUING)
LONG_AGO = NOW - PATIENCE - timedelta(seconds=1)
LEAKED = ca(OLD, Phase.ISSUING, order=AuthorityOrder.COMPROMISED, ends_at=NOW + timedelta(minutes=1))
GONE = replace(LEAKED, phase=Phase.OUTGOING)
JUST_COME = replace(COMING, since=NOW - timedelta(seconds=30))
OVERDUE, ORDERED = replace(COMING, since=LONG_AGO), replace(COMING, order=AuthorityOrder.PROCEED)
OUTLIVED, PUSHED = replace(OUTGOING, since=LONG_AGO), replace(OUTGOING, order=AuthorityOrder.PROCEED)
DISTRUSTING, AWAY = agent(trusted=ONLY_OLD), agent(trusted=ONLY_OLD, away=True, connected=False)
OVER = replace(LEAKED, ends_at=NOW, within=timedelta(seconds=30))
RETIRING = ca(OLD, Phase.RETIRING, ends_at=NOW + timedelta(days=1))

ROWS = (
    Row("nobody wants anything", (ca(OLD, Phase.ISSUING),), None),
    Row("an operator wants another", (ISSUING,), Act.MAKE, OLD),
    Row("no agent needs the bundle", (ISSUING, COMING), Act.ISSUE),
    Row("every agent trusts it", (ISSUING, COMING), Act.ISSUE, members=(agent(),)),
    Row("one agent does not trust it", (ISSUING, COMING), None, members=(agent(), DISTRUSTING)),
    Row("one that says nothing is not waited for", (ISSUING, COMING), Act.ISSUE, members=(agent(trusted=None),)),
    Row("one is away, and patience is not over", (ISSUING, COMING), None, members=(agent(trusted=ONLY_OLD, away=True),)),
    Row("one is away, and patience is over", (ISSUING, OVERDUE), Act.ISSUE, members=(AWAY,)),
    Row("one is here, and patience is over", (ISSUING, OVERDUE), None, members=(DISTRUSTING,)),
    Row("the operator's word", (ISSUING, ORDERED), Act.ISSUE, members=(DISTRUSTING,)),
    Row("a replica lacks the key", (ISSUING, ORDERED), None, lagging=True),
    Row("agents hold the old one's", (OUTGOING, CURRENT), None, members=(agent(),)),
    Row("all agents have moved", (OUTGOING, CURRENT), Act.RETIRE, OLD, members=(agent(NEW),)),
    Row("a replica does not follow", (OUTGOING, CURRENT), None, members=(agent(NEW),), lagging=True),
    Row("a bootstrap credential is left", (OUTGOING, CURRENT), None, signed={OLD: {Purpose.BOOTSTRAP: 1}}),
    Row("it has had its time", (OUTLIVED, CURRENT), Act.RETIRE, OLD, signed={OLD: {Purpose.BOOTSTRAP: 1}}),
    Row("who is present is never left behind", (OUTLIVED, CURRENT), None, members=(agent(),)),
    Row("the operator's word again", (PUSHED, CURRENT), Act.RETIRE, OLD, members=(agent(),)),
    Row("recovery certificates are left", (RETIRING, CURRENT), None, signed={OLD: {Purpose.RECOVERY: 1}}),
    Row("none is left", (RETIRING, CURRENT), Act.END, OLD),
    Row("the window is over", (replace(RETIRING, ends_at=NOW), CURRENT), Act.END, OLD, signed={OLD: {Purpose.RECOVERY: 1}}),
    Row("a compromised one is followed by another", (LEAKED,), Act.MAKE, OLD),
    Row("connected agents get it first", (LEAKED, JUST_COME), None, members=(DISTRUSTING,)),
    Row("as long as ordered", (OVER, JUST_COME), Act.ISSUE, members=(DISTRUSTING,)),
    Row("from when the next one came", (OVER, replace(COMING, since=NOW)), None, members=(DISTRUSTING,)),
    Row("others are not waited for", (LEAKED, COMING), Act.ISSUE, members=(agent(trusted=ONLY_OLD, connected=False),)),
    Row("not longer than ordered", (replace(LEAKED, ends_at=NOW), COMING), Act.ISSUE, members=(DISTRUSTING,)),
    Row("who is connected may move", (GONE, CURRENT), None, members=(agent(),)),
    Row("not longer than ordered, again", (replace(GONE, ends_at=NOW), CURRENT), Act.END, OLD, members=(agent(),)),
    Row("nobody else may", (GONE, CURRENT), Act.END, OLD, members=(agent(connected=False), agent(NEW))),
    Row("a replica does not follow a compromised one", (GONE, CURRENT), Act.END, OLD, lagging=True),
    Row("the coming one is compromised", (ISSUING, replace(COMING, order=AuthorityOrder.COMPROMISED)), Act.END),
    Row("a retiring one is compromised", (replace(RETIRING, order=AuthorityOrder.COMPROMISED), CURRENT), Act.END, OLD),
)


def test_step_is_due_when_nothing_is_waited_for() -> None:
    wanted = {row.about: () if row.due is None else (RotationStep(row.due, row.of),) for row in ROWS}
    found = {row.about: due_steps(row.rotation_snapshot(), PATIENCE) for row in ROWS}
    assert ({about: steps for about, steps in found.items() if steps != wanted[about]}, len(found)) == ({}, len(ROWS))
    first = Row("the first ends while the next is given up", (RETIRING, replace(LEAKED, id=NEW)), None).rotation_snapshot()
    assert due_steps(first, PATIENCE) == (RotationStep(Act.MAKE, NEW), RotationStep(Act.END, OLD))
    later = Row("the first ends while the next but one comes", (RETIRING, ORDERED), None).rotation_snapshot()
    assert due_steps(later, PATIENCE) == (RotationStep(Act.END, OLD), RotationStep(Act.ISSUE, NEW))


LATE = replace(GONE, ends_at=NOW)


def test_step_that_is_due_by_time_alone_is_distinguished_from_one_that_an_operator_wants() -> None:
    unreachable, deaf = (agent(connected=False),), (agent(trusted=None),)
    rows = (
        ("no agent loses anything when another CA comes", COMING, Act.ISSUE, (), False),
        ("all that an outgoing one signed has ended", OUTGOING, Act.RETIRE, (), True),
        ("all that a retiring one signed has ended", RETIRING, Act.END, (), True),
        ("an operator wants it to go on", replace(RETIRING, order=AuthorityOrder.PROCEED), Act.END, (), False),
        ("given up, and its agents have had their time", LATE, Act.END, (agent(),), True),
        ("given up, and its agents were given none", replace(GONE, ends_at=None), Act.END, (agent(),), False),
        ("given up, and the agents left are not connected", LATE, Act.END, unreachable, False),
        ("given up, and the agents left cannot move", LATE, Act.END, deaf, False),
        ("given up, and all have moved", LATE, Act.END, (agent(NEW),), False),
        ("given up when it retired", replace(LATE, phase=Phase.RETIRING), Act.END, (agent(),), False),
    )

    def by_time(_about: str, one: AuthorityRecord, act: Act, members: tuple[RotationAgent, ...]) -> bool:
        return goes_by_time(Row("", (one, CURRENT), None, members=members).rotation_snapshot(), RotationStep(act, one.id))

    check_results(by_time, rows)


def test_lagging_replicas_and_stranded_agents() -> None:
    keyless = (Follower("one", NEW, Phase.DISTRIBUTING, has_key=False), Follower("one", OLD, Phase.OUTGOING, has_key=False))
    seen = RotationSnapshot(NOW, (OUTGOING, COMING), MARKS, followers=keyless, living=frozenset({"one", "two"}))
    assert seen.lagging(COMING) == ("one", "two")
    assert seen.lagging(OUTGOING) == ("two",), "its key signs nothing more"
    members = (agent(), agent(NEW, connected=False), agent(connected=False), agent(trusted=None))
    seen = RotationSnapshot(NOW, (LEAKED,), MARKS, members)
    assert seen.stranded_agents(LEAKED) == members[2:], "they hold its certificates and cannot be moved"


AT = datetime(2026, 1, 1, 12, 0, 0, 123456, tzinfo=UTC)
HOUR, MOMENT = timedelta(hours=1), timedelta(microseconds=1)


def test_order_to_renew_is_an_interval_for_earlier_certificates() -> None:
    order = orders.RenewalOrder(AT, HOUR)
    cluster = orders.with_renewal_order({"metadata": {"name": "edge", "annotations": {"other": "stays"}}}, order)
    assert cluster["metadata"]["annotations"] == {"other": "stays", orders.RENEW: "2026-01-01T12:00:00.123456Z/PT3600S"}
    assert orders.renewal_order(cluster) == order
    wrong = ("", "soon", "2026-01-01T12:00:00Z", "2026-01-01T12:00:00Z/PT", "2026-01-01T12:00:00/PT1S")
    notes = [{"metadata": {"annotations": {orders.RENEW: text}}} for text in wrong]
    check_results(orders.renewal_order, [(note, None) for note in notes])
    longest = orders.LONGEST_RENEWAL
    check_refusals(InvalidError, orders.check_renewal_interval, [(-MOMENT, "within"), (longest + MOMENT, "within")])
    assert orders.check_renewal_interval(longest) == longest
    assert [order.asks(AT + each) for each in (-MOMENT, timedelta(), MOMENT)] == [True, False, False]
    assert (order.left(AT + HOUR / 4), order.left(AT + 100 * HOUR)) == (HOUR * 3 / 4, orders.LATE_RENEWAL)
    assert orders.RenewalOrder(AT, orders.LATE_RENEWAL / 2).left(AT + HOUR) == orders.LATE_RENEWAL / 2
    assert orders.RenewalOrder(AT, timedelta()).left(AT) == timedelta(), "at once is at once"


def test_requests_are_removed_as_kubernetes_controller_manager_does() -> None:
    def request(certificate: str = "", **decided: int) -> dict[str, Any]:
        """Created at AT, with conditions so many hours later."""
        conditions = [
            {"type": kind, "status": "True", "lastUpdateTime": format_time(AT + hours * HOUR)}
            for kind, hours in decided.items()
        ]
        status = {"conditions": conditions} | ({"certificate": certificate} if certificate else {})
        return {"metadata": {"name": "r", "creationTimestamp": format_time(AT)}, "status": status}

    def hours(asked: dict[str, Any], ends: RequestRetention | None = None, certificate_ends: timedelta | None = None) -> float:
        at = removed_at(asked, ends or RequestRetention(), None if certificate_ends is None else created + certificate_ends)
        return (at - created) / HOUR

    created = AT.replace(microsecond=0)
    issued, own = request("Y2VydA==", Approved=2), RequestRetention(finished=5 * HOUR, pending=7 * HOUR)
    rows = (
        (request(), 24),
        (request(Approved=2), 26),
        (issued, 3),
        (request(Denied=2), 3),
        (request(Approved=2, Failed=5), 6),
        (issued, None, 2.5 * HOUR, 2.5),  # with its certificate at the latest
        (issued, None, 9 * HOUR, 3),
        (request(), own, 7),
        (request(Denied=1), own, 6),
    )
    check_results(hours, rows)
    far = request(Denied=1)
    far["status"]["conditions"][0]["lastUpdateTime"] = "9999-12-31T23:59:59Z"  # as an approver may write it
    assert hours(far) > 24
