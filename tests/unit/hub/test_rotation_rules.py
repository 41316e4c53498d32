"""When each step of a change of CA is due."""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hub.domain.authority import Authority, AuthorityId, Follower, Phase, Wish, admitted, bundled
from hub.domain.certificate import Purpose
from hub.domain.rotation import Act, Member, Step, Survey, due_steps, goes_by_time
from machinery.identity import AgentId, ClusterName

NOW = datetime(2026, 1, 2, tzinfo=UTC)
PATIENCE = timedelta(hours=24)
OLD, NEW = AuthorityId("old"), AuthorityId("new")
MARKS = {OLD: "f-old", NEW: "f-new"}
BOTH, ONLY_OLD = frozenset(MARKS.values()), frozenset({"f-old"})


def ca(one: AuthorityId, phase: Phase, **more: Any) -> Authority:
    begun = NOW - timedelta(days=9 if one == OLD else 1) + timedelta(minutes=1)
    return replace(Authority(one, b"", phase, begun, NOW - timedelta(hours=1)), **more)


def agent(signer: AuthorityId = OLD, **more: Any) -> Member:
    return replace(Member(ClusterName("edge"), AgentId("a"), signer, connected=True, trusted=BOTH), **more)


@dataclass(frozen=True)
class Row:
    """A situation, and what is due in it."""

    about: str
    authorities: tuple[Authority, ...]
    due: Act | None
    of: AuthorityId = NEW
    members: tuple[Member, ...] = ()
    signed: dict[AuthorityId, dict[Purpose, int]] = field(default_factory=dict)
    lagging: bool = False

    def survey(self) -> Survey:
        followers = (
            () if self.lagging else tuple(Follower("one", each.id, each.phase, has_key=True) for each in self.authorities)
        )
        return Survey(
            NOW, self.authorities, MARKS, self.members, signed=self.signed, followers=followers, living=frozenset({"one"})
        )


ISSUING, COMING = ca(OLD, Phase.ISSUING, wish=Wish.ROTATE), ca(NEW, Phase.DISTRIBUTING)
OUTGOING, CURRENT = ca(OLD, Phase.OUTGOING), ca(NEW, Phase.ISSUING)
LONG_AGO = NOW - PATIENCE - timedelta(seconds=1)
LEAKED = ca(OLD, Phase.ISSUING, wish=Wish.COMPROMISED, ends_at=NOW + timedelta(minutes=1))
GONE = replace(LEAKED, phase=Phase.OUTGOING)
RETIRING = ca(OLD, Phase.RETIRING, ends_at=NOW + timedelta(days=1))

ROWS = (
    Row("nobody wants anything", (ca(OLD, Phase.ISSUING),), None),
    Row("an operator wants another", (ISSUING,), Act.MAKE, OLD),
    Row("nobody has to be told", (ISSUING, COMING), Act.ISSUE),
    Row("every agent trusts it", (ISSUING, COMING), Act.ISSUE, members=(agent(),)),
    Row("one agent does not trust it", (ISSUING, COMING), None, members=(agent(), agent(trusted=ONLY_OLD))),
    Row("one that says nothing is not waited for", (ISSUING, COMING), Act.ISSUE, members=(agent(trusted=None),)),
    Row("one is away, and patience is not over", (ISSUING, COMING), None, members=(agent(trusted=ONLY_OLD, away=True),)),
    Row(
        "one is away, and patience is over",
        (ISSUING, replace(COMING, since=LONG_AGO)),
        Act.ISSUE,
        members=(agent(trusted=ONLY_OLD, away=True, connected=False),),
    ),
    Row(
        "one is here, and patience is over",
        (ISSUING, replace(COMING, since=LONG_AGO)),
        None,
        members=(agent(trusted=ONLY_OLD),),
    ),
    Row("the operator's word", (ISSUING, replace(COMING, wish=Wish.PROCEED)), Act.ISSUE, members=(agent(trusted=ONLY_OLD),)),
    Row("a replica lacks the key", (ISSUING, replace(COMING, wish=Wish.PROCEED)), None, lagging=True),
    Row("agents hold the old one's", (OUTGOING, CURRENT), None, members=(agent(),)),
    Row("all agents have moved", (OUTGOING, CURRENT), Act.RETIRE, OLD, members=(agent(NEW),)),
    Row("a replica does not follow", (OUTGOING, CURRENT), None, members=(agent(NEW),), lagging=True),
    Row("a bootstrap credential is left", (OUTGOING, CURRENT), None, signed={OLD: {Purpose.BOOTSTRAP: 1}}),
    Row(
        "it has had its time",
        (replace(OUTGOING, since=LONG_AGO), CURRENT),
        Act.RETIRE,
        OLD,
        signed={OLD: {Purpose.BOOTSTRAP: 1}},
    ),
    Row("who is present is never left behind", (replace(OUTGOING, since=LONG_AGO), CURRENT), None, members=(agent(),)),
    Row("the operator's word again", (replace(OUTGOING, wish=Wish.PROCEED), CURRENT), Act.RETIRE, OLD, members=(agent(),)),
    Row("recovery certificates are left", (RETIRING, CURRENT), None, signed={OLD: {Purpose.RECOVERY: 1}}),
    Row("none is left", (RETIRING, CURRENT), Act.END, OLD),
    Row("the window is over", (replace(RETIRING, ends_at=NOW), CURRENT), Act.END, OLD, signed={OLD: {Purpose.RECOVERY: 1}}),
    Row("a compromised one is followed by another", (LEAKED,), Act.MAKE, OLD),
    Row("who is connected is told first", (LEAKED, COMING), None, members=(agent(trusted=ONLY_OLD),)),
    Row(
        "others are not waited for",
        (LEAKED, COMING),
        Act.ISSUE,
        members=(agent(trusted=ONLY_OLD, connected=False),),
    ),
    Row("not for longer than told", (replace(LEAKED, ends_at=NOW), COMING), Act.ISSUE, members=(agent(trusted=ONLY_OLD),)),
    Row("who is connected may move", (GONE, CURRENT), None, members=(agent(),)),
    Row("not for longer than told, again", (replace(GONE, ends_at=NOW), CURRENT), Act.END, OLD, members=(agent(),)),
    Row("nobody else may", (GONE, CURRENT), Act.END, OLD, members=(agent(connected=False), agent(NEW))),
    Row("a replica does not follow a compromised one", (GONE, CURRENT), Act.END, OLD, lagging=True),
    Row("the coming one is compromised", (ISSUING, replace(COMING, wish=Wish.COMPROMISED)), Act.END),
    Row("a retiring one is compromised", (replace(RETIRING, wish=Wish.COMPROMISED), CURRENT), Act.END, OLD),
)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.about)
def test_a_step_is_due_when_nothing_is_waited_for(row: Row) -> None:
    assert due_steps(row.survey(), PATIENCE) == (() if row.due is None else (Step(row.due, row.of),))


