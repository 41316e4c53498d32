"""Clusters and requests: accepted, approved and signed as operators and rules decide; and all controllers on one store."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from hub.api import managedclustersets
from hub.api.approvalrules import RuleAction, RuleDecision
from hub.api.auditrecords import AuditQuery, AuditRecord, Numbering
from hub.api.certificates import Purpose
from hub.api.certificatesigningrequests import RequestPhase
from hub.api.managedclusters import removal
from hub.api.managedclusters.cluster import DENIED_FOR
from hub.api.meta import document as doc
from hub.api.meta.change import APPROVAL_RULES, CLUSTER_SETS, EVENTS, MANAGED_CLUSTERS, NAMESPACES, REQUESTS, Change, Kind
from hub.api.namespaces import namespace
from hub.audit.recording import DecisionAudit, record_of
from hub.controllers.builder import ControllerBuilder, TransactionReconciler
from hub.controllers.certificates import approval
from hub.controllers.certificates.approval import RuleStatusReconciler, acceptance_reconciler, approval_reconciler
from hub.controllers.clusters import deletion
from hub.controllers.manager import ControllerManager
from hub.extensions.settings import load
from hub.ports import Transaction
from hub.registry import namespaces
from hub.registry.approvalrules.approval import RULE_ACTOR, ApprovalOutcome
from hub.registry.certificatesigningrequests import issuance
from hub.registry.managedclusteraddons import service as addons
from hub.registry.managedclusters import service as clusters
from machinery.errors import ExpiredError, NotFoundError, UnavailableError
from machinery.identity import AddOnName, ClusterName
from machinery.meta.conditions import AVAILABLE, FALSE, HUB_ACCEPTED, TRUE, UNKNOWN
from machinery.meta.objects import Key, Query, StoredObject
from machinery.runtime.clock import ManualClock
from machinery.runtime.controller import GIVE_UP_AFTER, LONGEST_PAUSE, Controller
from machinery.runtime.tasks import GuardedTasks
from tests.checks import present
from tests.fakes.fleetwork import builder_of, find, work
from tests.fakes.registration import change_cluster
from tests.fakes.virtual_time import ManualScheduler, in_the_loops_time
from tests.unit.hub.controllers.conftest import Hub
from tests.unit.hub.test_approval_rules import put_rule

AT_MOST = TransactionReconciler.at_most
DENIED = (FALSE, "HubClusterAdminDenied", "Denied by hub cluster admin")
START = Hub().clock.now()


def controlled(reconciler: TransactionReconciler) -> Controller[str]:
    return Controller("subject", reconciler)


async def step(subject: TransactionReconciler, *names: str) -> None:
    await work(controlled(subject), *names)


def submitted(hub: Hub, count: int) -> list[str]:
    for number in range(count):
        hub.join(f"c{number}")
    return [hub.submit(f"c{number}") for number in range(count)]


async def test_a_batch_is_signed_bounded_and_goes_on_at_once(hub: Hub) -> None:
    names, sign = submitted(hub, AT_MOST + 1), partial(issuance.sign_request, issuer=hub.issuer, lifetimes=hub.lifetimes)
    subject = controlled(approval_reconciler(hub.store, ("*",), sign))
    for name in names:
        subject.enqueue(name)
    await subject.step()
    assert subject.queue.pause() == timedelta()
    await subject.step()
    assert (subject.queue.pause(), {hub.state(name).phase for name in names}) == (None, {RequestPhase.ISSUED})


async def test_an_approval_stands_while_the_key_is_away_and_is_signed_when_it_is_back(hub: Hub) -> None:
    hub.join("c1")
    name, builder = hub.submit("c1"), builder_of(hub.store, auto_approve=("*",))
    approval.register(builder)
    for controller, failure in ((approval.APPROVAL, UnavailableError("no key")), (approval.ISSUANCE, None)):
        assert hub.state(name).phase is not RequestPhase.ISSUED
        known = hub.store.transact(lambda tx: tx.certificates.of_cluster(ClusterName("c1")))
        assert Purpose.AGENT not in {record.purpose for record in known}, "all certificates of a request are recorded, or none"
        vars(builder.issuer).update(failure=failure, failing=Purpose.RECOVERY)
        builder.controllers[controller].enqueue(name)
        await builder.controllers[controller].step()
    assert (hub.state(name).phase, hub.state(name).message) == (RequestPhase.ISSUED, 'Approved by the rule "--auto-approve".')


async def test_store_that_is_away_is_not_asked_for_every_name(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing arrives any more each question takes as long as the hub has patience."""
    names = submitted(hub, AT_MOST)
    subject, asked, run = controlled(approval_reconciler(hub.store, ("*",))), list[str](), hub.store.run

    async def away(*_args: Any, **_kwargs: Any) -> Any:
        asked.append("transaction")
        raise UnavailableError("the database does not answer")

    monkeypatch.setattr(hub.store, "run", away)
    for name in names:
        subject.enqueue(name)
    with capture_logs() as lines:
        pauses = [await subject.step() for _ in range(20)]
    assert len(asked) == 20 * (1 + GIVE_UP_AFTER)
    assert timedelta() < min(filter(None, pauses)) <= max(filter(None, pauses)) <= LONGEST_PAUSE
    assert [line["error"] for line in lines if line["log_level"] == "warning"] == ["the database does not answer"]
    monkeypatch.setattr(hub.store, "run", run)
    await work(subject)
    assert {hub.state(name).phase for name in names} == {RequestPhase.APPROVED}


