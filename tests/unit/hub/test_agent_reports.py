"""What an agent tells beside its cluster's state: namespaces of sets, how add-ons identify themselves, events; and tokens."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hub.domain import addon_token
from hub.domain import document as doc
from hub.domain.certificate import CertificateRecord
from hub.domain.change import ADDONS, EVENTS, Key, Query, StoredObject
from hub.domain.cluster import ClientConfig, StatusReport
from hub.domain.event import Told
from hub.ports import Transaction
from hub.rpc import addon_tokens as door
from hub.rpc.messages import read_view, report_of
from hub.rpc.telling import AT_ONCE, Telling
from hub.services import addon_tokens, addons, clusters
from machinery.clock import ManualClock
from machinery.conditions import Condition
from machinery.errors import ConflictError, ForbiddenError, InvalidError, NotFoundError
from machinery.identity import AddOnName, ClusterName
from machinery.wire.registration.v1 import registration_pb2 as registration
from machinery.wire.session.v1 import session_pb2 as wire
from tests.fakes.memory_store import MemoryStore
from tests.fakes.registration import Newcomer

AGENT = "system:open-cluster-management:edge:agent"
LOGS = AddOnName("logs")
APPLIED = Condition("NamespaceAvailable", "True", "NamespaceApplied", "")
BY_TOKEN = {"type": "kubeClient", "kubeClient": {"driver": "token"}}
BY_CERTIFICATE = {"type": "kubeClient", "kubeClient": {"driver": "csr"}}


@pytest.fixture
def record(newcomer: Newcomer) -> CertificateRecord:
    return newcomer.registered()


@pytest.fixture
def edge(record: CertificateRecord) -> ClusterName:
    assert record.cluster is not None
    return record.cluster


def document_of(store: MemoryStore, name: ClusterName) -> dict[str, Any]:
    return dict(store.transact(clusters.find, name).document)


def edit(store: MemoryStore, name: ClusterName, **status: Any) -> None:
    def change(tx: Transaction) -> None:
        stored = clusters.find(tx, name)
        clusters.put(tx, doc.with_status(stored.document, **status), stored, "admin")

    store.transact(change)


def with_add_on(store: MemoryStore, cluster: ClusterName, *registrations: dict[str, Any], **status: Any) -> None:
    document = {
        "apiVersion": "addon.open-cluster-management.io/v1beta1",
        "kind": "ManagedClusterAddOn",
        "metadata": {"name": LOGS, "namespace": cluster},
        "status": {"registrations": list(registrations), **status},
    }
    store.transact(lambda tx: addons.put(tx, document, tx.objects.get(ADDONS, Key(cluster, LOGS)), "admin"))


def add_on(store: MemoryStore, cluster: ClusterName) -> StoredObject:
    return store.transact(addons.find, cluster, LOGS)


def report(store: MemoryStore, cluster: ClusterName, told: StatusReport) -> None:
    store.transact(clusters.report_status, cluster, told, AGENT)


def test_what_the_agent_says_of_a_wanted_namespace_is_kept_and_of_another_is_nothing(
    store: MemoryStore, edge: ClusterName
) -> None:
    edit(store, edge, managedNamespaces=[{"clusterSet": "s", "name": "a"}, {"clusterSet": "s", "name": "b"}])
    told = StatusReport(complete=False, namespaces={("s", "a"): (APPLIED,), ("s", "unwanted"): (APPLIED,)})
    report(store, edge, told)
    first, second = document_of(store, edge)["status"]["managedNamespaces"]
    assert first["conditions"][0]["reason"] == "NamespaceApplied"
    assert second == {"clusterSet": "s", "name": "b"}
    revision = store.state.revision
    report(store, edge, told)
    assert store.state.revision == revision


def test_the_namespaces_of_the_sets_are_told_to_the_agent(store: MemoryStore, edge: ClusterName) -> None:
    edit(store, edge, managedNamespaces=[{"clusterSet": "s", "name": "a"}])
    desired = wire.Desired.FromString(store.transact(read_view, edge).desired)
    assert [(one.cluster_set, one.name) for one in desired.managed_namespaces] == [("s", "a")]


def test_a_report_of_namespaces_is_read_from_the_wire() -> None:
    message = wire.StatusReport()
    told = message.managed_namespaces.add(name="a", cluster_set="s")
    told.conditions.add(type=APPLIED.type, status=APPLIED.status, reason=APPLIED.reason)
    assert report_of(message).namespaces == {("s", "a"): (APPLIED,)}


def test_a_condition_of_a_namespace_keeps_the_bounds_of_all_conditions(store: MemoryStore, edge: ClusterName) -> None:
    wrong = StatusReport(namespaces={("s", "a"): (Condition("NamespaceAvailable", "Maybe", "x", ""),)})
    with pytest.raises(InvalidError, match="not True, False or Unknown"):
        report(store, edge, wrong)


def test_capacity_shrinks_by_what_the_agent_told_and_keeps_what_others_added(store: MemoryStore, edge: ClusterName) -> None:
    """OCM keeps every resource that was ever there."""
    both = {"cpu": "4", "gpu": "1"}
    report(store, edge, StatusReport(capacity=both, allocatable=both, node_count=2))
    edit(store, edge, capacity={**document_of(store, edge)["status"]["capacity"], "sockets": "2"})
    report(store, edge, StatusReport(capacity={"cpu": "4"}, allocatable={"cpu": "4"}, node_count=1))
    assert document_of(store, edge)["status"]["capacity"] == {"cpu": "4", "sockets": "2", "nodes": "1"}


def test_a_new_ca_bundle_of_a_known_url_is_taken_and_urls_of_others_stay(store: MemoryStore, edge: ClusterName) -> None:
    """OCM's agent tells it once, at the first join."""

    def add_theirs(tx: Transaction) -> None:
        stored = clusters.find(tx, edge)
        known = doc.sequence(stored.document, "spec", "managedClusterClientConfigs")
        new = doc.with_spec(stored.document, managedClusterClientConfigs=[{"url": "https://theirs"}, *known])
        clusters.put(tx, new, stored, "admin")

    report(store, edge, StatusReport(client_configs=(ClientConfig("https://mine", b"old"),)))
    store.transact(add_theirs)
    report(store, edge, StatusReport(client_configs=(ClientConfig("https://mine", b"new"),)))
    configs = document_of(store, edge)["spec"]["managedClusterClientConfigs"]
    assert configs == [{"url": "https://theirs"}, {"url": "https://mine", "caBundle": "bmV3"}]


