"""Add-ons show in their cluster's labels, are as unknown as their cluster, and what they last were when it is heard again."""

from typing import Any

import pytest

from hub.domain import cluster as cluster_rules
from hub.domain import document as doc
from hub.domain.addon_discovery import PREFIX
from hub.domain.addon_health import NOTE
from hub.domain.change import ADDONS, MANAGED_CLUSTERS
from hub.services import addons, clusters
from machinery import conditions
from machinery.conditions import AVAILABLE, Condition
from machinery.identity import AddOnName, ClusterName
from tests.fakes.fleetwork import Fleetwork, addon, cluster, find, put, remove
from tests.unit.hub.controllers.conftest import Hub

C1 = ClusterName("c1")
MOVED = Condition(AVAILABLE, "Unknown", "ManagedClusterMoved", "The agent is with another hub.")
LEASE_STOPPED = "ManagedClusterLeaseUpdateStopped"


def says(hub: Hub, verdict: Condition = cluster_rules.AVAILABLE) -> None:
    """The cluster's availability."""
    hub.store.transact(clusters.set_condition, C1, verdict, "agent")


def features(hub: Hub) -> dict[str, str]:
    labels = doc.labels(hub.cluster("c1"))
    return {name.removeprefix(PREFIX): value for name, value in labels.items() if name.startswith(PREFIX)}


def health(hub: Hub, name: str) -> tuple[str, str] | None:
    stored = hub.store.transact(find, ADDONS, name, "c1")
    assert stored is not None
    found = conditions.find(doc.conditions(stored.document), "Available")
    return (found.status, found.reason) if found else None


def report(hub: Hub, name: str, status: str) -> None:
    """What the agent says of an add-on."""
    told = Condition("Available", status, "ManagedClusterAddOnLeaseUpdated", "told")
    hub.store.transact(addons.report, C1, AddOnName(name), (told,), "agent")


@pytest.fixture
async def work(hub: Hub) -> Fleetwork:
    """A cluster that is well, with add-ons in each state."""
    hub.store.transact(put, MANAGED_CLUSTERS, cluster("c1", region="eu"))
    says(hub)
    for name, available in (("well", "True"), ("ill", "False"), ("lost", "Unknown"), ("new", None)):
        hub.store.transact(put, ADDONS, addon(name, "c1", available))
    driven = Fleetwork(hub.store)
    await driven.start()
    return driven


async def test_each_add_on_shows_in_a_label(hub: Hub, work: Fleetwork) -> None:
    del work
    assert features(hub) == {"well": "available", "ill": "unhealthy", "lost": "unreachable", "new": "unreachable"}
    assert doc.labels(hub.cluster("c1"))["region"] == "eu"


async def test_labels_follow_what_add_ons_say_and_go_with_them(hub: Hub, work: Fleetwork) -> None:
    report(hub, "new", "True")
    hub.store.transact(remove, ADDONS, "ill", "c1")
    hub.store.transact(put, ADDONS, doc.with_metadata(addon("well", "c1", "True"), finalizers=["example.com/hold"]))
    hub.store.transact(remove, ADDONS, "well", "c1")
    await work.settle()
    assert features(hub) == {"lost": "unreachable", "new": "available"}


async def test_a_label_that_somebody_takes_or_forges_is_put_right(hub: Hub, work: Fleetwork) -> None:
    document = {**hub.cluster("c1")}
    forged = {**doc.labels(document), f"{PREFIX}well": "unhealthy", f"{PREFIX}never-there": "available"}
    hub.store.transact(put, MANAGED_CLUSTERS, doc.with_metadata(document, labels=forged))
    await work.settle()
    assert features(hub) == {"well": "available", "ill": "unhealthy", "lost": "unreachable", "new": "unreachable"}


async def test_a_cluster_that_was_never_heard_of_is_not_labelled(hub: Hub) -> None:
    hub.store.transact(put, MANAGED_CLUSTERS, cluster("c1"))
    hub.store.transact(put, ADDONS, addon("well", "c1", "True"))
    work = Fleetwork(hub.store)
    await work.start()
    assert features(hub) == {}
    says(hub)
    await work.settle()
    assert features(hub) == {"well": "available"}


async def test_a_cluster_that_is_being_deleted_or_is_not_there_is_left_alone(hub: Hub) -> None:
    held = doc.with_metadata(cluster("c1"), finalizers=["example.com/hold"])
    hub.store.transact(put, MANAGED_CLUSTERS, held)
    says(hub)
    hub.store.transact(remove, MANAGED_CLUSTERS, "c1")
    hub.store.transact(put, ADDONS, addon("well", "c1", "True"))
    hub.store.transact(put, ADDONS, addon("well", "nowhere", "True"))
    before = hub.revision
    await Fleetwork(hub.store).start()
    assert hub.revision == before