def judged(hub: Hub, name: str = "c1") -> tuple[str, str, str] | None:
    found = hub.condition(name, HUB_ACCEPTED)
    return (found.status, found.reason, found.message) if found else None


async def test_a_name_that_matches_the_rule_is_accepted_once_and_a_denial_by_hand_stands(hub: Hub) -> None:
    subject = acceptance_reconciler(hub.store, ("edge-*",))
    for name in ("edge-1", "edge-2", "other"):
        hub.join(name)
    hub.accept("edge-2")
    hub.accept("edge-2", accepted=False)  # and nobody led between the two
    await step(subject, "edge-1", "edge-2", "other")
    assert [hub.cluster(name)["spec"]["hubAcceptsClient"] for name in ("edge-1", "edge-2", "other")] == [True, False, False]
    assert "open-cluster-management.io/automatically-accepted-on" in hub.cluster("edge-1")["metadata"]["annotations"]
    assert judged(hub, "edge-1") is not None
    assert judged(hub, "edge-2") == DENIED
    before = hub.revision
    assert not approval.wants_acceptance(hub.cluster("edge-1"), are_there_rules=True)
    await step(subject, "edge-1")
    assert hub.revision == before, "what is right is not written again"
    hub.accept("edge-1", accepted=False)
    await step(subject, "edge-1")
    assert hub.cluster("edge-1")["spec"]["hubAcceptsClient"] is False
    assert judged(hub, "edge-1") == DENIED


async def test_a_waiting_cluster_that_is_denied_for_a_reason_is_accepted_by_no_rule_until_an_operator_does(hub: Hub) -> None:
    subject = acceptance_reconciler(hub.store, ("edge-*",))
    hub.join("edge-1")
    for reason in ("stolen", "not in the inventory"):
        change_cluster(hub.store, partial(doc.with_annotations, notes={DENIED_FOR: reason}), ClusterName("edge-1"))
        await step(subject, "edge-1")
        assert hub.cluster("edge-1")["spec"]["hubAcceptsClient"] is False
        assert judged(hub, "edge-1") == (*DENIED[:2], f"{DENIED[2]}: {reason}")
    hub.accept("edge-1")
    await step(subject, "edge-1")
    assert judged(hub, "edge-1") == (TRUE, "HubClusterAdminAccepted", "Accepted by hub cluster admin")
    assert DENIED_FOR not in hub.cluster("edge-1")["metadata"].get("annotations", {})


