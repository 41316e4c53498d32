"""The hub's log and Events report each change once, and old records are removed by age, by size and by free space."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from hub.api import history as rules
from hub.api.approvalrules import flag_rules
from hub.api.auditrecords import AuditEntry, AuditFields, AuditQuery
from hub.api.certificatesigningrequests import RequestRetention
from hub.api.events import EventRecord
from hub.api.history import BYTES_OF_A_ROW, RetentionPeriods, Volume, warnings
from hub.api.managedclusteraddons.health import in_step
from hub.api.managedclusters import availability as clocksync, cluster as cluster_rules
from hub.api.managedclusters.cluster import JoinRequest, StatusReport
from hub.api.managedclustersets import LABEL
from hub.api.meta import document as doc
from hub.api.meta.change import ADDONS, EVENTS, MANAGED_CLUSTERS, REQUESTS, Kind
from hub.controllers.clock_guard import SETTLED, ClockGuard
from hub.controllers.event_recorder import AT_MOST, Recorder
from hub.controllers.hub import retention as compaction_module
from hub.controllers.hub.retention import PAUSE, Compaction, RequestCleanup
from hub.controllers.observers.transition_recorder import TransitionRecorder
from hub.ports import Transaction
from hub.registry import auditrecords as audit, events
from hub.registry.approvalrules import approval
from hub.registry.certificatesigningrequests import issuance
from hub.registry.generic import objects
from hub.registry.managedclusters import service as clusters
from machinery.errors import ExpiredError, InvalidError, UnavailableError
from machinery.identity import ClusterName
from machinery.meta.conditions import ADDON_AVAILABLE, AVAILABLE, FALSE, TRUE, UNKNOWN, Condition
from machinery.meta.objects import ChangeType, Document, Key, Query
from machinery.runtime.clock import ManualClock
from tests.checks import check_refusal, check_refusal_of, present
from tests.fakes.fleetwork import builder_of
from tests.unit.hub.conftest import failing, transactions_of
from tests.unit.hub.controllers.conftest import AGENT, Hub

C1 = ClusterName("c1")
CLUSTER, ADDON = Key("", "c1"), Key("c1", "metrics")
WELL = Condition(ADDON_AVAILABLE, TRUE, "Reported", "it works")
ILL = Condition(ADDON_AVAILABLE, FALSE, "ProbeFailed", "no endpoint")
NOT_THERE_YET = Condition(ADDON_AVAILABLE, UNKNOWN, "ManagedClusterAddOnLeaseNotFound", "no lease")
SILENT = Condition(AVAILABLE, UNKNOWN, "ManagedClusterLeaseUpdateStopped", "no word")
EAST = {"kind": "ManagedCluster", "metadata": {"name": "east", "uid": "u-1"}}


class Reader:
    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.recorded: list[EventRecord] = []
        self.chronicle = TransitionRecorder(self.recorded.append)
        builder = builder_of(hub.store)
        builder.handlers.observers.append(self.chronicle)
        for kind in (MANAGED_CLUSTERS, REQUESTS):
            builder.watch(kind, lambda _key: None)
        self._handlers = builder.handlers
        self._revision = 0

    async def start(self) -> Sequence[Mapping[str, Any]]:
        with capture_logs() as lines:
            self._revision = await self._handlers.list_all(self._hub.store)
        return lines

    async def read(self) -> Sequence[Mapping[str, Any]]:
        changes = await self._hub.store.read(lambda tx: tx.changes.since(self._revision))
        with capture_logs() as lines:
            await self._handlers.change(changes)
        self._revision = self._hub.revision
        return lines

    async def events(self) -> list[str]:
        return [str(line["event"]) for line in await self.read()]


@pytest.fixture
async def reader(hub: Hub) -> Reader:
    reader = Reader(hub)
    await reader.start()
    return reader


@pytest.fixture
async def joined(hub: Hub, reader: Reader) -> Reader:
    """The cluster c1 has joined, and its line was read."""
    hub.join("c1")
    await reader.read()
    return reader


async def test_joins_and_decisions_are_logged_with_their_author_and_the_next_step(hub: Hub, reader: Reader) -> None:
    hub.join("c1")
    (line,) = await reader.read()
    assert (line["event"], line["cluster"], line["by"]) == ("cluster registered", "c1", "agent")
    assert line["next"] == "hubctl accept c1"
    name = hub.submit("c1")
    await reader.read()
    hub.accept("c1")
    hub.approve(name)
    hub.accept("c1", accepted=False)
    lines = await reader.read()
    assert [line["event"] for line in lines] == ["cluster accepted", "certificate request approved", "cluster denied"]
    assert ({line["by"] for line in lines}, {line["cluster"] for line in lines}) == ({"admin"}, {"c1"})
    assert lines[1]["request"] == name
    assert [
        (each.reason, each.type, each.message) for each in reader.recorded if each.reason in ("Registered", "Accepted")
    ] == [
        ("Registered", "Normal", "registered by agent: it waits for `hubctl accept c1`"),
        ("Accepted", "Normal", "accepted by admin"),
    ]
    assert {each.cluster for each in reader.recorded} == {"c1"}


async def test_availability_is_logged_when_it_changes_and_not_with_every_report(hub: Hub, reader: Reader) -> None:
    hub.join("c1")
    hub.accept("c1")
    await reader.read()
    hub.store.transact(clusters.report_status, C1, StatusReport(conditions=(cluster_rules.AVAILABLE,)), "agent")
    (line,) = await reader.read()
    assert (line["available"], line["log_level"]) == ("True", "info")
    assert (reader.recorded[-1].reason, reader.recorded[-1].type) == ("ManagedClusterAvailable", "Normal")
    hub.store.transact(clusters.report_status, C1, StatusReport(kubernetes_version="v1.34.2"), "agent")
    hub.clock.advance(timedelta(seconds=5))
    hub.store.transact(clusters.report_status, C1, StatusReport(kubernetes_version="v1.34.2", capacity={"cpu": "2"}), "agent")
    assert await reader.read() == []
    hub.store.transact(clusters.set_condition, C1, cluster_rules.UNAVAILABLE, "agent")
    (line,) = await reader.read()
    assert (line["available"], line["log_level"]) == ("False", "info")
    hub.store.transact(clusters.set_condition, C1, SILENT, "hub")
    await reader.read()
    assert [(each.reason, each.type) for each in reader.recorded[-2:]] == [
        ("ManagedClusterKubeAPIServerUnavailable", "Warning"),
        ("ManagedClusterLeaseUpdateStopped", "Warning"),
    ], "not only with the taint"


async def test_a_move_to_another_set_is_logged_and_the_first_set_is_not(hub: Hub, joined: Reader) -> None:
    def into(cluster_set: str) -> None:
        document = doc.with_metadata(hub.cluster("c1"), labels={LABEL: cluster_set})
        hub.store.transact(lambda tx: clusters.put(tx, document, clusters.find(tx, C1), "admin"))

    into("default")
    assert await joined.read() == []
    into("blue")
    (line,) = await joined.read()
    assert (line["event"], line["cluster_set"], line["before"], line["by"]) == ("cluster moved", "blue", "default", "admin")
    assert joined.recorded[-1].message == "moved from cluster set default to blue by admin"


async def test_a_duplicate_is_a_warning_and_a_successor_of_a_deleted_cluster_is_news(hub: Hub, joined: Reader) -> None:
    hub.store.transact(clusters.note_duplicate, JoinRequest(C1, "uid-other", AGENT), "agent")
    (line,) = await joined.read()
    assert line["log_level"] == "warning"
    assert "uid-other" in line["detail"]
    hub.store.transact(lambda tx: clusters.remove(tx, clusters.find(tx, C1), "admin"))
    assert await joined.events() == ["cluster deleted"]
    hub.join("c1")
    assert await joined.events() == ["cluster registered"]


async def test_requests_are_counted_once_by_outcome_and_their_end_is_an_event_of_their_cluster(hub: Hub) -> None:
    reader = Reader(hub)
    hub.join("c1")
    name = hub.submit("c1")
    spec = {"signerName": "example.com/other", "request": "", "usages": []}
    hub.store.transact(objects.put, REQUESTS, {"metadata": {"name": "other"}, "spec": spec}, None, "admin")
    await reader.start()
    chronicle = reader.chronicle
    assert (dict(chronicle.phases), dict(chronicle.by_phase())) == ({}, {"Pending": 1}), "what is there is no news"
    hub.approve(name)
    await reader.read()
    await reader.read()
    assert (dict(chronicle.phases), dict(chronicle.by_phase())) == ({"Approved": 1}, {"Approved": 1})
    reader.recorded.clear()
    hub.store.transact(issuance.issue, name, hub.issuer, hub.lifetimes, "issuance")
    await reader.read()
    assert [(each.cluster, each.reason, each.message, each.about["kind"]) for each in reader.recorded] == [
        ("c1", "CertificateIssued", "certificate request issued by issuance", "CertificateSigningRequest")
    ]
    sign = partial(issuance.sign_request, issuer=hub.issuer, lifetimes=hub.lifetimes)
    hub.store.transact(approval.review, hub.submit("c1"), flag_rules(("*",)), "hub", sign=sign)
    assert (await reader.read())[-1]["detail"] == 'Approved by the rule "--auto-approve".'
    assert dict(chronicle.phases) == {"Pending": 1, "Approved": 2, "Issued": 2}, "also an approval with its signature"


async def test_what_was_there_at_the_start_is_no_news_and_what_changed_or_went_meanwhile_is_known(hub: Hub) -> None:
    reader = Reader(hub)
    hub.join("c1")
    request = hub.submit("c1")
    assert await reader.start() == []
    hub.accept("c1")
    (line,) = await reader.start()  # the log was compacted: everything is read again
    assert (line["event"], reader.chronicle.by_phase()) == ("cluster accepted", {"Pending": 1})

    def go(tx: Transaction) -> None:
        for kind, name in ((MANAGED_CLUSTERS, "c1"), (REQUESTS, request)):
            tx.objects.delete(kind, present(tx.objects.get(kind, Key("", name))), "test")

    hub.store.transact(go)
    assert await reader.start() == []
    for name in ("c2", "c1"):
        hub.join(name)
        assert (await reader.events(), reader.chronicle.by_phase()) == (["cluster registered"], {})


class Agents:
    def __init__(self) -> None:
        self.recorded: list[EventRecord] = []
        self.chronicle = TransitionRecorder(self.recorded.append)

    def change(
        self, kind: Kind, key: Key, document: Document, change: ChangeType = ChangeType.MODIFIED
    ) -> list[tuple[str, str]]:
        """Reason and type of what a change has to tell."""
        self.recorded.clear()
        self.chronicle.changed(kind, key, document, change, "agent")
        return [(each.reason, each.type) for each in self.recorded]

    def cluster(self, document: Document) -> list[tuple[str, str]]:
        return self.change(MANAGED_CLUSTERS, CLUSTER, document)

    def addon(self, document: Document) -> list[tuple[str, str]]:
        return self.change(ADDONS, ADDON, document)


def written(*conditions: Condition) -> list[dict[str, str]]:
    return [{"type": each.type, "status": each.status, "reason": each.reason, "message": each.message} for each in conditions]


def cluster(version: str = "", *conditions: Condition) -> Document:
    status = {"version": {"kubernetes": version}, "conditions": written(*conditions)}
    return {"metadata": {"name": "c1", "uid": "u"}, "spec": {"hubAcceptsClient": True}, "status": status}


def addon(*conditions: Condition) -> dict[str, Any]:
    return {"metadata": {"name": "metrics", "namespace": "c1", "uid": "a"}, "status": {"conditions": written(*conditions)}}


@pytest.fixture
def agents() -> Agents:
    agents = Agents()
    agents.chronicle.listed(MANAGED_CLUSTERS, CLUSTER, cluster())
    return agents


def test_versions_clocks_and_deletions_of_clusters_are_reported_when_they_change(agents: Agents) -> None:
    assert agents.cluster(cluster("v1.35.0")) == []  # the first that is known is no change
    assert agents.cluster(cluster("v1.36.0")) == [("KubernetesVersionChanged", "Normal")]
    assert agents.recorded[0].message == "Kubernetes v1.36.0; it was v1.35.0"
    assert agents.cluster(cluster("")) == []  # its API server is away
    assert agents.cluster(cluster("v1.36.0")) == []
    wrong, right = cluster("", clocksync.OUT_OF_SYNC), cluster("", clocksync.SYNCED)
    assert [agents.cluster(each) for each in (right, wrong, wrong, right)] == [
        [],
        [("ManagedClusterClockOutOfSync", "Warning")],
        [],
        [("ManagedClusterClockSynced", "Normal")],
    ]
    metadata = {"name": "c1", "uid": "u", "deletionTimestamp": "2026-11-22T10:00:00Z", "finalizers": ["example.org/backup"]}
    assert agents.cluster({**right, "metadata": metadata}) == [("DeletionBegun", "Normal")]
    assert agents.recorded[0].message == "is being deleted by agent: it waits for example.org/backup"


def test_failures_of_addons_are_reported_once_each_and_not_those_of_a_silent_cluster(agents: Agents) -> None:
    silenced = in_step(addon(WELL), SILENT, ManualClock().now())
    for nothing in (addon(), addon(NOT_THERE_YET), addon(WELL), silenced, in_step(silenced, None, ManualClock().now())):
        assert agents.addon(nothing) == [], "a silent cluster has its own alarm"
    assert agents.addon(addon(ILL)) == [("AddOnUnavailable", "Warning")]
    assert (agents.recorded[0].cluster, agents.recorded[0].message) == ("c1", "ProbeFailed: no endpoint")
    assert (agents.addon(addon(ILL)), agents.addon(addon(WELL))) == ([], [("AddOnAvailable", "Normal")])
    agents.addon(addon(ILL))
    assert agents.change(ADDONS, ADDON, addon(ILL), ChangeType.DELETED) == []
    assert agents.addon(addon(WELL)) == [], "one that comes again begins anew"
    late = Agents()
    late.chronicle.listed(ADDONS, ADDON, addon(ILL))
    assert late.addon(addon(ILL)) == [], "what was ill at the start is no news"
    assert late.addon(addon(WELL)) == [("AddOnAvailable", "Normal")]
    with capture_logs() as lines:
        late.chronicle.listed(Kind("leases.coordination.k8s.io"), Key("", "x"), {})
    assert lines == [], "kinds without a story are passed over"


def news(number: int) -> EventRecord:
    return EventRecord("east", EAST, f"Reason{number}", "m")


def reasons(hub: Hub) -> set[str]:
    return {each.document["reason"] for each in hub.store.transact(lambda tx: tx.objects.find(EVENTS, Query())).items}


async def test_news_go_together_and_the_oldest_are_lost_first_where_there_are_too_many(hub: Hub) -> None:
    small = Recorder(hub.store, kept=100)
    for number in range(102):
        small.add(news(1000 + number))
    while await small.reconcile("all") is not None:
        pass
    assert reasons(hub) == {f"Reason{1000 + number}" for number in range(2, 102)}
    subject = Recorder(hub.store)
    for number in range(AT_MOST + 1):
        subject.add(news(number))
    assert await subject.reconcile("all") is not None
    assert (len(reasons(hub)), await subject.reconcile("all")) == (100 + AT_MOST, None)
    assert len(reasons(hub)) == 100 + AT_MOST + 1


async def test_news_that_wait_hold_no_whole_objects_and_outlast_an_outage_of_the_database(hub: Hub) -> None:
    subject = Recorder(hub.store)
    subject.add(EventRecord("east", {**EAST, "apiVersion": "v1", "status": {"much": ["x"] * 100}}, "Reason1", "m"))
    assert "status" not in subject.waiting[0].about
    hub.store.failure = UnavailableError("away")
    await check_refusal_of(UnavailableError, subject.reconcile("all"))
    hub.store.failure = None
    await subject.reconcile("all")
    (event,) = hub.store.transact(lambda tx: tx.objects.find(EVENTS, Query())).items
    assert event.document["involvedObject"] == {"apiVersion": "v1", "kind": "ManagedCluster", "name": "east", "uid": "u-1"}
    subject.add(news(2))
    await subject.reconcile("all")
    assert reasons(hub) == {"Reason1", "Reason2"}


async def test_one_that_cannot_be_recorded_costs_no_other(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    error = InvalidError("it breaks a rule")
    failing(monkeypatch, events, "record", error, lambda batch, _: any(each.reason == "Reason3" for each in batch))
    subject = Recorder(hub.store)
    for number in range(AT_MOST + 5):
        subject.add(news(number))
    with structlog.testing.capture_logs() as lines:
        steps = 1
        while await subject.reconcile("all") is not None:
            steps += 1
    assert len(reasons(hub)) == AT_MOST + 4
    assert steps == 1 + AT_MOST + 1, "those of the portion alone, and the rest together again"
    assert [(line["event"], line["reason"]) for line in lines] == [("an Event cannot be recorded", "Reason3")]


HOUR, DAY = timedelta(hours=1), timedelta(days=1)
KEEPING = RetentionPeriods(HOUR, 30 * DAY, 2**30, HOUR, 90 * DAY, 90 * DAY, reserve=0)


def relabel(hub: Hub, times: int, every: timedelta) -> None:
    """A cluster that is accepted and denied in turns: two changes a time."""
    for _ in range(times):
        hub.accept("c1")
        hub.accept("c1", accepted=False)
        hub.clock.advance(every)


def compaction(
    hub: Hub, keeping: RetentionPeriods = KEEPING, tell: Callable[[EventRecord], None] = lambda _told: None
) -> Compaction:
    """Believes the clock from the beginning."""
    return Compaction(hub.store, keeping, ClockGuard(hub.clock, timedelta()), tell)


def entry_of(at: datetime) -> AuditEntry:
    return AuditEntry("one", 1, at, AuditFields("ann", "get"), b"{}")


async def settle(subject: Compaction, until: timedelta = timedelta()) -> int:
    """Until nothing more is due now; how many steps that took. `until`: it comes again after that or later."""
    steps = 1
    while (again := await subject.reconcile("all")) is not None:
        if again > PAUSE:
            assert again >= until
            return steps
        steps += 1
        assert steps < 1_000
    return steps


async def test_the_past_is_kept_for_its_time_and_watches_for_theirs(hub: Hub) -> None:
    hub.join("c1")
    relabel(hub, 40, DAY)
    subject = compaction(hub)
    await settle(subject)
    assert present(subject.status).began == hub.clock.now() - 30 * DAY
    assert hub.store.transact(lambda tx: tx.changes.position(tx.now - 31 * DAY))
    check_refusal(ExpiredError, hub.store.transact, lambda tx: tx.changes.position(tx.now - 32 * DAY))
    check_refusal(ExpiredError, hub.store.transact, lambda tx: tx.changes.since(tx.changes.position(tx.now - 2 * DAY)))
    hub.join("c2")
    hub.clock.advance(HOUR - timedelta(seconds=1))
    newest = hub.revision
    await settle(subject)
    assert hub.store.transact(lambda tx: tx.changes.since(newest - 1))[-1].key.name == "c2"


async def test_a_log_that_is_too_large_loses_its_oldest_past_and_nothing_a_watch_needs(hub: Hub) -> None:
    recorded: list[EventRecord] = []
    hub.join("c1")
    relabel(hub, 20, DAY)
    everything = compaction(hub)
    await settle(everything)
    half = present(everything.status).ledger.bytes // 2
    subject = compaction(hub, replace(KEEPING, history_bytes=half), recorded.append)
    await settle(subject)
    assert present(subject.status).ledger.bytes <= half
    assert [each.reason for each in recorded] == [rules.SHORTENED]
    relabel(hub, 1, timedelta())
    newest = hub.revision
    await settle(compaction(hub, replace(KEEPING, history_bytes=0)))
    assert [change.revision for change in hub.store.transact(lambda tx: tx.changes.since(newest - 2))] == [newest - 1, newest]


async def test_a_disk_that_fills_up_costs_history_and_is_reported(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[EventRecord] = []
    hub.join("c1")
    relabel(hub, 5, DAY)
    subject = compaction(hub, replace(KEEPING, reserve=100), recorded.append)
    hub.store.failure = UnavailableError("the database is away")
    await check_refusal_of(UnavailableError, subject.reconcile("all"))
    hub.store.failure = None
    await settle(subject)
    assert hub.store.transact(lambda tx: tx.changes.ledger()).compacted, "what was due is due again"
    for free, expected in ((200, []), (199, [rules.FILLS_UP]), (99, [rules.SHORTENED, rules.FULL]), (300, [])):
        monkeypatch.setattr("hub.store.writer.transaction.volume", lambda _connection, free=free: Volume(0, free=free))
        recorded.clear()
        await settle(subject)
        assert [each.reason for each in recorded] == expected
    ledger = hub.store.transact(lambda tx: tx.changes.ledger())
    assert ledger.floor == ledger.compacted, "with no room at all nothing is kept but what watches need"


async def test_each_transaction_passes_a_portion_and_no_part_asks_in_vain(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many steps the log takes: the caller holds the lock that all writers wait for."""
    hub.join("c1")
    relabel(hub, 100, timedelta(seconds=1))
    hub.clock.advance(2 * HOUR)
    monkeypatch.setattr(compaction_module, "CHANGES_AT_ONCE", 20)
    written = transactions_of(hub.store, monkeypatch)
    steps = await settle(compaction(hub, replace(KEEPING, history=timedelta())))
    of_the_log, others = 4, 3
    assert steps >= 10
    assert len(written) <= of_the_log * steps + others
    ledger = hub.store.transact(lambda tx: tx.changes.ledger())
    assert (ledger.compacted, ledger.floor) == (hub.revision, hub.revision)


