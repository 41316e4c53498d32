"""What an agent reports beside its cluster's state: namespaces, add-ons, tokens, events, its clock."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from hub.api import events as event_rules, namespaces as namespace_rules
from hub.api.certificates import CertificateRecord
from hub.api.events import WARNING, EventRecord
from hub.api.managedclusters import availability as clocksync, cluster as rules
from hub.api.managedclusters.cluster import ClientConfig, StatusReport
from hub.api.meta import document as doc
from hub.api.meta.change import ADDONS, EVENTS
from hub.grpc_door.messages import decode_report, read_view
from hub.grpc_door.registration.servicer import issue_addon_token
from hub.grpc_door.session.report_writer import SKEW_TOLERANCE, Clocks
from hub.grpc_door.session.reports import EVENT_BURST, AgentEvents
from hub.registry import events, namespaces
from hub.registry.generic import objects
from hub.registry.managedclusteraddons import service as addons
from hub.registry.managedclusters import service
from machinery.errors import ConflictError, ForbiddenError, InvalidError, UnavailableError
from machinery.identity import AddOnName, ClusterName
from machinery.meta import conditions
from machinery.meta.conditions import Condition
from machinery.meta.objects import Key, Query, StoredObject
from machinery.runtime.clock import ManualClock
from machinery.wire.registration.v1 import registration_pb2 as registration
from machinery.wire.session.v1 import session_pb2 as wire
from tests.checks import check_refusal, check_refusal_of, check_results, present
from tests.fakes.inline_store import InlineStore
from tests.fakes.registration import EDGE, Newcomer, change_cluster

AGENT = "system:open-cluster-management:edge:agent"
LOGS = AddOnName("logs")
APPLIED = Condition("NamespaceAvailable", "True", "NamespaceApplied", "")
HOUR = timedelta(hours=1)
EAST = {"apiVersion": "cluster/v1", "kind": "ManagedCluster", "metadata": {"name": "east", "uid": "u-1"}}
ACCEPTED = EventRecord("east", EAST, "Accepted", "accepted by jane")
MINUTE = timedelta(minutes=1)
GRACE = 5 * MINUTE
NONE = timedelta()
SYNCED, OUT = ("True", "ManagedClusterClockSynced"), ("False", "ManagedClusterClockOutOfSync")
MICRO = timedelta(microseconds=1)


@pytest.fixture
def record(newcomer: Newcomer) -> CertificateRecord:
    return newcomer.registered()


@pytest.fixture
def edge(record: CertificateRecord) -> ClusterName:
    return present(record.cluster)


def document_of(store: InlineStore, name: ClusterName) -> dict[str, Any]:
    return dict(store.transact(service.find, name).document)


def edit(store: InlineStore, name: ClusterName, **status: Any) -> None:
    change_cluster(store, lambda old: doc.with_status(old, **status), name)


def with_add_on(store: InlineStore, cluster: ClusterName, *registrations: dict[str, Any], **status: Any) -> None:
    document = {
        "apiVersion": "addon.open-cluster-management.io/v1beta1",
        "kind": "ManagedClusterAddOn",
        "metadata": {"name": LOGS, "namespace": cluster},
        "status": {"registrations": list(registrations), **status},
    }
    store.transact(lambda tx: addons.put(tx, document, tx.objects.get(ADDONS, Key(cluster, LOGS)), "admin"))


def add_on(store: InlineStore, cluster: ClusterName) -> StoredObject:
    return store.transact(addons.find, cluster, LOGS)


def report(store: InlineStore, cluster: ClusterName, reported: StatusReport) -> None:
    store.transact(service.report_status, cluster, reported, AGENT)


def test_report_of_namespaces_is_kept_for_those_of_its_sets_once(store: InlineStore, edge: ClusterName) -> None:
    edit(store, edge, managedNamespaces=[{"clusterSet": "s", "name": "a"}, {"clusterSet": "s", "name": "b"}])
    desired = wire.Desired.FromString(store.transact(read_view, edge).desired)
    assert [(one.cluster_set, one.name) for one in desired.managed_namespaces] == [("s", "a"), ("s", "b")]
    message = wire.StatusReport()
    for name in ("a", "unwanted"):
        entry = message.managed_namespaces.add(name=name, cluster_set="s")
        entry.conditions.add(type=APPLIED.type, status=APPLIED.status, reason=APPLIED.reason)
    received = decode_report(message)
    assert received.namespaces == {("s", "a"): (APPLIED,), ("s", "unwanted"): (APPLIED,)}
    report(store, edge, received)
    first, second = document_of(store, edge)["status"]["managedNamespaces"]
    assert (first["conditions"][0]["reason"], second) == ("NamespaceApplied", {"clusterSet": "s", "name": "b"})
    revision = store.state.revision
    report(store, edge, received)
    wrong = StatusReport(namespaces={("s", "a"): (Condition("NamespaceAvailable", "Maybe", "x", ""),)})
    check_refusal(InvalidError, report, store, edge, wrong, match="not True, False or Unknown")
    assert store.state.revision == revision


def test_capacity_shrinks_by_what_the_agent_reported_and_keeps_what_others_added(store: InlineStore, edge: ClusterName) -> None:
    """OCM keeps every resource that was ever there."""
    both = {"cpu": "4", "gpu": "1"}
    report(store, edge, StatusReport(capacity=both, allocatable=both, node_count=2))
    edit(store, edge, capacity={**document_of(store, edge)["status"]["capacity"], "sockets": "2"})
    report(store, edge, StatusReport(capacity={"cpu": "4"}, allocatable={"cpu": "4"}, node_count=1))
    assert document_of(store, edge)["status"]["capacity"] == {"cpu": "4", "sockets": "2", "nodes": "1"}
    report(store, edge, StatusReport(capacity={"cpu": "abc", "memory": "1Gi"}, allocatable={"cpu": "1\n", "memory": ""}))
    status = document_of(store, edge)["status"]
    assert (status["capacity"], status["allocatable"]) == ({"sockets": "2", "memory": "1Gi"}, {}), "Go reads only quantities"
    assert event_rules.seen_again({"count": 2**31 - 1}, ManualClock().now())["count"] == 2**31 - 1


def test_a_new_ca_bundle_of_a_known_url_is_taken_and_urls_of_others_stay(store: InlineStore, edge: ClusterName) -> None:
    """OCM's agent sends it once, at the first join."""

    def add_theirs(old: Any) -> dict[str, Any]:
        known = doc.sequence(old, "spec", "managedClusterClientConfigs")
        return doc.with_spec(old, managedClusterClientConfigs=[{"url": "https://theirs"}, *known])

    report(store, edge, StatusReport(client_configs=(ClientConfig("https://mine", b"old"),)))
    change_cluster(store, add_theirs, edge)
    report(store, edge, StatusReport(client_configs=(ClientConfig("https://mine", b"new"),)))
    configs = document_of(store, edge)["spec"]["managedClusterClientConfigs"]
    assert configs == [{"url": "https://theirs"}, {"url": "https://mine", "caBundle": "bmV3"}]