async def test_a_cluster_that_is_being_deleted_is_left_alone(hub: Hub) -> None:
    hub.join("c1")
    hub.accept("c1")
    change_cluster(hub.store, lambda old: doc.with_metadata(old, finalizers=["example.org/wait"]), ClusterName("c1"))
    hub.store.transact(lambda tx: clusters.remove(tx, clusters.find(tx, ClusterName("c1")), "admin"))
    hub.join("c2")
    hub.accept("c2")
    assert not approval.wants_acceptance(hub.cluster("c1"), are_there_rules=True)
    await step(acceptance_reconciler(hub.store, ("*",)), "c1", "gone", "c2")
    assert hub.condition("c1", HUB_ACCEPTED) is None
    assert hub.condition("c2", HUB_ACCEPTED) is not None, "one that is gone holds up no other"


async def test_a_route_gets_its_kind_and_what_it_wants(hub: Hub) -> None:
    seen = list[str]()
    hub.join("c1")
    name, builder = hub.submit("c1"), builder_of(hub.store)
    builder.watch(MANAGED_CLUSTERS, lambda key: seen.append(key.name), wanted=lambda _document: False)
    builder.watch(REQUESTS, lambda key: seen.append(key.name), wanted=lambda document: bool(document["spec"]))
    await builder.handlers.list_all(hub.store)
    assert seen == [name]


async def test_a_name_that_fails_holds_up_no_other_and_waits_again(hub: Hub) -> None:
    bad, done = ["bad"], list[str]()

    def picky(_tx: Transaction, name: str, _shared: object) -> None:
        if name == "gone":
            raise NotFoundError("gone")
        if name in bad:
            raise UnavailableError("not now")
        done.append(name)

    subject = Controller("picky", TransactionReconciler(hub.store, picky), clock=hub.clock)
    with capture_logs() as lines:
        pause = await work(subject, "a", "bad", "gone", "b")
    assert [line["error"] for line in lines] == ["1 of 4 failed, the last of them bad: not now"]
    assert {"a", "b"} <= set(done)
    bad.clear()
    hub.clock.advance(present(pause))
    assert (await work(subject), done[-1]) == (None, "bad")


@asynccontextmanager
async def working(hub: Hub, *globs: str, decided: list[RuleDecision] | None = None) -> AsyncIterator[ManualScheduler]:
    settings, scheduler = load({"auto_approve": globs}, None, {}), ManualScheduler()
    reported = [] if decided is None else decided
    audit: Any = SimpleNamespace(
        write=lambda _tx, outcome: outcome, committed=lambda outcome: reported.extend(outcome.decisions)
    )
    common = (hub.store, hub.issuer, settings, hub.lifetimes)
    controllers = ControllerManager(ControllerBuilder(*common, clock=hub.clock, since=lambda _now: START, decisions=audit))
    controllers.start_periodic(scheduler)
    async with GuardedTasks("controllers") as tasks:
        await controllers.start(tasks)
        yield scheduler
        await tasks.stop()


async def until(hub: Hub, condition: Callable[[], object], within: timedelta = timedelta(seconds=10)) -> None:
    """Looks after every change."""
    async with asyncio.timeout(within.total_seconds()):
        async for _changes in hub.store.follow(0):
            if condition():
                return


def status_of(hub: Hub, name: str) -> dict[str, Any]:
    stored = present(hub.store.transact(lambda tx: tx.objects.get(APPROVAL_RULES, Key("", name))))
    return dict(stored.document.get("status") or {})


def messages_of(hub: Hub, reason: str) -> list[str]:
    items = hub.store.transact(lambda tx: tx.objects.find(EVENTS, Query()).items)
    return [str(item.document["message"]) for item in items if item.document["reason"] == reason]