async def test_add_ons_of_a_cluster_that_was_never_accepted_are_what_they_say(hub: Hub) -> None:
    hub.store.transact(put, MANAGED_CLUSTERS, cluster("c1", accepted=False))
    hub.store.transact(put, ADDONS, addon("well", "c1", "True"))
    before = hub.revision
    await Fleetwork(hub.store).start()
    assert hub.revision == before


async def test_add_ons_of_a_silent_cluster_are_unknown_also_while_it_is_being_deleted(hub: Hub, work: Fleetwork) -> None:
    """Nobody can say how they are, and who waits for them to go is to see that."""
    hub.store.transact(remove, MANAGED_CLUSTERS, "c1")
    says(hub, cluster_rules.SILENT)
    await work.settle()
    assert health(hub, "well") == ("Unknown", LEASE_STOPPED)


async def test_a_name_that_is_no_label_has_none_and_stops_no_other(hub: Hub, work: Fleetwork) -> None:
    hub.store.transact(put, ADDONS, addon("a" * 60, "c1", "True"))
    hub.store.transact(put, ADDONS, addon("short", "c1", "True"))
    await work.settle()
    assert features(hub)["short"] == "available"
    assert "a" * 60 not in features(hub)


async def test_add_ons_of_a_silent_cluster_are_unknown_and_come_back_with_it(hub: Hub, work: Fleetwork) -> None:
    names = ("well", "ill", "lost", "new")
    before = {name: health(hub, name) for name in names}
    says(hub, cluster_rules.SILENT)
    await work.settle()
    assert {health(hub, name) for name in names} == {("Unknown", LEASE_STOPPED)}
    assert set(features(hub).values()) == {"unreachable"}
    says(hub)
    await work.settle()
    assert {name: health(hub, name) for name in names} == before
    stored = hub.store.transact(find, ADDONS, "well", "c1")
    assert stored is not None
    assert NOTE not in doc.annotations(stored.document)


async def test_what_an_agent_says_during_the_silence_counts_when_it_is_over(hub: Hub, work: Fleetwork) -> None:
    """An agent that comes back reports its add-ons before the hub has judged its first beat."""
    says(hub, cluster_rules.SILENT)
    await work.settle()
    report(hub, "ill", "True")
    await work.settle()
    assert health(hub, "ill") == ("Unknown", LEASE_STOPPED)
    says(hub)
    await work.settle()
    assert health(hub, "ill") == ("True", "ManagedClusterAddOnLeaseUpdated")


async def test_an_agent_that_speaks_in_the_same_moment_is_not_spoken_over(hub: Hub, work: Fleetwork) -> None:
    says(hub, cluster_rules.SILENT)
    await work.settle()
    says(hub)
    report(hub, "ill", "True")
    await work.settle()
    assert health(hub, "ill") == ("True", "ManagedClusterAddOnLeaseUpdated")


async def test_another_reason_of_the_silence_reaches_the_add_ons_and_keeps_what_was_before(hub: Hub, work: Fleetwork) -> None:
    says(hub, cluster_rules.SILENT)
    await work.settle()
    says(hub, MOVED)
    await work.settle()
    assert health(hub, "well") == ("Unknown", "ManagedClusterMoved")
    says(hub, cluster_rules.UNAVAILABLE)
    await work.settle()
    assert health(hub, "well") == ("True", "ManagedClusterAddOnLeaseUpdated")


async def test_an_add_on_that_comes_during_the_silence_is_unknown_too(hub: Hub, work: Fleetwork) -> None:
    says(hub, cluster_rules.SILENT)
    await work.settle()
    hub.store.transact(put, ADDONS, addon("late", "c1"))
    await work.settle()
    assert health(hub, "late") == ("Unknown", LEASE_STOPPED)


@pytest.mark.parametrize("verdict", [cluster_rules.AVAILABLE, cluster_rules.UNAVAILABLE])
async def test_a_cluster_that_is_heard_says_nothing_of_its_add_ons(hub: Hub, work: Fleetwork, verdict: Condition) -> None:
    says(hub, verdict)
    before = hub.revision
    await work.settle()
    assert hub.revision == before


async def test_whoever_looks_again_writes_nothing(hub: Hub, work: Fleetwork) -> None:
    says(hub, cluster_rules.SILENT)
    await work.settle()
    before = hub.revision
    await Fleetwork(hub.store).start()
    await work.start()
    assert hub.revision == before


@pytest.mark.parametrize("spoilt", ["", "{", '{"reason": 7}', "null"])
async def test_a_note_that_somebody_spoilt_holds_nothing_up(hub: Hub, work: Fleetwork, spoilt: str) -> None:
    says(hub, cluster_rules.SILENT)
    await work.settle()
    stored = hub.store.transact(find, ADDONS, "well", "c1")
    assert stored is not None
    document: dict[str, Any] = doc.with_annotations(stored.document, {NOTE: spoilt})
    hub.store.transact(put, ADDONS, document)
    says(hub)
    await work.settle()
    assert health(hub, "well") is None, "what stood before is not known"
    assert health(hub, "ill") == ("False", "ManagedClusterAddOnLeaseUpdateStopped")