def test_the_driver_is_noted_in_every_registration_at_the_hub(store: InlineStore, edge: ClusterName) -> None:
    """OCM notes it in the first one alone."""
    custom = {"type": "customSigner", "customSigner": {"signerName": "example.com/s"}}
    with_add_on(store, edge, {"type": "kubeClient"}, custom, {"type": "kubeClient", "kubeClient": {"driver": "csr"}})
    store.transact(lambda tx: addons.report(tx, edge, LOGS, (), AGENT, driver="token"))
    noted = add_on(store, edge).document["status"]["registrations"]
    assert ([doc.mapping(one, "kubeClient").get("driver") for one in noted], noted[1]) == (["token", None, "token"], custom)
    assert noted[0]["kubeClient"]["subject"] == {"user": "system:serviceaccount:edge:logs-agent"}
    store.transact(lambda tx: addons.report(tx, edge, LOGS, (), AGENT, driver="csr"))
    assert add_on(store, edge).document["status"]["registrations"][0]["kubeClient"] == {"driver": "csr"}
    with pytest.raises(InvalidError, match="csr, token"):
        store.transact(lambda tx: addons.report(tx, edge, LOGS, (), AGENT, driver="awsirsa"))


async def test_token_of_an_add_on_is_issued_to_an_accepted_cluster_for_a_time_within_bounds(
    store: InlineStore, edge: ClusterName, newcomer: Newcomer, record: CertificateRecord
) -> None:
    async def seconds(asked: int = 0) -> float:
        request = registration.IssueAddOnTokenRequest(cluster_name=EDGE, addon_name=LOGS)
        if asked:
            request.requested_duration.FromTimedelta(timedelta(seconds=asked))
        sign = lambda *_names, begin, end: str((end - begin).total_seconds())  # noqa: E731 - the lifetime is all that counts
        parts: Any = SimpleNamespace(store=store, tokens=sign, clock=ManualClock())
        return float((await issue_addon_token(parts, request, record)).token)

    with_add_on(store, edge, {"type": "kubeClient", "kubeClient": {"driver": "token"}})
    await check_refusal_of(ConflictError, seconds(), match="not ready yet")
    store.transact(addons.update_token, Key(edge, LOGS), "hub")
    assert [await seconds(asked) for asked in (0, 7200, 10**9)] == [3600, 7200, 366 * 86400]
    await check_refusal_of(InvalidError, seconds(599), match="valid for at least 600 s")
    newcomer.accept(accepted=False)
    await check_refusal_of(ForbiddenError, seconds(), match="not accepted")


