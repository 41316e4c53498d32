"""What operators order and look at: drained replicas, moved and deleted clusters, diagnoses, the log level and metrics."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from hub.api.certificates import CertificateHolder, Purpose
from hub.api.events import EventRecord
from hub.api.hubreplicas import Replica
from hub.api.managedclusters import duplicates
from hub.api.managedclusters.cluster import CLUSTER_UID, JoinRequest
from hub.api.managedclusters.removal import FINALIZER, FORCED
from hub.api.meta import document as doc
from hub.api.meta.change import CLUSTER_ROLES, MANAGED_CLUSTERS
from hub.controllers.clock_guard import ClockGuard
from hub.controllers.clusters.deletion import Removal
from hub.https_door.pages import LOG_LEVEL_PATH as LOG_LEVEL
from hub.ports import Transaction
from hub.registry import owners
from hub.registry.generic import objects
from hub.registry.hubreplicas import service as orders
from hub.registry.managedclusters import service as clusters
from hubctl.errors import DONE, FAILED, MISUSED, NOT_FOUND, TIMED_OUT
from machinery.identity import AgentId, CertificateSubject, ClusterName, agent_subject
from machinery.meta.objects import Key
from machinery.observability.metrics import gauge
from machinery.runtime.clock import SystemClock
from machinery.runtime.controller import Controller
from machinery.runtime.tasks import GuardedTasks
from tests.integration.https_door.conftest import REPLICA, HubUnderTest, admin_of, bearer, holder, hub_with

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ONE = Replica("hub-0", "here", "i1", "1", "127.0.0.1:8443", "127.0.0.1:6443", EPOCH, EPOCH, sessions=1, ready=True)


async def shown(hub: HubUnderTest, name: str) -> dict[str, object]:
    status: dict[str, object] = json.loads(await hub.output(f"hubctl get replica {name} -o json"))["status"]
    return status


async def test_an_operator_drains_a_replica_waits_for_its_sessions_and_takes_it_back(hub: HubUnderTest) -> None:
    await hub.runs((f"hubctl drain replica {REPLICA}", FAILED, f'no other replica than "{REPLICA}" takes sessions'))
    await hub.store.run(orders.begin, ONE)
    done = await hub.start_hubctl("drain", "replica", "hub-0", "--timeout", "60s")
    async with asyncio.timeout(30):
        while (await shown(hub, "hub-0"))["state"] != "Draining":
            pass
    ending = asyncio.create_task(done.process.communicate())
    while not ending.done():
        await hub.store.run(orders.beat, replace(ONE, sessions=0))
        await asyncio.wait({ending}, timeout=0.1)
    assert (done.process.returncode, (await ending)[0].splitlines()[-1]) == (DONE, b"0 sessions are left")
    assert (await shown(hub, "hub-0"))["state"] == "Drained"
    await hub.runs(
        ("kubectl get events -A", DONE, "has drained the replica hub-0"),
        ("hubctl uncordon replica hub-0", DONE, 'replica "hub-0" accepts sessions\n'),
    )
    assert (await shown(hub, "hub-0"))["state"] == "Ready"

    await hub.store.run(orders.begin, replace(ONE, name="hub-1"))
    await hub.store.run(orders.begin, ONE)
    await hub.runs(
        ("hubctl drain replica hub-0 --timeout 50ms", TIMED_OUT, "still has 1 sessions"),
        ("hubctl drain replica nowhere", NOT_FOUND, ""),
    )
    await hub.store.run(lambda tx: tx.replicas.put(replace(ONE, name="hub-1", seen=tx.now, sessions=0)))
    # that it had no session before the order is no answer
    await hub.runs(("hubctl drain replica hub-1 --force --timeout 50ms", TIMED_OUT, "has not confirmed the drain yet"))
    await hub.runs(("hubctl uncordon replica hub-0", FAILED, "hubreplicas/drain"), path=await hub.agent("edge1"))
    assert (await shown(hub, "hub-0"))["drained"] is True


EDGE = ClusterName("edge1")


async def test_a_cluster_made_here_gets_the_lease_that_is_set(tmp_path: Path) -> None:
    async with hub_with(tmp_path, default_lease_duration=timedelta(seconds=30)) as hub:
        made = "{apiVersion: cluster.open-cluster-management.io/v1, kind: ManagedCluster, metadata: {name: edge1}}"
        await hub.output("hubctl apply -f -", given=made)
        assert (await hub.store.read(clusters.find, EDGE)).document["spec"]["leaseDurationSeconds"] == 30


async def test_an_operator_lets_a_rebuilt_cluster_have_its_name(hub: HubUnderTest) -> None:
    await hub.join("edge1")
    await hub.runs(("hubctl accept edge1 --rebuilt", FAILED, "no other cluster has requested"))
    stored = await hub.store.read(clusters.find, EDGE)
    await hub.store.run(clusters.put, doc.with_annotations(stored.document, {CLUSTER_UID: "uid-1"}), stored, "agent")
    agent = await hub.agent("edge1")
    await hub.store.run(clusters.note_duplicate, JoinRequest(EDGE, "uid-2"), "agent")
    await hub.runs(("hubctl accept edge1 --rebuilt", DONE, "from the cluster with uid uid-1 to the one with uid uid-2"))
    after = (await hub.store.read(clusters.find, EDGE)).document
    assert (doc.annotations(after)[CLUSTER_UID], doc.mapping(after, "spec")["hubAcceptsClient"]) == ("uid-2", True)
    await hub.runs(("hubctl get cluster edge1", FAILED, ""), path=agent)


async def test_an_operator_gives_a_cluster_to_the_other_of_its_two_agents(hub: HubUnderTest) -> None:
    """What ended is on record; the other agent keeps what it has."""
    await hub.join("edge1")
    twin = AgentId("twin")
    paths = [
        await hub.certificate(Purpose.AGENT, agent_subject(EDGE, agent), CertificateHolder(EDGE, agent))
        for agent in (AgentId("first"), twin)
    ]
    await hub.store.run(owners.note_second, EDGE, AgentId("first"), twin, "hub")
    order = "hubctl accept edge1 --agent twin"
    await hub.runs(
        ("hubctl accept edge1 edge2 --agent twin", MISUSED, "with one NAME"),
        ("hubctl accept edge1 --agent third", FAILED, "agents that have one: first, twin"),
        (order, DONE, 'cluster "edge1" accepted'),
        ("hubctl get revocations", DONE, 'agent "first"'),
        (order, DONE, "is accepted already"),
    )
    after = (await hub.store.read(clusters.find, EDGE)).document
    assert (duplicates.reason(after), duplicates.given_to(after)) == ("", None)
    for path, code in zip(paths, (FAILED, DONE), strict=True):
        await hub.runs(("hubctl get cluster edge1", code, ""), path=path)


async def test_the_log_level_is_ordered_by_operators_alone_and_reset(hub: HubUnderTest) -> None:
    admin, agent = await admin_of(hub), holder(hub, await hub.agent("edge1"))
    for body, status in (
        *(({"level": "chatty"}, 422), ({"level": "debug", "for": "a while"}, 400), ({"level": "debug", "for": "9d"}, 422)),
        *(({"level": 4}, 400), ({}, 400)),
    ):
        assert (await admin.ask("PUT", LOG_LEVEL, body))[0] == status, body
    assert [(await agent.ask(method, LOG_LEVEL, {"level": "debug"}))[0] for method in ("GET", "PUT")] == [403, 403]
    await hub.runs(("hubctl log-level verbose", MISUSED, "debug"), ("hubctl log-level", DONE, "info, as configured\n"))
    assert (hub.verbosity.level, await hub.store.read(orders.current_log_level)) == ("info", None)

    await hub.runs(("hubctl log-level debug --for 10m", DONE, "debug until "))
    order = await hub.store.read(orders.current_log_level)
    assert order is not None
    assert (hub.verbosity.level, order.level, order.by) == ("debug", "debug", "admin")
    await hub.runs(("hubctl log-level reset", DONE, "info, as configured\n"))
    assert (hub.verbosity.level, (await admin.ask("PUT", LOG_LEVEL, {"level": "warning"}))[0]) == ("info", 200)
    _, answer = await admin.get(LOG_LEVEL)
    assert (hub.verbosity.level, answer["ordered"], answer["by"], answer["started"]) == ("warning", "warning", "admin", "info")


async def test_a_service_account_that_is_bound_to_the_monitoring_role_may_scrape(hub: HubUnderTest) -> None:
    hub.hub.core.context.metrics.bind(gauge("hub_answer", "An answer."), lambda: 42)
    admin = await admin_of(hub)
    scraper = bearer(hub, await admin.token("scraper"))
    assert (await scraper.get("/metrics"))[0] == 403
    await admin.bind("system:monitoring", "ServiceAccount", "scraper", namespace="default")
    status, text = await scraper.get("/metrics")
    assert status == 200
    assert "# HELP muster_hub_answer An answer.\n# TYPE muster_hub_answer gauge\nmuster_hub_answer 42\n" in text
    assert (await scraper.ask("POST", "/metrics", {}))[0] == 403


HELD = """
apiVersion: cluster.open-cluster-management.io/v1
kind: ManagedCluster
metadata: {name: edge1}
spec: {hubAcceptsClient: true}
---
apiVersion: addon.open-cluster-management.io/v1beta1
kind: ManagedClusterAddOn
metadata: {name: metrics, namespace: edge1, finalizers: [example.com/pre-delete]}
spec: {}
"""  # a cluster with an add-on


@asynccontextmanager
async def removing(hub: HubUnderTest) -> AsyncIterator[list[EventRecord]]:
    """The controller, fed from the change log."""
    events: list[EventRecord] = []
    removal = Removal(hub.store, timedelta(hours=1), events.append, ClockGuard(SystemClock(), timedelta()))
    controller = Controller("removal", removal)

    async def feed() -> None:
        async for changes in hub.store.follow(0, (MANAGED_CLUSTERS,)):
            for change in changes:
                if doc.is_deleting(change.document):
                    controller.enqueue(change.key.name)

    async with GuardedTasks("removal") as tasks:
        tasks.start("removal", controller.run())
        tasks.start("feed", feed())
        yield events
        await tasks.stop()


@pytest.mark.kubectl
async def test_kubectl_waits_until_a_clusters_addons_are_gone(hub: HubUnderTest) -> None:
    await hub.output("hubctl apply -f -", given=HELD)
    async with removing(hub):
        deleting = asyncio.create_task(hub.kubectl("delete mcl edge1 --timeout=25s"))
        async with asyncio.timeout(20):
            while "ResourceRemaining" not in (document := await hub.output("hubctl get cluster edge1 -o json")):
                pass
        assert "example.com/pre-delete (1)" in document
        assert not deleting.done()
        await hub.output("kubectl patch mca metrics -n edge1 --type=merge -p", '{"metadata":{"finalizers":null}}')
        assert (await deleting).code == DONE
    await hub.runs(("kubectl get mcl edge1", FAILED, "not found"), ("kubectl get ns edge1", DONE, ""))


@pytest.mark.kubectl
async def test_hubctl_gives_a_cluster_up_and_says_what_stays_behind(hub: HubUnderTest) -> None:
    await hub.output("hubctl apply -f -", given=HELD)
    async with removing(hub) as events:
        lets_go = "the hub waits for its finalizers: cluster.open-cluster-management.io/resource-cleanup"
        await hub.runs(("hubctl delete cluster edge1", DONE, lets_go))
        ended = await hub.hubctl("delete cluster edge1 --force")
        assert ended.code == DONE, ended.err
        assert 'warning: cluster "edge1" is abandoned: nothing in the cluster is cleaned up' in ended.err
        assert "these add-ons stay installed in the cluster: metrics" in ended.err
        async with asyncio.timeout(20):
            while (await hub.hubctl("get cluster edge1")).code == DONE:
                pass
    assert json.loads(await hub.output("hubctl get addons -o json"))["items"] == []
    assert [each.reason for each in events] == ["DeletionForced"]
    await hub.runs(("hubctl delete csr x --force", MISUSED, "--force is only for clusters"))


async def enter(hub: HubUnderTest, *finalizers: str, **annotations: str) -> None:
    metadata = {"name": "edge1", "finalizers": list(finalizers), "annotations": annotations}
    await hub.store.run(clusters.put, {"metadata": metadata, "spec": {"hubAcceptsClient": True}}, None, "test")


async def clerk(hub: HubUnderTest) -> Path:
    """Somebody who may change clusters and may not delete any."""
    verbs = ["get", "list", "patch", "update"]
    rules = [{"verbs": verbs, "apiGroups": ["*"], "resources": ["managedclusters", "managedclusteraddons"]}]
    await hub.store.run(objects.put, CLUSTER_ROLES, {"metadata": {"name": "clerk"}, "rules": rules}, None, "test")
    await (await admin_of(hub)).bind("clerk", "User", "clerk")
    return await hub.certificate(Purpose.LOGIN, CertificateSubject("clerk"))


async def annotations(hub: HubUnderTest) -> dict[str, str] | None:
    def read(tx: Transaction) -> dict[str, str] | None:
        stored = tx.objects.get(MANAGED_CLUSTERS, Key("", "edge1"))
        return None if stored is None else dict(stored.document["metadata"].get("annotations") or {})

    return await hub.store.read(read)


async def test_a_forced_deletion_marks_only_a_cluster_that_is_being_deleted(hub: HubUnderTest) -> None:
    await enter(hub, FINALIZER)
    await hub.runs(("hubctl delete cluster edge1 --force", FAILED, "cannot delete"), path=await clerk(hub))
    await hub.output("hubctl delete cluster edge1 --force --dry-run")
    assert await annotations(hub) == {}
    assert await hub.output("hubctl delete cluster edge1 --force") == 'cluster "edge1" is being deleted by force\n'
    assert await annotations(hub) == {FORCED: "true"}


async def test_a_plain_deletion_says_that_a_cluster_is_given_up_because_somebody_marked_it(hub: HubUnderTest) -> None:
    await enter(hub, FINALIZER, **{FORCED: "true"})
    warning = f'warning: cluster "edge1": the hub does not wait, because of the annotation {FORCED}'
    await hub.runs(("hubctl delete cluster edge1", DONE, warning))