def test_the_driver_is_noted_in_every_registration_at_the_hub(store: MemoryStore, edge: ClusterName) -> None:
    """OCM notes it in the first one alone."""
    custom = {"type": "customSigner", "customSigner": {"signerName": "example.com/s"}}
    with_add_on(store, edge, {"type": "kubeClient"}, custom, BY_CERTIFICATE)
    store.transact(lambda tx: addons.report(tx, edge, LOGS, (), AGENT, driver="token"))
    noted = add_on(store, edge).document["status"]["registrations"]
    assert [doc.mapping(one, "kubeClient").get("driver") for one in noted] == ["token", None, "token"]
    assert noted[1] == custom
    assert noted[0]["kubeClient"]["subject"] == {"user": "system:serviceaccount:edge:logs-agent"}
    store.transact(lambda tx: addons.report(tx, edge, LOGS, (), AGENT, driver="csr"))
    assert add_on(store, edge).document["status"]["registrations"][0]["kubeClient"] == {"driver": "csr"}
    with pytest.raises(InvalidError, match="csr, token"):
        store.transact(lambda tx: addons.report(tx, edge, LOGS, (), AGENT, driver="awsirsa"))


def test_the_agent_hears_of_driver_and_account_of_an_add_on(store: MemoryStore, edge: ClusterName) -> None:
    ready = addon_token.ready(Key(edge, "logs-agent"), "uid-7")
    with_add_on(store, edge, BY_TOKEN, conditions=[ready.to_document()])
    (told,) = wire.Desired.FromString(store.transact(read_view, edge).desired).addons
    assert told.token_account_uid == "uid-7"  # noqa: S105 - the uid of an account
    assert [one.driver for one in told.registrations] == ["token"]


def signed(namespace: str, name: str, uid: str, *, begin: datetime, end: datetime) -> str:
    return f"{namespace}/{name}/{uid}/{(end - begin).total_seconds():.0f}"