def event(reason: str = "Truncated", **fields: str) -> wire.Event:
    return wire.Event(**{"type": "Warning", "reason": reason, "message": "claims are left out", **fields})


def stored_events(store: InlineStore) -> list[dict[str, Any]]:
    return [dict(each.document) for each in store.transact(lambda tx: tx.objects.find(EVENTS, Query())).items]


async def test_events_of_an_agent_are_counted_bounded_and_marked_as_its_own(store: InlineStore, edge: ClusterName) -> None:
    telling = AgentEvents(store, ManualClock(), edge, AGENT)
    for wrong in (event(type="Fatal"), event(""), event("two words"), event("X" * 129), event("Gone", addon_name="none")):
        await telling.take(wrong)
    assert stored_events(store) == []
    telling = AgentEvents(store, ManualClock(), edge, AGENT)
    await telling.take(event())
    await telling.take(event(message="x" * 5000))
    await telling.take(event())
    long, one = sorted(stored_events(store), key=lambda each: each["count"])
    assert (len(long["message"]), one["metadata"]["namespace"], one["count"], one["type"]) == (1024, edge, 2, "Warning")
    assert (one["reportingComponent"], one["involvedObject"]["kind"]) == ("registration-agent", "ManagedCluster")
    with_add_on(store, edge)
    await telling.take(event("Failed", addon_name=LOGS))
    assert {each["involvedObject"]["kind"] for each in stored_events(store)} == {"ManagedCluster", "ManagedClusterAddOn"}
    telling, before = AgentEvents(store, ManualClock(), edge, AGENT), len(stored_events(store))
    for number in range(3 * EVENT_BURST):
        await telling.take(event(f"Reason{number}"))
    assert len(stored_events(store)) == before + EVENT_BURST
    about = document_of(store, edge)
    assert EventRecord(edge, about, "X", "y").name != EventRecord(edge, about, "X", "y", component="registration-agent").name


def tell(store: InlineStore, *recorded: EventRecord) -> None:
    store.transact(events.record, recorded, "hub")


