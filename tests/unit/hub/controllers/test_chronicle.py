"""The hub's log tells what happens to clusters: who did it, to which, and what is next; and nothing twice."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from structlog.testing import capture_logs

from hub.controllers.chronicle import Chronicle
from hub.controllers.feed import Feed, Route
from hub.domain import cluster as cluster_rules
from hub.domain import document as doc
from hub.domain.change import MANAGED_CLUSTERS, REQUESTS, Key, Kind
from hub.domain.cluster import Joining, StatusReport
from hub.domain.clusterset import LABEL
from hub.domain.event import Told
from hub.ports import Transaction
from hub.services import clusters, requests
from machinery.identity import ClusterName
from tests.unit.hub.controllers.conftest import AGENT, Hub

C1 = ClusterName("c1")


class Reader:
    """A hub's log as it is written while somebody does something."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.told: list[Told] = []
        self.chronicle = Chronicle(self.told.append)
        routes = [Route(kind, lambda _key: None) for kind in (MANAGED_CLUSTERS, REQUESTS)]
        self._feed = Feed(hub.store, routes, self.chronicle)
        self._revision = 0

    async def start(self) -> Sequence[Mapping[str, Any]]:
        with capture_logs() as lines:
            self._revision = await self._feed.resync()
        return lines

    async def read(self) -> Sequence[Mapping[str, Any]]:
        """Lines since the last look."""
        changes = await self._hub.store.read(lambda tx: tx.changes.since(self._revision))
        with capture_logs() as lines:
            for change in changes:
                self._feed._send_change(change)
        self._revision = self._hub.revision
        return lines

    async def events(self) -> list[str]:
        return [str(line["event"]) for line in await self.read()]


async def test_a_cluster_that_joins_is_told_with_what_is_next(hub: Hub) -> None:
    reader = Reader(hub)
    await reader.start()
    hub.join("c1")
    (line,) = await reader.read()
    assert (line["event"], line["cluster"], line["by"]) == ("cluster registered", "c1", "agent")
    assert line["next"] == "hubctl accept c1"


async def test_decisions_are_told_with_who_took_them(hub: Hub) -> None:
    reader = Reader(hub)
    await reader.start()
    hub.join("c1")
    name = hub.submit("c1")
    await reader.read()
    hub.accept("c1")
    hub.approve(name)
    hub.accept("c1", accepted=False)
    lines = await reader.read()
    assert [line["event"] for line in lines] == ["cluster accepted", "certificate request approved", "cluster denied"]
    assert {line["by"] for line in lines} == {"admin"}
    assert {line["cluster"] for line in lines} == {"c1"}
    assert lines[1]["request"] == name


async def test_availability_is_told_when_it_changes_and_not_with_every_report(hub: Hub) -> None:
    reader = Reader(hub)
    await reader.start()
    hub.join("c1")
    hub.accept("c1")
    await reader.read()
    hub.store.transact(clusters.set_condition, C1, cluster_rules.AVAILABLE, "agent")
    (line,) = await reader.read()
    assert (line["available"], line["log_level"]) == ("True", "info")
    hub.store.transact(clusters.report_status, C1, StatusReport(kubernetes_version="v1.34.2"), "agent")
    hub.clock.advance(timedelta(seconds=5))
    hub.store.transact(clusters.report_status, C1, StatusReport(kubernetes_version="v1.34.2", capacity={"cpu": "2"}), "agent")
    assert await reader.read() == []
    hub.store.transact(clusters.set_condition, C1, cluster_rules.UNAVAILABLE, "agent")
    (line,) = await reader.read()
    assert (line["available"], line["log_level"]) == ("False", "info")


async def test_a_cluster_that_moves_to_another_set_is_told_and_one_that_gets_its_first_is_not(hub: Hub) -> None:
    reader = Reader(hub)
    await reader.start()

    def into(cluster_set: str) -> None:
        document = doc.with_metadata(hub.cluster("c1"), labels={LABEL: cluster_set})
        hub.store.transact(lambda tx: clusters.put(tx, document, clusters.find(tx, C1), "admin"))

    hub.join("c1")
    await reader.read()
    into("default")
    assert await reader.read() == []
    into("blue")
    (line,) = await reader.read()
    assert (line["event"], line["cluster_set"], line["before"], line["by"]) == ("cluster moved", "blue", "default", "admin")
    assert reader.told[-1].message == "moved from cluster set default to blue by admin"