async def test_each_portion_of_old_events_and_requests_ends_with_a_pause(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    writes = transactions_of(hub.store, monkeypatch)

    async def pause(_seconds: float) -> None:
        writes.append("pause")

    for portion in ("PORTION", "REMOVED_AT_ONCE"):
        monkeypatch.setattr(compaction_module, portion, 1)
    hub.join("c1")
    for reason in ("One", "Two"):
        hub.submit("c1")
        hub.store.transact(events.record, [EventRecord("c1", EAST, reason, "")], "hub")
    hub.clock.advance(31 * DAY)
    monkeypatch.setattr("asyncio.sleep", pause)
    for subject in (compaction(hub), RequestCleanup(hub.store, RequestRetention(), HOUR, ClockGuard(hub.clock, timedelta()))):
        writes.clear()
        await subject.reconcile("all")
        assert [each == "pause" for each in writes[:4]] == [False, True, False, True]


async def test_a_clock_that_is_a_year_ahead_for_two_minutes_costs_nothing(hub: Hub) -> None:
    hub.join("c1")
    hub.store.transact(lambda tx: tx.audit.add([entry_of(hub.clock.now())]))
    relabel(hub, 10, timedelta(minutes=1))
    before = hub.store.transact(lambda tx: tx.changes.ledger())
    subject = Compaction(hub.store, KEEPING, ClockGuard(hub.clock))
    for jump in (timedelta(), 400 * DAY, timedelta(), -400 * DAY):
        hub.clock.set_forward(jump)
        await settle(subject, until=SETTLED - timedelta(minutes=2))
        hub.clock.advance(timedelta(minutes=2))
    after = hub.store.transact(lambda tx: tx.changes.ledger())
    assert (after.compacted, after.floor) == (before.compacted, before.floor)
    assert len(hub.store.transact(lambda tx: tx.audit.find(AuditQuery()))) == 1
    hub.clock.advance(2 * HOUR)
    await settle(subject)
    assert hub.store.transact(lambda tx: tx.changes.ledger()).compacted, "what is old goes, later"


async def test_what_a_clock_that_was_ahead_has_written_holds_up_nothing(hub: Hub) -> None:
    hub.join("c1")
    hub.clock.set_forward(400 * DAY)
    relabel(hub, 5, timedelta(seconds=1))
    ahead = hub.revision
    hub.store.transact(lambda tx: tx.audit.add([entry_of(hub.clock.now())]))
    hub.clock.set_forward(-400 * DAY)
    hub.store.transact(lambda tx: tx.audit.add([replace(entry_of(hub.clock.now()), sequence=2)]))
    relabel(hub, 2, DAY)
    for passed, left in ((KEEPING.records, [1]), (390 * DAY, [1]), (10 * DAY, [])):
        hub.clock.advance(passed)
        await settle(compaction(hub))
        assert hub.store.transact(lambda tx: tx.changes.ledger()).compacted >= ahead
        assert [entry.sequence for entry in hub.store.transact(lambda tx: tx.audit.find(AuditQuery()))] == left


async def test_audit_records_above_their_size_go_early_and_not_for_strangers(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction_module, "STRANGERS_KEPT", 100)
    monkeypatch.setattr(compaction_module, "SHORTENED_AT_ONCE", 2)
    known = [replace(entry_of(hub.clock.now()), sequence=number, document=b"x" * 800) for number in range(1, 11)]
    for entries in (
        known,
        [replace(entry_of(hub.clock.now()), replica="one.refused", sequence=number) for number in range(1, 501)],
    ):
        hub.store.transact(lambda tx, entries: tx.audit.add(entries), entries)
    others = [replace(each, replica="two", fields=AuditFields("bob", "get")) for each in known[:5]]
    recorded: list[EventRecord] = []

    async def left(size: int) -> tuple[int, int]:
        await settle(compaction(hub, replace(KEEPING, records_bytes=size), recorded.append))
        replicas = [entry.replica for entry in hub.store.transact(lambda tx: tx.audit.find(AuditQuery()))]
        return replicas.count("one"), replicas.count("one.refused")

    assert (await left(20_000), recorded) == ((10, 100), [])
    assert (await left(10 * (BYTES_OF_A_ROW + 800)), await left(9_999)) == ((10, 100), (8, 100))
    assert [each.reason for each in recorded] == [rules.AUDIT_FILLS_UP, rules.AUDIT_SHORTENED]
    hub.store.transact(lambda tx: tx.audit.add([replace(each, at=each.at - DAY) for each in others]))
    assert await left(9_999) == (4, 100), "the caller with most of them loses its own first, although others' are older"
    assert sum(size.records for size in hub.store.transact(audit.sizes)[1].values()) == 9


def test_a_server_that_does_not_say_what_is_free_warns_of_nothing() -> None:
    assert list(warnings(replace(KEEPING, reserve=2**40), Volume(2**40), early=False)) == []
    assert [event.reason for event in warnings(replace(KEEPING, reserve=9), Volume(100, 5, 10), early=False)] == [
        rules.FILLS_UP
    ]