async def test_rules_decide_about_those_who_wait_when_they_come_or_are_unpaused_and_dry_runs_are_counted() -> None:
    hub, decided = Hub(), list[RuleDecision]()
    async with working(hub, decided=decided):
        put_rule(hub.store, "dry", dryRun=True)
        put_rule(hub.store, "ones", clusterNames=["c1"], paused=True)
        hub.join("c1")
        name = hub.submit("c1")
        hub.join("c2")
        await until(hub, lambda: status_of(hub, "dry").get("matched") == 3)
        await until(hub, lambda: len(messages_of(hub, "ApprovalRuleDryRun")) == 3)
        assert (status_of(hub, "dry")["wouldAccept"], status_of(hub, "dry")["wouldApprove"]) == (2, 1)
        await until(hub, lambda: status_of(hub, "ones").get("conditions"))
        assert status_of(hub, "ones")["conditions"][0]["reason"] == "Paused"
        assert all(each.dry_run for each in decided)
        assert (hub.state(name).phase, hub.condition("c1", HUB_ACCEPTED)) == (RequestPhase.PENDING, None)
        put_rule(hub.store, "ones", clusterNames=["c1"])
        await until(hub, lambda: hub.state(name).phase is RequestPhase.ISSUED)
        await until(hub, lambda: (found := hub.condition("c1", HUB_ACCEPTED)) and '"ones"' in found.message)
        await until(hub, lambda: status_of(hub, "ones").get("matched") == 2)
        await until(hub, lambda: messages_of(hub, "ApprovedByRule"))
    assert sorted((each.rule, each.action, each.cluster) for each in decided if not each.dry_run) == [
        ("ones", RuleAction.ACCEPT, "c1"),
        ("ones", RuleAction.APPROVE, "c1"),
    ]
    status = status_of(hub, "ones")
    assert (status["accepted"], status["approved"], status["conditions"][0]["reason"]) == (1, 1, "Deciding")
    assert messages_of(hub, "ApprovedByRule") == ['certificate request approved by the rule "ones"']
    assert hub.condition("c2", HUB_ACCEPTED) is None


async def test_request_is_approved_when_its_cluster_gets_the_labels_of_a_rule() -> None:
    hub = Hub()
    async with working(hub):
        put_rule(hub.store, "prod", decides=["Approve"], clusterSelector={"matchLabels": {"env": "prod"}})
        put_rule(hub.store, "dry", decides=["Approve"], dryRun=True)
        await until(hub, lambda: status_of(hub, "prod").get("conditions") and status_of(hub, "dry").get("conditions"))
        hub.join("c1")
        hub.accept("c1")
        name = hub.submit("c1")
        await until(hub, lambda: status_of(hub, "dry").get("wouldApprove"))
        assert hub.state(name).phase is RequestPhase.PENDING
        change_cluster(hub.store, lambda one: doc.with_metadata(one, labels={"env": "prod"}), ClusterName("c1"))
        await until(hub, lambda: hub.state(name).phase is RequestPhase.ISSUED)


async def test_a_request_has_its_cluster_looked_at_again_when_a_rule_accepts_for_who_asks() -> None:
    """The ManagedCluster comes first and says nothing of who asks."""
    hub, outcomes = Hub(), list[ApprovalOutcome]()
    put_rule(hub.store, "asked", decides=["Accept"], requesters=[{"kind": "BootstrapCredential"}])
    hub.join("c1")
    await step(approval_reconciler(hub.store, (), are_there_rules=lambda: True, committed=outcomes.append), hub.submit("c1"))
    assert [each.asking for each in outcomes] == ["c1"]
    builder = builder_of(hub.store)
    approval.register(builder)
    await builder.handlers.list_all(hub.store)
    await work(builder.controllers[approval.APPROVAL])
    acceptance, ruling = builder.controllers[approval.ACCEPTANCE], builder.controllers[approval.RULES]
    assert acceptance.queue.take() == ("c1",)
    acceptance.queue.done(["c1"])
    ruling.queue.done(ruling.queue.take(10))
    await work(acceptance, "c1")
    assert len(ruling.queue) == 1, "what waited for the acceptance is looked at"


