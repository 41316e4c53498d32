"""What the hub's Events tell of clusters that nobody at the hub did: versions, clocks, add-ons; and each change once."""

from typing import Any

import pytest

from hub.controllers.chronicle import Chronicle
from hub.domain import clocksync
from hub.domain.addon_health import in_step
from hub.domain.change import ADDONS, MANAGED_CLUSTERS, ChangeType, Document, Key, Kind
from hub.domain.event import Told
from machinery.clock import ManualClock
from machinery.conditions import ADDON_AVAILABLE, AVAILABLE, FALSE, TRUE, UNKNOWN, Condition

CLUSTER, ADDON = Key("", "c1"), Key("c1", "metrics")
WELL = Condition(ADDON_AVAILABLE, TRUE, "Reported", "it works")
ILL = Condition(ADDON_AVAILABLE, FALSE, "ProbeFailed", "no endpoint")
NOT_THERE_YET = Condition(ADDON_AVAILABLE, UNKNOWN, "ManagedClusterAddOnLeaseNotFound", "no lease")
SILENT = Condition(AVAILABLE, UNKNOWN, "ManagedClusterLeaseUpdateStopped", "no word")


class Reader:
    """A chronicle and what it tells."""

    def __init__(self) -> None:
        self.told: list[Told] = []
        self.chronicle = Chronicle(self.told.append)

    def change(
        self, kind: Kind, key: Key, document: Document, change: ChangeType = ChangeType.MODIFIED
    ) -> list[tuple[str, str]]:
        """Reason and type of what a change has to tell."""
        self.told.clear()
        self.chronicle.changed(kind, key, document, change, "agent")
        return [(each.reason, each.type) for each in self.told]

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
def reader() -> Reader:
    reader = Reader()
    reader.chronicle.listed(MANAGED_CLUSTERS, CLUSTER, cluster())
    return reader


def test_a_cluster_that_has_another_version_is_told_with_the_one_before(reader: Reader) -> None:
    assert reader.cluster(cluster("v1.35.0")) == []  # the first that is known is no change
    assert reader.cluster(cluster("v1.36.0")) == [("KubernetesVersionChanged", "Normal")]
    assert reader.told[0].message == "Kubernetes v1.36.0; it was v1.35.0"
    assert reader.cluster(cluster("")) == []  # its API server is away
    assert reader.cluster(cluster("v1.36.0")) == []


def test_a_clock_that_is_off_is_told_and_that_it_is_right_again(reader: Reader) -> None:
    wrong, right = clocksync.OUT_OF_SYNC, clocksync.SYNCED
    assert reader.cluster(cluster("", right)) == []
    assert reader.cluster(cluster("", wrong)) == [("ManagedClusterClockOutOfSync", "Warning")]
    assert reader.cluster(cluster("", wrong)) == []
    assert reader.cluster(cluster("", right)) == [("ManagedClusterClockSynced", "Normal")]


def test_a_deletion_that_waits_is_told_with_what_it_waits_for(reader: Reader) -> None:
    metadata = {"name": "c1", "uid": "u", "deletionTimestamp": "2026-11-22T10:00:00Z", "finalizers": ["example.org/backup"]}
    assert reader.cluster({**cluster(), "metadata": metadata}) == [("DeletionBegun", "Normal")]
    assert reader.told[0].message == "is being deleted by agent: it waits for example.org/backup"


def test_an_addon_that_fails_and_works_again_is_told_once_each(reader: Reader) -> None:
    for nothing in (addon(), addon(NOT_THERE_YET), addon(WELL)):
        assert reader.addon(nothing) == []
    assert reader.addon(addon(ILL)) == [("AddOnUnavailable", "Warning")]
    assert (reader.told[0].cluster, reader.told[0].message) == ("c1", "ProbeFailed: no endpoint")
    assert reader.addon(addon(ILL)) == []
    assert reader.addon(addon(WELL)) == [("AddOnAvailable", "Normal")]


def test_addons_of_a_silent_cluster_are_told_by_their_clusters_alarm_alone(reader: Reader) -> None:
    now = ManualClock().now()
    silenced = in_step(addon(WELL), SILENT, now)
    assert reader.addon(addon(WELL)) == []
    assert reader.addon(silenced) == []
    assert reader.addon(in_step(silenced, None, now)) == []


def test_what_was_ill_at_the_start_is_no_news_and_that_it_is_well_again_is(reader: Reader) -> None:
    reader.chronicle.listed(ADDONS, ADDON, addon(ILL))
    assert reader.addon(addon(ILL)) == []
    assert reader.addon(addon(WELL)) == [("AddOnAvailable", "Normal")]


def test_an_addon_that_comes_again_after_its_deletion_begins_anew(reader: Reader) -> None:
    reader.addon(addon(ILL))
    assert reader.change(ADDONS, ADDON, addon(ILL), ChangeType.DELETED) == []
    assert reader.addon(addon(WELL)) == []
