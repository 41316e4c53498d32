"""A cluster joins, as an operator and an agent see it: real processes, real sockets, nothing of ours patched."""

import asyncio
import signal
import sqlite3
from contextlib import closing
from datetime import timedelta

import pytest

from machinery.kube.client import KubeClient
from tests.e2e.hubs import now, read_rows
from tests.e2e.processes import CLUSTERS, REQUESTS, Bench, Program, is_available, status_of, until
from tests.fakes.postgres import postgres_server

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

SHORT_LEASE = ("--default-lease-duration=1s", "--beat-interval=300ms", "--flush-window=100ms")
GRACE = 5.0
ACCEPTED = "HubAcceptedManagedCluster"
AVAILABLE = "ManagedClusterConditionAvailable"
JOINED = "ManagedClusterJoined"


async def one_request(bench: Bench) -> str:
    async def found() -> str | None:
        names = [request["metadata"]["name"] for request in await bench.requests()]
        return names[0] if names else None

    return str(await until(found, what="the spoke's certificate request is at the hub"))


async def known(bench: Bench, name: str) -> None:
    await bench.cluster_when(name, lambda _cluster: True, what="is known to the hub")


async def test_a_cluster_whose_name_matches_the_rule_becomes_available_by_itself(bench: Bench) -> None:
    await bench.hub("--auto-approve=edge-*")
    await bench.spoke("edge-1")
    cluster = await bench.available("edge-1")
    assert cluster["spec"]["hubAcceptsClient"] is True
    assert "open-cluster-management.io/automatically-accepted-on" in cluster["metadata"]["annotations"]
    assert {kind: status_of(cluster, kind) for kind in (ACCEPTED, JOINED, AVAILABLE)} == {
        ACCEPTED: "True",
        JOINED: "True",
        AVAILABLE: "True",
    }
    assert cluster["status"]["version"]["kubernetes"]
    assert cluster["status"]["capacity"]["nodes"] == "5"
    (request,) = await bench.requests()
    assert request["status"]["conditions"][0]["reason"] == "AutoApprovedByHubCSRApprovingController"


@pytest.mark.parametrize("order", ["accept first", "approve first"])
async def test_by_hand_both_decisions_are_needed_in_any_order(bench: Bench, order: str) -> None:
    await bench.hub()
    await bench.spoke("c1")
    await known(bench, "c1")
    request = await one_request(bench)
    accept, approve = ("accept", "c1"), ("certificate", "approve", "c1")
    first, second = (accept, approve) if order == "accept first" else (approve, accept)
    await bench.hubctl(*first)
    assert not is_available(await bench.cluster("c1"))
    await bench.hubctl(*second)
    cluster = await bench.available("c1")
    assert status_of(cluster, ACCEPTED) == "True"
    assert [each["metadata"]["name"] for each in await bench.requests()] == [request]
    table = await bench.hubctl("get", "clusters")
    assert "c1" in table


async def test_a_killed_spoke_reads_unknown_when_its_grace_ends_and_comes_back(bench: Bench) -> None:
    await bench.hub("--auto-approve=*", *SHORT_LEASE)
    spoke = await bench.spoke("c1")
    await bench.available("c1")
    await spoke.kill()
    cluster = await bench.cluster_when(
        "c1", lambda document: status_of(document, AVAILABLE) == "Unknown", what="reads Unknown", within=GRACE + 5
    )
    seen = now()
    with closing(sqlite3.connect(f"file:{bench.data / 'hub.db'}?mode=ro", uri=True)) as connection:
        assert seen - read_rows(connection)["c1"].beat >= GRACE * 1e6, "and not before"
    condition = next(each for each in cluster["status"]["conditions"] if each["type"] == AVAILABLE)
    assert condition["reason"] == "ManagedClusterLeaseUpdateStopped"
    assert condition["message"] == "Registration agent stopped updating its lease."
    await spoke.start()
    await bench.available("c1")


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
async def test_agents_come_back_to_a_hub_that_was_restarted(bench: Bench, ending: signal.Signals) -> None:
    hub = await bench.hub("--auto-approve=*", *SHORT_LEASE)
    spoke = await bench.spoke("c1")
    before = await bench.available("c1")
    code = await hub.stop(ending)
    assert code == (0 if ending is signal.SIGTERM else -signal.SIGKILL)
    await hub.start()
    await bench.ready(hub)
    await session_open(bench, "c1")
    after = await bench.cluster("c1")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert is_available(after)
    assert spoke.running
    assert len(await bench.requests()) == 1