def with_namespace(store: InlineStore, name: str = "east") -> None:
    store.transact(lambda tx: namespaces.put(tx, namespace_rules.namespace(name), None, "admin"))


def expire(store: InlineStore, limit: int = 10) -> int:
    return store.transact(events.expire, store.transact(events.due, HOUR, limit=limit), "hub")


def test_event_of_a_cluster_is_in_its_namespace_or_else_in_the_hubs(store: InlineStore) -> None:
    hubs = "open-cluster-management-hub"

    def events_of() -> set[tuple[str, str]]:
        return {(each["reason"], each["metadata"]["namespace"]) for each in stored_events(store)}

    tell(store, ACCEPTED)
    assert events_of() == {("Accepted", hubs)}
    with_namespace(store)
    tell(store, ACCEPTED, EventRecord("east", EAST, "Lost", "not heard of", WARNING))
    assert events_of() == {("Accepted", hubs), ("Accepted", "east"), ("Lost", "east")}
    (lost,) = (each for each in stored_events(store) if each["reason"] == "Lost")
    assert (lost["type"], lost["message"]) == ("Warning", "not heard of")
    assert lost["involvedObject"] == {"apiVersion": "cluster/v1", "kind": "ManagedCluster", "name": "east", "uid": "u-1"}
    assert {each["type"] for each in stored_events(store) if each["reason"] == "Accepted"} == {"Normal"}
    store.transact(lambda tx: namespaces.remove(tx, present(namespaces.get(tx, "east")), "admin"))
    tell(store, EventRecord("east", EAST, "Late", "m"))
    assert ("Late", hubs) in events_of(), "a terminating namespace takes no events"


def test_event_expires_an_hour_after_it_was_last_seen_and_no_other_kind_does(store: InlineStore, clock: ManualClock) -> None:
    with_namespace(store)
    tell(store, ACCEPTED, EventRecord("east", EAST, "Denied", "denied"))
    clock.advance(timedelta(minutes=40))
    tell(store, ACCEPTED)
    clock.advance(timedelta(minutes=40))
    assert expire(store) == 1
    (again,) = stored_events(store)
    assert (again["count"], again["firstTimestamp"] < again["lastTimestamp"]) == (2, True)
    assert ([each["reason"] for each in stored_events(store)], expire(store)) == (["Accepted"], 0)
    tell(store, EventRecord("east", EAST, "Denied", "denied"))
    clock.advance(2 * HOUR)
    due = store.transact(events.due, HOUR, limit=10)
    tell(store, ACCEPTED)
    assert store.transact(events.expire, due, "hub") == 1, "one is seen again in the meantime"
    assert [each["reason"] for each in stored_events(store)] == ["Accepted"]
    tell(store, *(EventRecord("east", EAST, f"Reason{number}", "m") for number in range(4)))
    clock.advance(2 * HOUR)
    assert [expire(store, limit=2) for _ in range(4)] == [2, 2, 1, 0]
    assert store.transact(namespaces.get, "east") is not None


def test_an_event_outlives_the_compaction_of_its_change(store: InlineStore, clock: ManualClock) -> None:
    tell(store, ACCEPTED)
    clock.advance(timedelta(minutes=50))
    store.transact(lambda tx: objects.put(tx, EVENTS, {"metadata": {"name": "b", "namespace": "east"}}, None, "x"))
    store.transact(lambda tx: tx.changes.compact(tx.now))
    clock.advance(timedelta(minutes=20))
    assert (expire(store), [each["metadata"]["name"] for each in stored_events(store)]) == (1, ["b"])


@pytest.fixture
def accepted(newcomer: Newcomer, store: InlineStore) -> InlineStore:
    newcomer.accepted()
    return store


def shown(store: InlineStore) -> tuple[str, str] | None:
    document = store.transact(service.find, EDGE).document
    found = conditions.find(document.get("status", {}).get("conditions", []), conditions.CLOCK_SYNCED)
    return (found.status, found.reason) if found else None


