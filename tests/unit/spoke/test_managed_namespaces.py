"""Namespaces that cluster sets want here, Events that the agent reports, and what it keeps of its ManagedCluster."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256

from machinery.errors import ForbiddenError, UnavailableError
from machinery.identity import AgentId, ClusterName, HubId
from machinery.meta.conditions import FALSE, TRUE, Condition
from spoke.controllers.managed_namespaces import KEY, ManagedNamespaceController
from spoke.controllers.status import UPKEEP, ClusterUpkeep
from spoke.domain.names import AgentNames
from spoke.domain.report import NORMAL, WARNING, AgentEvent, ManagedNamespace, ReportedClaim, hub_label, left_out, news_of
from spoke.domain.status import ClusterClaimRules
from spoke.ports.hub import ClientIdentity, HubLostError
from spoke.session.reports import EVENT_BURST, EVENT_QUEUE, SessionEvents
from tests.checks import check_refusal_of
from tests.fakes.credentials import MemoryCluster
from tests.fakes.hub import HUB_ID
from tests.fakes.stage import Stage, until

LABEL = hub_label(HUB_ID, "https://hub")
A, B = ManagedNamespace("a", "blue"), ManagedNamespace("b", "blue")
NOTES = {"agent.open-cluster-management.io/site": "b"}


class Kept:
    """The controller with a cluster in memory."""

    def __init__(self) -> None:
        self.cluster = MemoryCluster()
        self.news = 0
        self.controller = ManagedNamespaceController(self.cluster, LABEL, self.changed)

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
    await check_refusal_of(UnavailableError, kept.want(A))
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
        stage.scheduler.wake("managed-namespaces")
        await until(lambda: "a" in stage.cluster.namespaces)
        stage.hub.set_namespaces(B)
        await until(lambda: stage.hub.session.reports[-1].namespaces[:1] and told() == ["NamespaceApplied"])
        await until(lambda: "b" in stage.cluster.namespaces and "true" not in stage.cluster.namespaces["a"].values())


async def test_a_cluster_gets_its_namespaces_once_accepted_and_one_that_fails_is_an_event_at_the_hub(stage: Stage) -> None:
    stage.hub.accept = False
    stage.hub.namespaces = (A, B)
    stage.cluster.refused_namespaces.add("b")
    async with stage.running():
        await until(lambda: "managed-namespaces" in stage.scheduler.jobs)
        stage.scheduler.wake("managed-namespaces")
        assert stage.cluster.namespaces == {}
        stage.hub.set_accepted(next(iter(stage.hub.clusters)), accepted=True)
        await until(lambda: "a" in stage.cluster.namespaces and stage.hub.session.news)
    (news,) = stage.hub.session.news
    assert (news.reason, news.type) == ("NamespaceApplyFailed", "Warning")


class Listener:
    """A session as far as news go."""

    def __init__(self) -> None:
        self.told: list[AgentEvent] = []
        self.refuse: Exception | None = None

    async def tell(self, news: AgentEvent) -> None:
        if self.refuse:
            raise self.refuse
        self.told.append(news)


def test_a_condition_that_is_not_true_is_a_warning() -> None:
    assert news_of(Condition("X", FALSE, "Failed", "why")) == AgentEvent("Failed", "why", WARNING)
    assert news_of(Condition("X", TRUE, "Done", ""), "logs") == AgentEvent("Done", "", NORMAL, "logs")
    assert "--max-custom-cluster-claims" in left_out(3, 20).message


async def test_the_same_news_is_told_once_refused_news_are_lost_and_a_lost_session_ends_the_telling() -> None:
    session = Listener()
    telling = SessionEvents(session)  # type: ignore[arg-type]
    running = asyncio.create_task(telling.run())
    for message in ("a", "a", "b", "b", "a"):
        telling.tell(AgentEvent("R", message))
    await until(lambda: [each.message for each in session.told] == ["a", "b", "a"])
    session.refuse = ForbiddenError("no right to it")
    telling.tell(AgentEvent("R", "c"))
    await asyncio.sleep(3600)
    assert not running.done()
    session.refuse = HubLostError("gone")
    telling.tell(AgentEvent("R", "d"))
    await check_refusal_of(HubLostError, running)


async def test_news_without_end_are_told_slowly_and_the_oldest_give_way() -> None:
    session = Listener()
    telling = SessionEvents(session)  # type: ignore[arg-type]
    for number in range(3 * EVENT_QUEUE):
        telling.tell(AgentEvent(f"R{number}", ""))
    running = asyncio.create_task(telling.run())
    await asyncio.sleep(1)
    assert len(session.told) == EVENT_BURST
    await asyncio.sleep(3600)
    running.cancel()
    assert [each.reason for each in session.told] == [f"R{number}" for number in range(2 * EVENT_QUEUE, 3 * EVENT_QUEUE)]


async def test_left_out_claims_are_an_event_and_new_annotations_but_no_labels_reach_a_joined_cluster(stage: Stage) -> None:
    """OCM's agent tells annotations at the first join alone."""
    stage.cluster.set_claims([ReportedClaim(name, "x") for name in "abc"])
    stage.options = replace(stage.options, labels={"site": "b"}, claims=ClusterClaimRules(max_custom=2))
    async with stage.at_work():
        await until(lambda: stage.hub.session.news)
    assert stage.hub.session.news == [left_out(1, 2)], "claims that are left out are an event at the hub"
    stage.options = replace(stage.options, annotations=NOTES, labels={"site": "c"})
    async with stage.at_work():
        (known,) = stage.hub.clusters.values()
        await until(lambda: known.annotations == NOTES)
        assert stage.hub.calls.count("ensure_cluster") == 2
    assert known.labels == {"site": "b"}


async def test_a_hub_that_does_not_let_an_agent_keep_its_cluster_is_asked_once(stage: Stage) -> None:
    stage.hub.barred = ForbiddenError("no right to it")
    credential = stage.hub.credential()
    hub = stage.hub.dial(None, ClientIdentity(credential.chain, credential.key))
    upkeep = ClusterUpkeep(hub, MemoryCluster(), AgentNames(ClusterName("c1"), AgentId("bcdfg")), NOTES, ())
    for _ in range(3):
        with suppress(ForbiddenError):
            await upkeep.reconcile(UPKEEP)
    assert stage.hub.calls == ["ensure_cluster"]
