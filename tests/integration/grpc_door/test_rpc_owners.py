"""Several hubs from one hub's side: epochs, farewells, standby, leaving and moving."""

import asyncio
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import Any

import grpc
import pytest
from grpc import aio
from pydantic import SecretStr

from hub.api.managedclusters import agent_annotations, cluster as rules, duplicates
from hub.api.meta import document as doc
from hub.api.meta.change import REQUESTS
from hub.api.revocations import RevocationTarget
from hub.ports import HUB_ID
from hub.registry import certificates, deletion as removal, owners, revocations as revocation
from hub.registry.managedclusteraddons import service as addons
from hub.registry.managedclusters import actions, service as clusters
from machinery.client.kubeconfig import Credential
from machinery.errors import NotFoundError
from machinery.identity import AgentId, cluster_name
from machinery.meta import conditions
from machinery.meta.objects import Query
from machinery.wire.registration.v1 import registration_pb2 as registration
from machinery.wire.session.v1 import session_pb2 as wire
from tests.checks import check_refusal_of, present
from tests.fakes.inprocess_hub import HUB
from tests.fakes.rpc_stage import (
    ADMIN,
    ISSUED,
    PENDING,
    RpcStage,
    Stream,
    following,
    joining,
    refusal,
    rpc_stage,
    submission,
    until_found,
)
from tests.fakes.stage import until

EDGE = cluster_name("edge1")
OTHER = "b2f1d5a0-0000-4000-8000-000000000002"
EPOCH = 1_700_000_000_000
STALE = grpc.StatusCode.FAILED_PRECONDITION
FORBIDDEN, TAKEN = grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.ALREADY_EXISTS
UNAUTHENTICATED, SUPERSEDED = grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.ABORTED
MOVED = ("Unknown", "ManagedClusterMoved")


async def judged(stage: RpcStage, cluster: str = "edge1", agent: str = "agent") -> Credential:
    """An agent of a cluster that the hub has accepted in every way."""
    credential = await stage.enrol(cluster, agent=agent)
    await stage.store.run(clusters.set_condition, cluster_name(cluster), rules.ACCEPTED, ADMIN)
    return credential


async def stand_by(stage: RpcStage, credential: Credential, **asked: Any) -> registration.StandByResponse:
    about = {"cluster_name": "edge1", "agent_id": "agent", "cluster_uid": "uid-1", "owner_hub_id": OTHER, "epoch": EPOCH}
    request = registration.StandByRequest(**{**about, **asked})
    answer: registration.StandByResponse = await stage.stub(credential).StandBy(request)
    return answer


async def leave(stage: RpcStage, credential: Credential, **asked: Any) -> bool:
    about = {"cluster_name": "edge1", "agent_id": "agent", "cluster_uid": "uid-1", **asked}
    return bool((await stage.stub(credential).Leave(registration.LeaveRequest(**about))).left)


async def available(stage: RpcStage) -> tuple[str, str]:
    condition = rules.availability(await stage.cluster("edge1"))
    return (condition.status, condition.reason) if condition else ("", "")


async def opened(stage: RpcStage, credential: Credential, epoch: int) -> Stream:
    """A session whose first beat is stored."""
    stream = await stage.welcomed(credential, epoch=epoch)
    await stream.beat(1)
    return stream


async def farewell(stream: Stream, hub: str = OTHER, epoch: int = EPOCH + 1) -> None:
    await stream.send(farewell=wire.Farewell(hub_id=hub, epoch=epoch))
    assert await stream.status() is grpc.StatusCode.OK


async def test_hub_that_starts_lowers_epochs_that_no_hub_takes(tmp_path: Path) -> None:
    async with rpc_stage(tmp_path) as stage:
        credential = await judged(stage)
        await stage.store.run(lambda tx: tx.heartbeats.claim(EDGE, 2**63 - 1))
    async with rpc_stage(tmp_path) as stage:
        stale = await Stream.open(stage, credential, epoch=EPOCH)
        assert await stale.status() is STALE
        await opened(stage, credential, int(await stale.trailing("epoch") or 0) + 1)


