"""The condition HubAcceptedManagedCluster follows what an operator, or the rule once, decided."""

from hub.controllers.acceptance import Acceptance
from hub.controllers.batch import TOGETHER
from hub.domain.document import with_metadata
from hub.ports import Transaction
from hub.services import clusters
from machinery.conditions import FALSE, HUB_ACCEPTED, TRUE
from machinery.identity import ClusterName
from tests.unit.hub.controllers.conftest import Hub


async def step(subject: Acceptance, *names: str) -> None:
    for name in names:
        subject.wants(name)
    while await subject.reconcile(TOGETHER) is not None:
        pass


async def test_a_new_cluster_has_no_condition(hub: Hub) -> None:
    hub.join("c1")
    before = hub.revision
    await step(Acceptance(hub.store, ()), "c1")
    assert hub.condition("c1", HUB_ACCEPTED) is None
    assert hub.revision == before


async def test_an_accepted_cluster_is_told_so_in_the_words_of_ocm(hub: Hub) -> None:
    hub.join("c1")
    hub.accept("c1")
    await step(Acceptance(hub.store, ()), "c1")
    condition = hub.condition("c1", HUB_ACCEPTED)
    assert condition is not None
    assert (condition.status, condition.reason, condition.message) == (
        TRUE,
        "HubClusterAdminAccepted",
        "Accepted by hub cluster admin",
    )


async def test_a_denial_after_an_acceptance_is_told(hub: Hub) -> None:
    subject = Acceptance(hub.store, ())
    hub.join("c1")
    hub.accept("c1")
    await step(subject, "c1")
    hub.accept("c1", accepted=False)
    await step(subject, "c1")
    condition = hub.condition("c1", HUB_ACCEPTED)
    assert condition is not None
    assert (condition.status, condition.reason, condition.message) == (
        FALSE,
        "HubClusterAdminDenied",
        "Denied by hub cluster admin",
    )


async def test_what_is_right_is_not_written_again(hub: Hub) -> None:
    subject = Acceptance(hub.store, ("*",))
    hub.join("c1")
    await step(subject, "c1")
    before = hub.revision
    assert not subject.wanted(hub.cluster("c1"))
    await step(subject, "c1")
    assert hub.revision == before


async def test_a_name_that_matches_the_rule_is_accepted(hub: Hub) -> None:
    hub.join("edge-1")
    hub.join("other")
    await step(Acceptance(hub.store, ("edge-*",)), "edge-1", "other")
    assert hub.cluster("edge-1")["spec"]["hubAcceptsClient"] is True
    assert "open-cluster-management.io/automatically-accepted-on" in hub.cluster("edge-1")["metadata"]["annotations"]
    assert hub.condition("edge-1", HUB_ACCEPTED) is not None
    assert hub.cluster("other")["spec"]["hubAcceptsClient"] is False


async def test_a_denial_by_hand_stands_against_the_rule(hub: Hub) -> None:
    subject = Acceptance(hub.store, ("*",))
    hub.join("c1")
    await step(subject, "c1")
    hub.accept("c1", accepted=False)
    await step(subject, "c1")
    assert hub.cluster("c1")["spec"]["hubAcceptsClient"] is False
    condition = hub.condition("c1", HUB_ACCEPTED)
    assert condition is not None
    assert condition.status == FALSE


async def test_a_denial_by_hand_stands_against_the_rule_also_when_nobody_led_between_it_and_the_acceptance(hub: Hub) -> None:
    hub.join("c1")
    hub.accept("c1")
    hub.accept("c1", accepted=False)
    await step(Acceptance(hub.store, ("*",)), "c1")
    assert hub.cluster("c1")["spec"]["hubAcceptsClient"] is False
    condition = hub.condition("c1", HUB_ACCEPTED)
    assert condition is not None
    assert (condition.status, condition.reason) == (FALSE, "HubClusterAdminDenied")


async def test_a_cluster_that_is_gone_holds_up_no_other(hub: Hub) -> None:
    hub.join("c1")
    hub.accept("c1")
    await step(Acceptance(hub.store, ("*",)), "gone", "c1")
    assert hub.condition("c1", HUB_ACCEPTED) is not None


async def test_a_cluster_that_is_being_deleted_is_left_alone(hub: Hub) -> None:
    hub.join("c1")
    hub.accept("c1")

    def hold(tx: Transaction) -> None:
        stored = clusters.find(tx, ClusterName("c1"))
        clusters.put(tx, with_metadata(stored.document, finalizers=["example.org/wait"]), stored, "admin")

    hub.store.transact(hold)
    hub.store.transact(lambda tx: clusters.remove(tx, clusters.find(tx, ClusterName("c1")), "admin"))
    subject = Acceptance(hub.store, ())
    assert not subject.wanted(hub.cluster("c1"))
    await step(subject, "c1")
    assert hub.condition("c1", HUB_ACCEPTED) is None