async def session_open(bench: Bench, name: str) -> None:
    async def open_now() -> bool:
        line = next(line for line in (await bench.hubctl("get", "clusters")).splitlines() if line.startswith(name))
        return "(no session)" not in line

    await until(open_now, what=f"cluster {name} has a session")


async def test_a_spoke_that_is_restarted_resumes_with_what_it_has(bench: Bench) -> None:
    await bench.hub("--auto-approve=*")
    spoke = await bench.spoke("c1")
    await bench.available("c1")
    assert await spoke.stop() == 0
    await spoke.start()
    await session_open(bench, "c1")
    assert len(await bench.requests()) == 1


async def test_a_spoke_that_is_killed_while_it_waits_resumes_the_same_request(bench: Bench) -> None:
    await bench.hub()
    spoke = await bench.spoke("c1")
    request = await one_request(bench)
    await spoke.kill()
    await spoke.start()
    await bench.hubctl("accept", "c1")
    await bench.hubctl("certificate", "approve", "c1")
    await bench.available("c1")
    assert [each["metadata"]["name"] for each in await bench.requests()] == [request]


async def test_a_denied_cluster_reads_denied_and_can_be_accepted_again(bench: Bench) -> None:
    await bench.hub("--auto-approve=*")
    await bench.spoke("c1")
    await bench.available("c1")
    await bench.hubctl("deny", "c1")
    denied = await bench.cluster_when("c1", lambda cluster: status_of(cluster, ACCEPTED) == "False", what="reads denied")
    assert denied["spec"]["hubAcceptsClient"] is False
    await bench.hubctl("accept", "c1")
    await bench.cluster_when("c1", lambda cluster: status_of(cluster, ACCEPTED) == "True", what="is accepted again")
    await bench.available("c1")


async def test_three_clusters_join_at_once(bench: Bench) -> None:
    await bench.hub("--auto-approve=*")
    names = ("one", "two", "three")
    spokes: list[Program] = await asyncio.gather(*(bench.spoke(name) for name in names))
    for name in names:
        await bench.available(name, within=40)
    assert all(spoke.running for spoke in spokes)
    listed = await bench.get(REQUESTS)
    assert len(listed["items"]) == len(names)


@pytest.mark.postgres
async def test_a_cluster_joins_a_hub_on_postgresql_and_survives_its_crash(bench: Bench) -> None:
    with postgres_server() as url:
        hub = await bench.hub("--auto-approve=*", environment={"HUB_DATABASE_URL": url})
        await bench.spoke("c1")
        before = await bench.available("c1")
        await hub.kill()
        await hub.start()
        await bench.ready(hub)
        await session_open(bench, "c1")
        assert (await bench.available("c1"))["metadata"]["uid"] == before["metadata"]["uid"]
        assert not (bench.data / "hub.db").exists()
        assert await hub.stop() == 0


async def test_an_open_watch_and_open_sessions_do_not_hold_up_a_stop(bench: Bench) -> None:
    hub = await bench.hub("--auto-approve=*")
    await bench.spoke("c1")
    await bench.available("c1")
    async with await KubeClient.from_file(bench.admin) as client:
        listed = await client.get(CLUSTERS)
        query = {"resourceVersion": listed["metadata"]["resourceVersion"]}
        async with client.watch(CLUSTERS, query, within=timedelta(minutes=1)):
            assert await hub.stop(within=6) == 0
    assert "did not finish in time" not in hub.output