async def test_another_cluster_with_the_same_name_is_a_warning(hub: Hub) -> None:
    reader = Reader(hub)
    await reader.start()
    hub.join("c1")
    await reader.read()
    hub.store.transact(clusters.note_duplicate, Joining(C1, "uid-other", AGENT), "agent")
    (line,) = await reader.read()
    assert line["log_level"] == "warning"
    assert "uid-other" in line["detail"]


async def test_a_deleted_cluster_is_told_and_its_successor_is_news_again(hub: Hub) -> None:
    reader = Reader(hub)
    await reader.start()
    hub.join("c1")
    await reader.read()
    hub.store.transact(lambda tx: clusters.remove(tx, clusters.find(tx, C1), "admin"))
    assert await reader.events() == ["cluster deleted"]
    hub.join("c1")
    assert await reader.events() == ["cluster registered"]


async def test_what_was_there_at_the_start_is_no_news_and_what_changed_meanwhile_is(hub: Hub) -> None:
    reader = Reader(hub)
    hub.join("c1")
    hub.submit("c1")
    assert await reader.start() == []
    hub.accept("c1")
    (line,) = await reader.start()  # the log was compacted: everything is read again
    assert line["event"] == "cluster accepted"


def test_kinds_without_a_story_are_passed_over() -> None:
    with capture_logs() as lines:
        Chronicle().listed(Kind("leases.coordination.k8s.io"), Key("", "x"), {})
    assert lines == []


async def test_the_log_and_the_events_tell_the_same_story(hub: Hub) -> None:
    reader = Reader(hub)
    await reader.start()
    hub.join("c1")
    hub.accept("c1")
    hub.store.transact(clusters.report_status, C1, StatusReport(conditions=(cluster_rules.AVAILABLE,)), "agent")
    await reader.read()
    told = [(each.cluster, each.reason, each.type) for each in reader.told]
    assert told == [
        ("c1", "Registered", "Normal"),
        ("c1", "Accepted", "Normal"),
        ("c1", "ManagedClusterAvailable", "Normal"),
    ]
    assert [each.message for each in reader.told][:2] == [
        "registered by agent: it waits for `hubctl accept c1`",
        "accepted by admin",
    ]


async def test_the_end_of_a_request_is_an_event_of_its_cluster(hub: Hub) -> None:
    reader = Reader(hub)
    hub.join("c1")
    await reader.start()
    name = hub.submit("c1")
    hub.approve(name)
    hub.store.transact(requests.issue, name, hub.issuer, hub.lifetimes, "issuance")
    await reader.read()
    assert [(each.cluster, each.reason, each.message, each.about["kind"]) for each in reader.told] == [
        ("c1", "CertificateIssued", "certificate request issued by issuance", "CertificateSigningRequest"),
    ]


async def test_what_becomes_of_requests_is_counted_once_and_where_they_stand_is_known(hub: Hub) -> None:
    reader = Reader(hub)
    hub.join("c1")
    before = hub.submit("c1")
    await reader.start()
    chronicle = reader.chronicle
    assert (dict(chronicle.phases), dict(chronicle.standing())) == ({}, {"Pending": 1}), "what is there is no news"
    hub.approve(before)
    await reader.read()
    await reader.read()
    assert (dict(chronicle.phases), dict(chronicle.standing())) == ({"Approved": 1}, {"Approved": 1})


async def test_what_went_while_nobody_followed_is_counted_no_more_and_its_successor_is_news(hub: Hub) -> None:
    reader = Reader(hub)
    hub.join("c1")
    request = hub.submit("c1")
    await reader.start()
    assert reader.chronicle.standing() == {"Pending": 1}

    def go(tx: Transaction) -> None:
        for kind, name in ((MANAGED_CLUSTERS, "c1"), (REQUESTS, request)):
            stored = tx.objects.get(kind, Key("", name))
            assert stored is not None
            tx.objects.delete(kind, stored, "test")

    hub.store.transact(go)
    assert await reader.start() == []
    hub.join("c2")
    assert await reader.events() == ["cluster registered"]
    assert reader.chronicle.standing() == {}
    hub.join("c1")
    assert await reader.events() == ["cluster registered"]