async def test_clusters_that_are_accepted_together_have_their_requests_looked_at_also_after_a_failure() -> None:
    hub, looked_at = Hub(), list[str]()
    several = RuleStatusReconciler(hub.store, hub.clock.now, looked_at.append, looked_at.append)
    subject, names = Controller("rules", several, clock=hub.clock), submitted(hub, several.at_most + 1)
    for number in range(len(names)):
        subject.enqueue(f"{approval.ACCEPTED}c{number}")
    hub.approve(names[0])
    hub.store.failure = UnavailableError("the database is locked")
    assert await subject.step() is not None
    assert looked_at == []
    hub.store.failure = None
    await work(subject)
    assert sorted(looked_at) == sorted(names[1:])


async def test_the_record_of_a_decision_is_stored_in_its_transaction() -> None:
    hub, offered, outcomes = Hub(), list[tuple[AuditRecord, bool]](), list[ApprovalOutcome]()
    offer = lambda record, *, stored: offered.append((record, stored))  # noqa: E731 - of the auditor's namespace
    audit = DecisionAudit(cast("Any", SimpleNamespace(clock=ManualClock(), numbering=Numbering("one"), offer=offer)))
    hub.join("c1")

    def stored() -> list[str]:
        return [entry.fields.user for entry in hub.store.transact(lambda tx: tx.audit.find(AuditQuery()))]

    accepting = acceptance_reconciler(hub.store, ("c*",), committed=outcomes.append, record=audit.write)
    hub.store.failure = UnavailableError("the database is locked")
    subject = controlled(accepting)
    subject.enqueue("c1")
    await subject.step()
    hub.store.failure = None
    assert stored() == []
    await work(subject)
    (outcome,) = outcomes
    assert stored() == [RULE_ACTOR + outcome.decisions[0].rule], "written, although no watch has it yet"
    audit.committed(outcome)
    assert [(present(record.user).username, is_stored) for record, is_stored in offered] == [(stored()[0], True)]


def test_a_decision_is_an_audit_record_that_names_rule_and_object() -> None:
    about = {"apiVersion": "certificates.k8s.io/v1", "kind": "X", "metadata": {"name": "c1-x", "uid": "u"}}
    record = record_of(RuleDecision("ones", RuleAction.APPROVE, "c1", about, dry_run=True), START)
    user, ref = present(record.user), present(record.object_ref)
    assert (user.username, record.verb) == ("system:muster:rule:ones", "update")
    assert (ref.resource, ref.name, ref.subresource) == ("certificatesigningrequests", "c1-x", "approval")
    notes = {"muster/rule": "ones", "muster/decision": "Approve", "muster/cluster": "c1", "muster/dry-run": "true"}
    assert dict(record.annotations) == notes


async def test_cluster_of_a_rule_is_accepted_and_signed_and_its_requests_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hub.registry.certificatesigningrequests.service.EXAMINED_AT_ONCE", 1)
    hub = Hub()
    async with working(hub, "edge-*") as scheduler:
        hub.join("edge-1")
        names = [hub.submit("edge-1"), hub.submit("edge-1")]
        await until(hub, lambda: all(hub.state(name).phase is RequestPhase.ISSUED for name in names))
        await until(hub, lambda: (found := hub.condition("edge-1", HUB_ACCEPTED)) and found.status == TRUE)
        hub.clock.advance(timedelta(hours=1))
        scheduler.wake("request-cleanup")
        await until(hub, lambda: hub.count() == 0)


