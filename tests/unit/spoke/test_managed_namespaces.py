"""Namespaces that cluster sets of the hub want on this cluster."""

from hashlib import sha256

import pytest

from machinery.errors import UnavailableError
from machinery.identity import HubId
from spoke.controllers.managed_namespaces import KEY, ManagedNamespaces
from spoke.domain.namespace import ManagedNamespace, hub_label, superfluous
from spoke.ports import HubLostError
from tests.fakes.cluster import MemoryCluster
from tests.fakes.hub import HUB_ID
from tests.fakes.stage import Stage, until

LABEL = hub_label(HUB_ID, "https://hub")
A, B = ManagedNamespace("a", "blue"), ManagedNamespace("b", "blue")


class Kept:
    """The controller with a cluster in memory."""

    def __init__(self) -> None:
        self.cluster = MemoryCluster()
        self.news = 0
        self.controller = ManagedNamespaces(self.cluster, LABEL, self.changed)

    def changed(self) -> None:
        self.news += 1

    async def want(self, *wanted: ManagedNamespace, deleting: bool = False) -> list[tuple[str, str]]:
        """After one look: name and reason of what is reported."""
        self.controller.want(wanted, deleting=deleting)
        await self.controller.reconcile(KEY)
        return [(each.namespace.name, each.condition.reason) for each in self.controller.reports]

    def labels(self) -> dict[str, str]:
        return {name: labels[LABEL] for name, labels in self.cluster.namespaces.items() if LABEL in labels}


def test_label_is_one_per_hub_and_cut_to_what_a_label_may_have() -> None:
    """OCM knows a hub by its URL alone, and 64 digits of a hash are one too many."""
    key, _, name = hub_label(HubId(""), "https://hub.example.com:6443").partition("/")
    assert (key, name) == ("clusterset.open-cluster-management.io", sha256(b"https://hub.example.com:6443").hexdigest()[:63])
    assert hub_label(HUB_ID, "https://a") == hub_label(HUB_ID, "https://b") != hub_label(HubId(""), "https://a")


def test_namespace_is_superfluous_when_it_is_no_longer_wanted_or_the_cluster_goes() -> None:
    assert superfluous({"a", "c", "b"}, [A], deleting=False) == ("b", "c")
    assert superfluous({"a"}, [A], deleting=True) == ("a",)
    assert superfluous((), [A], deleting=False) == ()


async def test_wanted_namespaces_are_made_or_labelled_and_released_without_being_deleted() -> None:
    kept = Kept()
    other = hub_label(HubId("other"), "https://other")
    kept.cluster.namespaces |= {"b": {"team": "x"}, "theirs": {other: "true"}}
    assert await kept.want(A, B) == [("a", "NamespaceApplied"), ("b", "NamespaceApplied")]
    assert kept.cluster.namespaces == {
        "a": {LABEL: "true"},
        "b": {"team": "x", LABEL: "true"},
        "theirs": {other: "true"},  # of another hub
    }
    assert kept.news == 1
    await kept.want(A, B)
    assert kept.news == 1
    assert await kept.want(B) == [("b", "NamespaceApplied")]
    assert kept.labels() == {"a": "false", "b": "true"}
    for wanted, deleting in (((), False), ((A, B), True)):
        await kept.want(A, B)
        assert kept.labels() == {"a": "true", "b": "true"}
        await kept.want(*wanted, deleting=deleting)
        assert kept.labels() == {"a": "false", "b": "false"}


async def test_nothing_is_done_before_the_hub_has_said_what_it_wants_and_failures_are_reported() -> None:
    kept = Kept()
    kept.cluster.namespaces["a"] = {LABEL: "true"}
    await kept.controller.reconcile(KEY)
    assert kept.labels() == {"a": "true"}
    kept.cluster.fail = UnavailableError("away")
    with pytest.raises(UnavailableError):
        await kept.want(A)
    assert kept.controller.reports == ()
    kept.cluster.fail = None
    del kept.cluster.namespaces["a"]
    kept.cluster.refused_namespaces.add("a")
    assert await kept.want(A, B) == [("a", "NamespaceApplyFailed"), ("b", "NamespaceApplied")]
    kept.cluster.refused_namespaces.clear()
    assert await kept.want(A, B) == [("a", "NamespaceApplied"), ("b", "NamespaceApplied")]


async def test_the_agent_reports_namespaces_with_its_status_and_makes_a_lost_one_again(stage: Stage) -> None:
    stage.hub.namespaces = (A,)

    def told() -> list[str]:
        reports = stage.hub.session.reports if stage.hub.sessions else []
        return [each.condition.reason for each in reports[-1].namespaces] if reports else []

    async with stage.running():
        await until(lambda: told() == ["NamespaceApplied"])
        del stage.cluster.namespaces["a"]
        stage.timetable.wake("managed-namespaces")
        await until(lambda: "a" in stage.cluster.namespaces)
        stage.hub.set_namespaces(B)
        await until(lambda: stage.hub.session.reports[-1].namespaces[:1] and told() == ["NamespaceApplied"])
        await until(lambda: "b" in stage.cluster.namespaces and "true" not in stage.cluster.namespaces["a"].values())


async def test_a_namespace_that_fails_is_an_event_at_the_hub(stage: Stage) -> None:
    stage.hub.namespaces = (A,)
    stage.cluster.refused_namespaces.add("a")
    async with stage.running():
        await until(lambda: stage.hub.sessions and stage.hub.session.news)
        stage.hub.session.end(HubLostError("that was it"))
    (news,) = {each for session in stage.hub.sessions for each in session.news}
    assert (news.reason, news.type) == ("NamespaceApplyFailed", "Warning")


async def test_a_cluster_that_is_not_accepted_gets_no_namespaces(stage: Stage) -> None:
    stage.hub.accept = False
    stage.hub.namespaces = (A,)
    async with stage.running():
        await until(lambda: "managed-namespaces" in stage.timetable.jobs)
        stage.timetable.wake("managed-namespaces")
        assert stage.cluster.namespaces == {}
        stage.hub.set_accepted(next(iter(stage.hub.clusters)), accepted=True)
        await until(lambda: "a" in stage.cluster.namespaces)