async def test_writes_of_an_outdated_session_are_refused_and_end_it(stage: RpcStage) -> None:
    credential, report = await judged(stage), wire.StatusReport(sequence=1, complete=True, kubernetes_version="v1")
    writes: tuple[dict[str, Any], ...] = (
        {"beat": wire.Beat(sequence=2)},
        {"status": report},
        {"addon": wire.AddOnReport(sequence=1, addon_name="work")},
    )
    wrong = []
    for number, write in enumerate(writes):
        stream, epoch = await opened(stage, credential, EPOCH + number), EPOCH + number + 1
        before = await stage.cluster("edge1")
        # as another replica does, of which this session's process learns nothing
        await stage.store.run(lambda tx: tx.heartbeats.claim(EDGE, epoch))  # noqa: B023 - it is awaited
        await stream.send(**write)
        end = (await stream.status(), await stream.trailing("epoch"))
        if end != (STALE, str(epoch)) or await stage.cluster("edge1") != before:
            wrong.append((write, end))
    assert not wrong


async def test_farewell_moves_the_cluster_at_once_and_ends_the_session(stage: RpcStage) -> None:
    credential = await judged(stage)
    for hub in ("", str(HUB)):
        stream, before = await opened(stage, credential, EPOCH), await available(stage)
        await farewell(stream, hub, EPOCH)
        assert await available(stage) == before, "a farewell to nowhere changes nothing"

    stream = await opened(stage, credential, EPOCH)
    await stream.send(beat=wire.Beat(sequence=2))
    await farewell(stream)
    condition = present(rules.availability(await stage.cluster("edge1")))
    assert (condition.reason, OTHER in condition.message) == ("ManagedClusterMoved", True)
    await stage.parts.beats.flush()
    assert await available(stage) == MOVED


async def test_farewell_counts_although_its_agent_does_not_wait(stage: RpcStage) -> None:
    stream, gate = await opened(stage, await judged(stage), EPOCH), Event()
    busy = asyncio.create_task(stage.store.run(lambda _tx: gate.wait(10)))
    await stream.send(farewell=wire.Farewell(hub_id=OTHER, epoch=EPOCH + 1))
    await until(lambda: "farewell edge1" in {task.get_name() for task in asyncio.all_tasks()})
    await stream.close()
    await until(lambda: len(stage.parts.sessions) == 0)  # its handler is over, and the farewell still waits for its turn
    gate.set()
    await busy

    async def moved() -> bool:
        return await available(stage) == MOVED

    await until_found(moved)


async def test_held_beat_does_not_undo_the_farewell_after_it(tmp_path: Path) -> None:
    async with rpc_stage(tmp_path, flush_window=timedelta(minutes=1)) as stage:
        stream = await opened(stage, await judged(stage), EPOCH)
        await stream.send(beat=wire.Beat(sequence=2))
        await farewell(stream, epoch=EPOCH)
        await stage.parts.beats.flush()
        assert (await stage.last_beat()).owner == OTHER