def note(store: InlineStore, skew: timedelta, limit: timedelta = NONE) -> tuple[str, str] | None:
    store.transact(service.note_clock_skew, EDGE, skew, limit, "hub")
    return shown(store)


def test_clock_is_wrong_from_the_limit_on_unless_an_annotation_turns_that_off(accepted: InlineStore) -> None:
    rows = (
        *((NONE, NONE, SYNCED), (GRACE - MICRO, NONE, SYNCED), (MICRO - GRACE, NONE, SYNCED)),
        *((GRACE, NONE, OUT), (-GRACE, NONE, OUT), (MINUTE, 2 * MINUTE, SYNCED), (2 * MINUTE, 2 * MINUTE, OUT)),
    )
    check_results(lambda skew, limit: note(accepted, skew, limit), rows)
    change_cluster(accepted, lambda old: doc.with_annotations(old, {clocksync.SKIPPED: "yes"}))
    assert note(accepted, 2 * GRACE) == OUT
    change_cluster(accepted, lambda old: doc.with_annotations(old, {clocksync.SKIPPED: "true"}))
    assert note(accepted, 2 * GRACE) == SYNCED


def test_only_news_of_accepted_clusters_is_written_beside_the_status(store: InlineStore, newcomer: Newcomer) -> None:
    store.transact(service.note_clock_skew, ClusterName("gone"), NONE, NONE, "hub")
    newcomer.join(newcomer.bootstrap())
    assert note(store, 2 * GRACE) is None
    newcomer.accept()
    note(store, NONE)
    before = store.state.revision
    note(store, MINUTE)
    assert store.state.revision == before
    note(store, 2 * GRACE)
    store.transact(service.report_status, EDGE, StatusReport(conditions=(rules.AVAILABLE,), kubernetes_version="v1"), "agent")
    assert (store.transact(service.find, EDGE).document["status"]["version"]["kubernetes"], shown(store)) == ("v1", OUT)


async def test_a_clock_that_goes_as_before_is_reported_once_in_a_session_and_anew_in_the_next(accepted: InlineStore) -> None:
    clocks = Clocks(accepted, NONE)
    clocks.note(EDGE, 2 * GRACE)
    await clocks.write()
    accepted.transact(service.set_condition, EDGE, clocksync.SYNCED, "test")
    clocks.note(EDGE, 2 * GRACE + SKEW_TOLERANCE - MICRO, again=True)
    await clocks.write()
    assert shown(accepted) == SYNCED, "nothing was written"
    clocks.note(EDGE, 2 * GRACE)
    await clocks.write()
    assert shown(accepted) == OUT
    clocks.note(EDGE, NONE, again=True)
    await clocks.write()
    assert shown(accepted) == SYNCED


async def test_clock_of_a_session_that_opened_before_the_acceptance_is_reported_after_it(
    store: InlineStore, newcomer: Newcomer, clock: ManualClock
) -> None:
    newcomer.join(newcomer.bootstrap())
    clocks, sent = Clocks(store, NONE), Timestamp(seconds=int((clock.now() + 2 * GRACE).timestamp()))
    clocks.note(EDGE, 2 * GRACE)  # of an earlier cluster with this name
    hello, report = wire.Hello(agent_time=sent), wire.StatusReport(agent_time=sent)
    for message, accepted in ((hello, False), (report, False), (report, True)):
        newcomer.accept(accepted=accepted)
        clocks.compare(EDGE, message, clock.now(), accepted=accepted)
        await clocks.write()
        assert shown(store) == (OUT if accepted else None)


async def test_what_cannot_be_written_now_is_written_later(accepted: InlineStore) -> None:
    clocks = Clocks(accepted, NONE)
    accepted.failure = UnavailableError("away")
    clocks.note(EDGE, 2 * GRACE)
    await check_refusal_of(UnavailableError, clocks.write())
    accepted.failure = None
    assert shown(accepted) is None
    await clocks.write()
    assert shown(accepted) == OUT