async def issued(store: MemoryStore, record: CertificateRecord, seconds: int = 0, cluster: str = "edge") -> str:
    asked = registration.IssueAddOnTokenRequest(cluster_name=cluster, addon_name=LOGS)
    if seconds:
        asked.requested_duration.FromTimedelta(timedelta(seconds=seconds))
    answer = await door.issue(asked, record, store, signed, ManualClock())
    assert answer.expires_at.ToDatetime(UTC) > ManualClock().now()
    return answer.token


async def test_an_agent_gets_tokens_of_its_own_add_ons_account_and_of_nothing_else(
    store: MemoryStore, edge: ClusterName, record: CertificateRecord
) -> None:
    with_add_on(store, edge, BY_TOKEN)
    with pytest.raises(ConflictError, match="not ready yet"):
        await issued(store, record)
    store.transact(addon_tokens.settle, Key(edge, LOGS), "hub")
    uid = addon_token.ready_uid(add_on(store, edge).document)
    assert await issued(store, record) == f"edge/logs-agent/{uid}/3600"
    assert await issued(store, record, 7200) == f"edge/logs-agent/{uid}/7200"
    assert await issued(store, record, 10**9) == f"edge/logs-agent/{uid}/{366 * 86400}"
    with pytest.raises(InvalidError, match="600 s at least"):
        await issued(store, record, 599)
    with pytest.raises(ForbiddenError, match="cannot act for"):
        await issued(store, record, cluster="other")


async def test_no_token_is_issued_for_a_denied_cluster_a_missing_add_on_or_one_by_certificate(
    store: MemoryStore, edge: ClusterName, newcomer: Newcomer, record: CertificateRecord
) -> None:
    with pytest.raises(NotFoundError):
        await issued(store, record)
    with_add_on(store, edge, BY_CERTIFICATE)
    with pytest.raises(ConflictError, match="no registration by token"):
        await issued(store, record)
    with_add_on(store, edge, BY_TOKEN)
    store.transact(addon_tokens.settle, Key(edge, LOGS), "hub")
    newcomer.accept(accepted=False)
    with pytest.raises(ForbiddenError, match="not accepted"):
        await issued(store, record)


def event(reason: str = "Truncated", **fields: str) -> wire.Event:
    return wire.Event(**{"type": "Warning", "reason": reason, "message": "claims are left out", **fields})


def told(store: MemoryStore) -> list[dict[str, Any]]:
    return [dict(each.document) for each in store.transact(lambda tx: tx.objects.find(EVENTS, Query())).items]


async def test_what_an_agent_tells_is_an_event_in_its_clusters_namespace(store: MemoryStore, edge: ClusterName) -> None:
    telling = Telling(store, edge, AGENT)
    await telling.take(event())
    await telling.take(event())
    (one,) = told(store)
    assert (one["metadata"]["namespace"], one["count"], one["type"]) == (edge, 2, "Warning")
    assert one["reportingComponent"] == "registration-agent"
    assert one["involvedObject"]["kind"] == "ManagedCluster"
    with_add_on(store, edge)
    await telling.take(event("Failed", addon_name=LOGS))
    assert {each["involvedObject"]["kind"] for each in told(store)} == {"ManagedCluster", "ManagedClusterAddOn"}


async def test_an_agent_that_tells_without_end_is_heard_only_so_often(store: MemoryStore, edge: ClusterName) -> None:
    telling = Telling(store, edge, AGENT)
    for number in range(3 * AT_ONCE):
        await telling.take(event(f"Reason{number}"))
    assert len(told(store)) == AT_ONCE


async def test_what_is_no_event_is_dropped(store: MemoryStore, edge: ClusterName) -> None:
    telling = Telling(store, edge, AGENT)
    for wrong in (event(type="Fatal"), event(""), event("two words"), event("X" * 129), event("Gone", addon_name="none")):
        await telling.take(wrong)
    assert told(store) == []
    await telling.take(event(message="x" * 5000))
    assert len(told(store)[0]["message"]) == 1024


def test_an_agents_words_are_not_taken_for_the_hubs(store: MemoryStore, edge: ClusterName) -> None:
    about = document_of(store, edge)
    assert Told(edge, about, "X", "y").name != Told(edge, about, "X", "y", component="registration-agent").name