async def test_session_that_knows_of_its_farewell_holds_no_beat_again(stage: RpcStage, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = await opened(stage, await judged(stage), EPOCH)
    session: Any = stage.parts.sessions.all()[0]
    run = stage.parts.store.run

    async def run_and_refresh(use_case: Any, *arguments: Any) -> Any:
        """Return from the farewell's transaction once the session has seen its outcome."""
        result = await run(use_case, *arguments)
        if getattr(use_case, "func", None) is owners.record_handover:
            await until(lambda: session._silent)
        return result

    monkeypatch.setattr(stage.parts.store, "run", run_and_refresh)
    await farewell(stream, epoch=EPOCH)
    await stage.parts.beats.flush()
    assert (await stage.last_beat()).owner == OTHER


async def test_agent_that_stands_by_learns_its_state_and_its_next_session_owns_the_cluster(stage: RpcStage) -> None:
    credential = await judged(stage)
    answer = await stand_by(stage, credential)
    assert (answer.accepted, answer.epoch, answer.trust_bundle) == (True, EPOCH, stage.issuer.trust_bundle)
    assert answer.again_after.ToTimedelta() == stage.parts.standby_interval
    assert answer.hub_time.seconds > 0
    assert await available(stage) == ("Unknown", "ManagedClusterStandby")
    await opened(stage, credential, EPOCH + 1)
    assert await available(stage) == ("True", "ManagedClusterAvailable")
    assert (await stand_by(stage, credential)).epoch == EPOCH + 1
    assert await available(stage) == ("True", "ManagedClusterAvailable")


async def test_agent_stands_by_and_leaves_only_for_itself(stage: RpcStage) -> None:
    credential, bootstrap = await judged(stage), await stage.bootstrap("edge1")
    await judged(stage, "edge2")
    rows: tuple[tuple[Any, dict[str, Any], grpc.StatusCode], ...] = (
        *((act, {"cluster_name": "edge2"}, FORBIDDEN) for act in (stand_by, leave)),
        *((act, {"agent_id": "another"}, FORBIDDEN) for act in (stand_by, leave)),
        *((act, {"cluster_uid": "uid-2"}, TAKEN) for act in (stand_by, leave)),
        (leave, {"cluster_uid": ""}, TAKEN),
        (stand_by, {"epoch": 2**64 - 1}, grpc.StatusCode.INVALID_ARGUMENT),
    )
    assert [(act, changed, (await refusal(act(stage, credential, **changed))).code) for act, changed, _ in rows] == list(rows)
    assert (await refusal(stand_by(stage, bootstrap))).code is FORBIDDEN
    assert not await leave(stage, bootstrap), "it has registered nothing"
    for name in ("edge1", "edge2"):
        document = await stage.cluster(name)
        assert rules.availability(document) is None
        assert not doc.is_deleting(document)
        assert not await stage.store.read(owners.is_claimed, cluster_name(name), 1)
        assert [record.revoked_at for record in await stage.records(name)] == [None]


async def test_bootstrap_credential_withdraws_what_it_registered_as_long_as_nobody_decided(stage: RpcStage) -> None:
    mine, other = await stage.bootstrap("edge1"), await stage.bootstrap("edge1")
    anybody = await stage.bootstrap(None)
    about = {"cluster_name": "edge1", "agent_id": "agent", "cluster_uid": "uid-1"}

    async def withdraw(credential: Credential, **asked: Any) -> tuple[bool, bool]:
        answer = await stage.stub(credential).Leave(registration.LeaveRequest(**{**about, **asked}))
        return answer.left, answer.cluster_stays

    async def requests() -> list[str]:
        return [each.key.name for each in await stage.store.read(lambda tx: tx.objects.find(REQUESTS, Query()).items)]

    await stage.stub(mine).EnsureCluster(joining())
    name = (await stage.stub(mine).SubmitRequest(submission())).name
    assert (await refusal(withdraw(mine, cluster_name="edge2"))).code is FORBIDDEN
    for credential, asked in ((other, {}), (anybody, {}), (mine, {"cluster_uid": "uid-2", "agent_id": "another"})):
        assert await withdraw(credential, **asked) == (False, False)
    assert (await requests(), doc.name(await stage.cluster("edge1"))) == ([name], "edge1")
    assert (await withdraw(mine), await requests()) == ((True, False), [])
    await check_refusal_of(NotFoundError, stage.cluster("edge1"))
    assert await withdraw(mine) == (False, False)

    await stage.stub(mine).EnsureCluster(joining())
    await stage.stub(mine).SubmitRequest(submission())
    for accepted in (True, False):
        await stage.accept("edge1", accepted=accepted)
        assert await withdraw(mine) == (True, True)
        assert (await requests(), doc.is_deleting(await stage.cluster("edge1"))) == ([], False)


async def test_cluster_leaves_with_its_certificates_and_may_repeat_that(stage: RpcStage) -> None:
    credential = await judged(stage)
    await stage.store.run(addons.put, {"metadata": {"name": "work", "namespace": "edge1"}, "spec": {}}, None, ADMIN)
    stream = await opened(stage, credential, EPOCH)
    assert await leave(stage, credential)
    assert doc.is_deleting(await stage.cluster("edge1"))
    assert all(record.revoked_reason == "ClusterLeft" for record in await stage.records("edge1"))
    assert await stream.status() is UNAUTHENTICATED
    for _ in range(2):
        assert not await leave(stage, credential)
        await stage.store.run(removal.delete_cluster, "edge1", timedelta(seconds=60), "hub")
    await check_refusal_of(NotFoundError, stage.cluster("edge1"))
    assert not await leave(stage, credential)
    assert (await refusal(stand_by(stage, credential))).code is UNAUTHENTICATED

    credential = await judged(stage)
    await stage.store.run(clusters.remove, await stage.store.read(clusters.find, EDGE), ADMIN)
    assert not await leave(stage, credential), "an operator has deleted it"

    credential = await judged(stage, "edge2")
    await stage.store.run(certificates.revoke_cluster, cluster_name("edge2"), "Compromised")
    await stage.parts.peers.poll()
    assert (await refusal(leave(stage, credential, cluster_name="edge2"))).code is UNAUTHENTICATED
    assert not doc.is_deleting(await stage.cluster("edge2"))


async def test_session_of_a_denied_cluster_ends_and_opens_when_it_is_accepted_again(stage: RpcStage) -> None:
    credential = await judged(stage)
    stream = await opened(stage, credential, EPOCH)
    await stage.accept("edge1", accepted=False)
    assert await stream.status() is FORBIDDEN
    again = await Stream.open(stage, credential, epoch=EPOCH)
    await check_refusal_of((AssertionError, aio.AioRpcError), again.expect("welcome"), match="PERMISSION_DENIED")
    refused = await refusal(stand_by(stage, credential, epoch=EPOCH + 1))
    assert refused.code is FORBIDDEN
    assert "hubctl accept edge1" in refused.message
    await stage.accept("edge1")
    await opened(stage, credential, EPOCH)


def listing(state: wire.Hub.State.ValueType = wire.Hub.STATE_READY) -> wire.Hubs:
    names = ((str(HUB), "here"), (OTHER, "there"))
    return wire.Hubs(hubs=[wire.Hub(hub_id=hub_id, name=name, state=state) for hub_id, name in names])


async def kinds_before_ack(stream: Stream, sequence: int, *states: wire.Hub.State.ValueType) -> list[str | None]:
    """Lists the hubs in each of these states, then reports; returns the kinds of messages before the acknowledgement."""
    for state in states:
        await stream.send(hubs=listing(state))
    await stream.send(status=wire.StatusReport(sequence=sequence))
    seen: list[str | None] = []
    while isinstance(message := await stream.call.read(), wire.HubMessage) and message.WhichOneof("message") != "report_ack":
        seen.append(message.WhichOneof("message"))
    return seen


async def test_hubs_of_an_agent_are_recorded_and_it_is_asked_to_move_until_it_has_gone(stage: RpcStage) -> None:
    credential = await judged(stage)
    await stage.store.run(lambda tx: tx.facts.set(HUB_ID, str(HUB)))
    stream = await stage.welcomed(credential, epoch=EPOCH, hubs=listing(wire.Hub.STATE_REGISTERING))
    await stream.send(hubs=listing())
    await stream.report()
    kept = agent_annotations.hubs_of(await stage.cluster("edge1"))
    assert [(hub["name"], hub["state"]) for hub in kept] == [("here", "Ready"), ("there", "Ready")]

    await stage.store.run(actions.order_move, EDGE, "there", ADMIN)
    assert (await stream.expect("drain")).target_hub_id == OTHER
    # It is asked once per order, and again when the hub is ready again.
    assert await kinds_before_ack(stream, 2, wire.Hub.STATE_READY) == []
    assert await kinds_before_ack(stream, 3, wire.Hub.STATE_UNREACHABLE, wire.Hub.STATE_READY) == ["drain"]
    await stream.close()
    again = await Stream.open(stage, credential, epoch=EPOCH, hubs=listing())
    assert (await again.expect("drain")).target_hub_id == OTHER
    await farewell(again)
    assert agent_annotations.move_to(await stage.cluster("edge1")) == ""
    back = await Stream.open(stage, credential, epoch=EPOCH + 2, hubs=listing())
    assert await kinds_before_ack(back, 1) == ["welcome", "desired"]


async def test_rebuilt_cluster_takes_its_name_with_an_operators_consent_and_the_old_one_loses_it(stage: RpcStage) -> None:
    stream = await opened(stage, await judged(stage), EPOCH)
    stub, rebuilt = stage.stub(await stage.bootstrap("edge1")), joining("edge1", "uid-2", "another")
    assert "hubctl accept edge1 --rebuilt" in (await refusal(stub.EnsureCluster(rebuilt))).message
    stored = await stage.store.read(clusters.find, EDGE)
    wanted = doc.annotations(stored.document)[duplicates.WANTED_BY]
    await stage.store.run(clusters.put, doc.with_annotations(stored.document, {rules.CLUSTER_UID: wanted}), stored, ADMIN)
    assert await stream.status() in (UNAUTHENTICATED, TAKEN)
    assert (await stub.EnsureCluster(rebuilt)).accepted


async def test_first_agent_keeps_the_cluster_while_it_has_a_session_and_another_is_refused_by_name(stage: RpcStage) -> None:
    """The other raises no epoch, by no call; the same agent supersedes at once; where the first is revoked the other comes."""
    credential, second = await judged(stage), await stage.enrol("edge1", agent="twin")
    first = await opened(stage, credential, EPOCH)

    async def is_recorded() -> bool:
        return bool(await stage.store.read(lambda tx: tx.agent_sessions.of(EDGE)))

    await until_found(is_recorded)
    message = ""
    for _ in range(2):
        twin = await Stream.open(stage, second, epoch=EPOCH + 5)
        assert await twin.status() is TAKEN
        refused = await refusal(stand_by(stage, second, agent_id="twin", epoch=EPOCH + 5))
        assert (refused.code, 'agent "agent" has the session' in refused.message) == (TAKEN, True)
        condition = present(conditions.find(doc.conditions(await stage.cluster("edge1")), rules.DUPLICATED))
        assert (condition.status, condition.reason) == ("True", "TwoAgents")
        assert "Agent agent has the session of this cluster, so the hub refuses agent twin" in condition.message
        assert (await stage.last_beat()).epoch == EPOCH
        async with asyncio.timeout(20):
            while not message:
                message = (await first.expect("desired")).second_agent
        assert message == condition.message, "the agent with the session receives the message about the other agent"
        await first.beat(2)
        superseding = await opened(stage, credential, EPOCH)
        assert await first.status() is SUPERSEDED
        first = superseding
        assert await stage.store.read(owners.own_agent, EDGE) == "agent", "it keeps its access to the API, too"
    await first.close()

    async def is_gone() -> bool:
        return not await is_recorded()

    await until_found(is_gone)
    twin = await Stream.open(stage, second, epoch=EPOCH + 5)
    assert await twin.status() is TAKEN, "the first one has a while to come back"
    await stage.store.run(revocation.revoke, RevocationTarget(cluster=EDGE, agent=AgentId("agent")), "Superseded", ADMIN)
    await opened(stage, second, EPOCH + 5)


@pytest.mark.postgres
async def test_what_is_decided_on_one_replica_counts_on_the_other(tmp_path: Path, migrated_postgres_url: str) -> None:
    url = SecretStr(migrated_postgres_url)
    async with (
        rpc_stage(tmp_path / "one", database_url=url, replica_name="one") as one,
        rpc_stage(tmp_path / "two", database_url=url, replica_name="two") as two,
    ):
        credential = await judged(one)
        await one.store.run(lambda tx: tx.facts.set(HUB_ID, str(HUB)))
        older = await opened(one, credential, EPOCH)
        newer = await Stream.open(two, credential, epoch=EPOCH + 1, hubs=listing())
        await newer.report()
        await older.send(beat=wire.Beat(sequence=2))
        assert await older.status() is STALE
        assert await (await Stream.open(two, credential, epoch=EPOCH)).status() is STALE
        await one.store.run(actions.order_move, EDGE, OTHER, ADMIN)
        assert (await newer.expect("drain")).target_hub_id == OTHER
        await one.accept("edge1", accepted=False)
        assert await newer.status() is FORBIDDEN

        await one.accept("edge1")
        older, newer = await opened(one, credential, EPOCH + 1), await opened(two, credential, EPOCH + 1)
        assert await older.status() is SUPERSEDED
        await one.store.run(revocation.revoke, RevocationTarget(cluster=EDGE), "Unspecified", ADMIN)
        assert await newer.status() is UNAUTHENTICATED
        for replica in (one, two):
            await replica.parts.peers.poll()
            assert (await refusal(stand_by(replica, credential))).code is UNAUTHENTICATED

        stub = two.stub(await one.bootstrap("edge2"))
        await two.join(stub, "edge2")
        name = (await stub.SubmitRequest(submission("edge2"))).name
        answers = aiter(stub.FollowRequest(following(name)))
        assert (await anext(answers)).state == PENDING
        await one.accept("edge2")
        await one.approve(name)
        assert [answer.state async for answer in answers][-1] == ISSUED