def test_steps_of_several_cas_are_due_whatever_becomes_of_one_another() -> None:
    other = replace(LEAKED, id=NEW)
    first = Row("the first ends while the next is given up", (RETIRING, other), None).survey()
    assert due_steps(first, PATIENCE) == (Step(Act.MAKE, NEW), Step(Act.END, OLD))
    later = Row("the first ends while the next but one comes", (RETIRING, replace(COMING, wish=Wish.PROCEED)), None).survey()
    assert due_steps(later, PATIENCE) == (Step(Act.END, OLD), Step(Act.ISSUE, NEW))


@dataclass(frozen=True)
class Loss:
    """A step, and whether it is by time alone that it is due."""

    about: str
    one: Authority
    act: Act
    by_time: bool
    members: tuple[Member, ...] = ()


LATE = replace(GONE, ends_at=NOW)
LOSSES = (
    Loss("nobody loses by another that comes", COMING, Act.ISSUE, by_time=False),
    Loss("what an outgoing one signed has ended", OUTGOING, Act.RETIRE, by_time=True),
    Loss("what a retiring one signed has ended", RETIRING, Act.END, by_time=True),
    Loss("an operator wants it to go on", replace(RETIRING, wish=Wish.PROCEED), Act.END, by_time=False),
    Loss("given up, and its agents have had their time", LATE, Act.END, by_time=True, members=(agent(),)),
    Loss("given up, and its agents were given none", replace(GONE, ends_at=None), Act.END, by_time=False, members=(agent(),)),
    Loss("given up, and nobody who is left is there", LATE, Act.END, by_time=False, members=(agent(connected=False),)),
    Loss("given up, and nobody who is left can move", LATE, Act.END, by_time=False, members=(agent(trusted=None),)),
    Loss("given up, and all have moved", LATE, Act.END, by_time=False, members=(agent(NEW),)),
    Loss("given up when it retired", replace(LATE, phase=Phase.RETIRING), Act.END, by_time=False, members=(agent(),)),
)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.about)
def test_a_ca_that_goes_by_time_alone_is_told_from_one_that_an_operator_wants_gone(loss: Loss) -> None:
    seen = Row("", (loss.one, CURRENT), None, members=loss.members).survey()
    assert goes_by_time(seen, Step(loss.act, loss.one.id)) is loss.by_time


def test_a_replica_that_lacks_the_key_lags_only_where_the_key_is_to_sign() -> None:
    keyless = (Follower("one", NEW, Phase.DISTRIBUTING, has_key=False), Follower("one", OLD, Phase.OUTGOING, has_key=False))
    seen = Survey(NOW, (OUTGOING, COMING), MARKS, followers=keyless, living=frozenset({"one", "two"}))
    assert seen.lagging(COMING) == ("one", "two")
    assert seen.lagging(OUTGOING) == ("two",)


def test_who_is_stranded_holds_a_certificate_of_it_and_cannot_be_moved() -> None:
    members = (agent(), agent(NEW, connected=False), agent(connected=False), agent(trusted=None))
    seen = Survey(NOW, (LEAKED,), MARKS, members)
    assert seen.stranded(LEAKED) == members[2:]


def test_the_bundle_names_the_issuing_one_first_and_a_compromised_one_until_another_issues() -> None:
    assert bundled((OUTGOING, CURRENT)) == (CURRENT, OUTGOING)
    assert bundled((LEAKED, COMING)) == (LEAKED, COMING)
    assert bundled((GONE, CURRENT)) == (CURRENT,)
    assert bundled((RETIRING, CURRENT)) == (CURRENT,)


def test_the_doors_let_in_what_a_retiring_one_signed_and_nothing_of_a_retired_one() -> None:
    assert admitted((RETIRING, CURRENT)) == (RETIRING, CURRENT)
    assert admitted((replace(OUTGOING, phase=Phase.RETIRED), CURRENT)) == (CURRENT,)
