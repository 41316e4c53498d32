"""Rules at work: who waits is asked about when a rule comes, decisions are counted, remembered and told, acceptances wake."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from hub.audit import remember_decision
from hub.controllers.approval import Approval
from hub.controllers.rules import ACCEPTED, AT_MOST, Rules
from hub.deciding import Deciding
from hub.domain.approval_rule import Decision, Verdict
from hub.domain.audit import Record
from hub.domain.change import APPROVAL_RULES, EVENTS, Key, Query
from hub.domain.request import RequestPhase
from hub.ports import Transaction
from hub.roster import Controllers
from hub.services import approval_rules, certificates
from hub.services.approving import Outcome
from hub.settings import load
from machinery import pki
from machinery.clock import ManualClock
from machinery.conditions import HUB_ACCEPTED
from machinery.errors import UnavailableError
from machinery.tasks import GuardedTasks
from tests.unit.hub.controllers.conftest import Hub

START = Hub().clock.now()


@asynccontextmanager
async def working(hub: Hub, decided: list[Decision]) -> AsyncIterator[None]:
    controllers = Controllers(
        hub.store,
        hub.issuer,
        load({}, None, {}),
        hub.lifetimes,
        clock=hub.clock,
        since=lambda _now: START,
        decided=decided.append,
    )
    async with GuardedTasks("controllers") as tasks:
        await controllers.start(tasks)
        yield
        await tasks.stop()


async def until(hub: Hub, condition: Callable[[], object]) -> None:
    """Looks after every change."""
    async with asyncio.timeout(10):
        async for _changes in hub.store.follow(0):
            if condition():
                return


def put_rule(hub: Hub, name: str, **spec: Any) -> None:
    document = {"metadata": {"name": name}, "spec": {"decides": ["Accept", "Approve"], "clusterNames": ["*"], **spec}}

    def write(tx: Transaction) -> None:
        approval_rules.put(tx, document, tx.objects.get(APPROVAL_RULES, Key("", name)), "ann")

    hub.store.transact(write)


def status_of(hub: Hub, name: str) -> dict[str, Any]:
    stored = hub.store.transact(lambda tx: tx.objects.get(APPROVAL_RULES, Key("", name)))
    assert stored is not None
    return dict(stored.document.get("status") or {})


def told(hub: Hub, reason: str) -> list[str]:
    items = hub.store.transact(lambda tx: tx.objects.find(EVENTS, Query()).items)
    return [str(item.document["message"]) for item in items if item.document["reason"] == reason]


async def test_a_rule_that_comes_later_decides_about_those_who_wait() -> None:
    hub, decided = Hub(), list[Decision]()
    async with working(hub, decided):
        hub.join("c1")
        name = hub.submit("c1")
        hub.join("c2")
        put_rule(hub, "ones", clusterNames=["c1"])
        await until(hub, lambda: hub.state(name).phase is RequestPhase.ISSUED)
        await until(hub, lambda: (found := hub.condition("c1", HUB_ACCEPTED)) and '"ones"' in found.message)
        await until(hub, lambda: status_of(hub, "ones").get("matched") == 2)
        await until(hub, lambda: told(hub, "ApprovedByRule"))
    assert {(each.rule, each.verdict, each.cluster) for each in decided} == {
        ("ones", Verdict.ACCEPT, "c1"),
        ("ones", Verdict.APPROVE, "c1"),
    }
    status = status_of(hub, "ones")
    assert (status["accepted"], status["approved"], status["conditions"][0]["reason"]) == (1, 1, "Deciding")
    assert told(hub, "ApprovedByRule") == ['certificate request approved by the rule "ones"']
    assert hub.condition("c2", HUB_ACCEPTED) is None


async def test_a_paused_rule_decides_when_it_goes_on() -> None:
    hub, decided = Hub(), list[Decision]()
    async with working(hub, decided):
        put_rule(hub, "all", paused=True)
        hub.join("c1")
        await until(hub, lambda: status_of(hub, "all").get("conditions"))
        assert status_of(hub, "all")["conditions"][0]["reason"] == "Paused"
        assert hub.condition("c1", HUB_ACCEPTED) is None
        put_rule(hub, "all")
        await until(hub, lambda: hub.condition("c1", HUB_ACCEPTED))
    assert len(decided) == 1


async def test_a_dry_run_is_told_and_counted() -> None:
    hub, decided = Hub(), list[Decision]()
    async with working(hub, decided):
        put_rule(hub, "all", dryRun=True)
        hub.join("c1")
        name = hub.submit("c1")
        await until(hub, lambda: status_of(hub, "all").get("matched") == 2)
        await until(hub, lambda: len(told(hub, "ApprovalRuleDryRun")) == 2)
    assert hub.state(name).phase is RequestPhase.PENDING
    assert (status_of(hub, "all")["wouldAccept"], status_of(hub, "all")["wouldApprove"]) == (1, 1)
    assert all(each.dry_run for each in decided)


async def test_a_request_has_its_cluster_looked_at_again_when_a_rule_accepts_for_who_asks() -> None:
    """The ManagedCluster comes first and says nothing of who asks."""
    hub, outcomes = Hub(), list[Outcome]()
    put_rule(hub, "asked", decides=["Accept"], requesters=[{"kind": "BootstrapCredential"}])
    hub.join("c1")
    approving = Approval(hub.store, (), are_there_rules=lambda: True, committed=outcomes.append)
    approving.wants(hub.submit("c1"))
    await approving.reconcile("waiting")
    assert [each.asking for each in outcomes] == ["c1"]
    deciding = Deciding(hub.store, (), hub.clock, tell=lambda _told: None, decided=lambda _decision: None)
    ruling, acceptance, _approval = deciding.controllers
    assert len(acceptance.queue) == 0
    deciding.committed(outcomes[0])
    assert (len(ruling.queue), len(acceptance.queue)) == (0, 1)
    deciding.committed(Outcome(accepted="c1"))
    assert len(ruling.queue) == 1, "what waited for the acceptance is looked at"


async def test_a_renewal_that_waited_for_the_acceptance_goes_on_with_it() -> None:
    hub = Hub()
    async with working(hub, []):
        hub.join("c1")
        hub.accept("c1")
        first = hub.submit("c1")
        hub.approve(first)
        await until(hub, lambda: hub.state(first).phase is RequestPhase.ISSUED)
        await until(hub, lambda: hub.condition("c1", HUB_ACCEPTED))
        hub.accept("c1", accepted=False)
        await until(hub, lambda: (found := hub.condition("c1", HUB_ACCEPTED)) and found.status == "False")
        record = hub.store.transact(certificates.resolve, pki.parse_certificate(hub.state(first).certificate).serial)
        renewal = hub.submit("c1", record)
        hub.accept("c1")
        await until(hub, lambda: hub.state(renewal).phase is RequestPhase.ISSUED)


async def test_clusters_that_are_accepted_together_have_their_requests_looked_at_also_after_a_failure() -> None:
    hub, looked_at = Hub(), list[str]()
    several = Rules(hub.store, hub.clock.now, look_at_cluster=looked_at.append, look_at_request=looked_at.append)
    names = []
    for number in range(AT_MOST + 1):
        hub.join(f"c{number}")
        names.append(hub.submit(f"c{number}"))
        several.accepted(f"c{number}")
    hub.approve(names[0])
    hub.store.failure = UnavailableError("the database is locked")
    with pytest.raises(UnavailableError):
        await several.reconcile(ACCEPTED)
    hub.store.failure = None
    while await several.reconcile(ACCEPTED) is not None:
        pass
    assert sorted(looked_at) == sorted(names[1:])


class Book:
    """An auditor's place."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.records: list[Record] = []

    def offer(self, record: Record) -> None:
        self.records.append(record)


def test_a_decision_is_an_audit_record_that_names_rule_and_object() -> None:
    book: Any = Book()
    about = {"apiVersion": "certificates.k8s.io/v1", "kind": "X", "metadata": {"name": "c1-x", "uid": "u"}}
    remember_decision(book, Decision("ones", Verdict.APPROVE, "c1", about, dry_run=True))
    (record,) = book.records
    assert record.user is not None
    assert record.object_ref is not None
    assert (record.user.username, record.verb) == ("system:muster:rule:ones", "update")
    assert (record.object_ref.resource, record.object_ref.name, record.object_ref.subresource) == (
        "certificatesigningrequests",
        "c1-x",
        "approval",
    )
    notes = {"muster/rule": "ones", "muster/decision": "Approve", "muster/cluster": "c1", "muster/dry-run": "true"}
    assert dict(record.annotations) == notes