async def test_decisions_from_before_the_start_are_acted_upon_and_a_silent_cluster_reads_unknown_after_its_grace() -> None:
    hub = Hub()
    hub.join("c1")
    name = hub.submit("c1")
    hub.approve(name)
    hub.accept("c1")
    async with working(hub):
        await until(hub, lambda: hub.state(name).phase is RequestPhase.ISSUED)
        await until(hub, lambda: hub.condition("c1", HUB_ACCEPTED))
    hub.clock.advance(timedelta(seconds=301))
    async with working(hub):
        await until(hub, lambda: (found := hub.condition("c1", AVAILABLE)) and found.status == UNKNOWN)


@pytest.mark.parametrize("trouble", [UnavailableError("the database does not answer"), ExpiredError("compacted")])
async def test_what_goes_while_nobody_follows_is_made_again(monkeypatch: pytest.MonkeyPatch, trouble: Exception) -> None:
    """The change log is not followed for a moment, so a deletion in that moment reaches no informer."""
    hub, ready, cut = Hub(), asyncio.Event(), asyncio.Event()
    keys = [(NAMESPACES, "c1"), *((CLUSTER_SETS, name) for name in managedclustersets.STANDING)]
    follow = hub.store.follow

    def lose(tx: Transaction) -> None:
        for kind, name in keys:
            tx.objects.delete(kind, present(find(tx, kind, name)), "test")

    def is_whole() -> bool:
        return all(hub.store.transact(find, kind, name) for kind, name in keys)

    async def cut_once(after: int, kinds: Collection[Kind] | None = None) -> AsyncIterator[Sequence[Change]]:
        if not cut.is_set():
            await ready.wait()
            hub.store.transact(lose)
            cut.set()
            raise trouble
        async for changes in follow(after, kinds):
            yield changes

    hub.join("c1")
    hub.accept("c1")
    monkeypatch.setattr(hub.store, "follow", cut_once)
    async with working(hub), asyncio.timeout(5):
        while not is_whole():
            await hub.store.wait_for_change(hub.revision, timedelta(seconds=1))
        ready.set()
        await cut.wait()
        assert not is_whole()
        await until(hub, is_whole)


def addon(namespace: str, name: str, priority: int = 0) -> dict[str, Any]:
    notes = {removal.PRIORITY: str(priority)}
    return {"metadata": {"name": name, "namespace": namespace, "annotations": notes, "finalizers": ["example.com/pre-delete"]}}


@in_the_loops_time
async def test_what_is_let_go_of_late_is_noticed_soon() -> None:
    """After ten minutes a deleted cluster, or namespace, that nobody lets go of is looked at once a minute."""
    hub, late = Hub(), ClusterName("c1")

    def make(tx: Transaction) -> None:
        namespaces.put(tx, namespace("east"), None, "admin")
        for held in (addon("c1", "first"), addon("c1", "second", 1), addon("east", "other")):
            addons.put(tx, held, None, "admin")

    def delete(tx: Transaction) -> None:
        clusters.remove(tx, clusters.find(tx, late), "admin")
        namespaces.remove(tx, cast("StoredObject", namespaces.get(tx, "east")), "admin")

    def let_go(tx: Transaction, where: str, name: str) -> None:
        stored = addons.find(tx, ClusterName(where), AddOnName(name))
        addons.put(tx, doc.with_metadata(stored.document, finalizers=None), stored, "admin")

    def is_marked(name: str) -> bool:
        return doc.is_deleting(hub.store.transact(addons.find, late, AddOnName(name)).document)

    hub.join("c1")
    hub.accept("c1")
    async with working(hub):
        hub.store.transact(make)
        hub.store.transact(delete)
        await asyncio.sleep(5)
        assert (is_marked("first"), is_marked("second")) == (True, False)
        hub.clock.advance(timedelta(minutes=10))
        await asyncio.sleep(630)  # the looks are a minute apart now, and the next ones half a minute away
        hub.store.transact(let_go, "c1", "first")
        hub.store.transact(let_go, "east", "other")
        within = 2 * deletion.NAMESPACE_CHECKS
        await until(hub, lambda: is_marked("second") and not hub.store.transact(namespaces.get, "east"), within)
