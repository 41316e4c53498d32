"""Several hubs from one hub's side: epochs, farewells and agents in reserve, over real gRPC."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import Any

import grpc
import pytest
from grpc import aio

from hub.domain import cluster as rules
from hub.domain import document as doc
from hub.domain import duplicate, reported
from hub.services import addons, certificates, clusters, moves, owners, removal
from machinery.errors import NotFoundError
from machinery.identity import cluster_name
from machinery.kubeconfig import Credential
from machinery.wire.registration.v1 import registration_pb2 as registration
from machinery.wire.registration.v1.registration_pb2_grpc import RegistrationStub
from machinery.wire.session.v1 import session_pb2 as wire
from tests.fakes.rpc_stage import ADMIN, HUB, RpcStage, Stream, rpc_stage

OTHER = "b2f1d5a0-0000-4000-8000-000000000002"
EPOCH = 1_790_000_000_000
STALE = grpc.StatusCode.FAILED_PRECONDITION


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while True:
            if holds():
                return
            await asyncio.sleep(0.01)


async def judged(stage: RpcStage, cluster: str = "edge1", agent: str = "agent") -> Credential:
    """An agent of a cluster that the hub has accepted in every way."""
    credential = await stage.enrol(cluster, agent=agent)
    await stage.store.run(clusters.set_condition, cluster_name(cluster), rules.ACCEPTED, ADMIN)
    return credential


async def stand_by(stage: RpcStage, credential: Credential, **asked: Any) -> registration.StandByResponse:
    told = {
        "cluster_name": "edge1",
        "agent_id": "agent",
        "cluster_uid": "uid-1",
        "owner_hub_id": OTHER,
        "epoch": EPOCH,
        **asked,
    }
    async with stage.channel(credential) as channel:
        answer: registration.StandByResponse = await RegistrationStub(channel).StandBy(registration.StandByRequest(**told))
        return answer


async def available(stage: RpcStage) -> tuple[str, str]:
    condition = rules.availability(await stage.cluster("edge1"))
    return (condition.status, condition.reason) if condition else ("", "")


async def opened(stage: RpcStage, credential: Credential, epoch: int) -> Stream:
    """A session whose first beat is stored."""
    stream = await Stream.open(stage, credential, epoch=epoch)
    await stream.expect("welcome")
    await stream.send(beat=wire.Beat(sequence=1, verdict=wire.VERDICT_AVAILABLE))
    await stream.expect("beat_ack")
    return stream


async def test_a_session_of_an_older_epoch_is_refused_with_the_epoch_that_is_known(stage: RpcStage) -> None:
    credential = await judged(stage)
    first = await opened(stage, credential, EPOCH)
    stale = await Stream.open(stage, credential, epoch=EPOCH - 1)
    assert await stale.status() is STALE
    assert (await stale.trailing("reason"), await stale.trailing("epoch")) == ("StaleEpoch", str(EPOCH))
    await first.send(beat=wire.Beat(sequence=2))
    assert (await first.expect("beat_ack")).sequence == 2
    await first.close()
    await stale.close()


async def test_an_agent_that_keeps_no_epoch_is_served_as_ever(stage: RpcStage) -> None:
    credential = await judged(stage)
    await (await opened(stage, credential, EPOCH)).close()
    await (await opened(stage, credential, 0)).close()


@pytest.mark.parametrize(
    "write",
    [
        {"beat": wire.Beat(sequence=2)},
        {"status": wire.StatusReport(sequence=1, complete=True, kubernetes_version="v1")},
        {"addon": wire.AddOnReport(sequence=1, addon_name="work")},
    ],
    ids=["beat", "report", "add-on report"],
)
async def test_no_write_of_an_outdated_session_is_taken_and_it_ends(stage: RpcStage, write: dict[str, Any]) -> None:
    credential = await judged(stage)
    stream = await opened(stage, credential, EPOCH)
    before = await stage.cluster("edge1")
    # as another replica does, which this session's process hears nothing of
    await stage.store.run(lambda tx: tx.heartbeats.claim(cluster_name("edge1"), EPOCH + 1))
    await stream.send(**write)
    async with asyncio.timeout(10):
        assert await stream.status() is STALE
    assert await stream.trailing("epoch") == str(EPOCH + 1)
    assert await stage.cluster("edge1") == before
    await stream.close()


async def test_a_farewell_moves_the_cluster_at_once_and_ends_the_session(stage: RpcStage) -> None:
    stream = await opened(stage, await judged(stage), EPOCH)
    await stream.send(beat=wire.Beat(sequence=2))
    await stream.send(farewell=wire.Farewell(hub_id=OTHER, epoch=EPOCH + 1))
    assert await stream.status() is grpc.StatusCode.OK
    condition = rules.availability(await stage.cluster("edge1"))
    assert condition is not None
    assert (condition.reason, OTHER in condition.message) == ("ManagedClusterMoved", True)
    await stage.parts.beats.flush()
    assert await available(stage) == ("Unknown", "ManagedClusterMoved")
    await stream.close()


async def test_an_epoch_counts_from_the_hello_on(stage: RpcStage) -> None:
    credential = await judged(stage)
    first = await Stream.open(stage, credential, epoch=EPOCH)
    await first.expect("welcome")
    last = await stage.store.read(lambda tx: tx.heartbeats.of(cluster_name("edge1")))
    assert last is not None
    assert last.epoch == EPOCH
    stale = await Stream.open(stage, credential, epoch=EPOCH - 1)
    assert await stale.status() is STALE
    await first.close()
    await stale.close()


async def test_a_farewell_counts_although_its_agent_does_not_wait(stage: RpcStage) -> None:
    stream = await opened(stage, await judged(stage), EPOCH)
    gate = Event()
    busy = asyncio.create_task(stage.store.run(lambda _tx: gate.wait(10)))
    await stream.send(farewell=wire.Farewell(hub_id=OTHER, epoch=EPOCH + 1))
    await until(lambda: "farewell edge1" in {task.get_name() for task in asyncio.all_tasks()})
    await stream.close()
    await until(lambda: len(stage.parts.sessions) == 0)  # its handler is over, and the farewell still waits for its turn
    gate.set()
    await busy
    async with asyncio.timeout(20):
        async for _ in stage.store.follow(0):
            if await available(stage) == ("Unknown", "ManagedClusterMoved"):
                return


async def test_a_beat_that_is_held_does_not_undo_the_farewell_after_it(tmp_path: Path) -> None:
    async with rpc_stage(tmp_path, window=timedelta(minutes=1)) as stage:
        stream = await Stream.open(stage, await judged(stage), epoch=EPOCH)
        await stream.send(beat=wire.Beat(sequence=1, verdict=wire.VERDICT_AVAILABLE))
        await stream.expect("beat_ack")
        await stream.send(beat=wire.Beat(sequence=2))
        await stream.send(farewell=wire.Farewell(hub_id=OTHER, epoch=EPOCH))
        assert await stream.status() is grpc.StatusCode.OK
        await stage.parts.beats.flush()
        last = await stage.store.read(lambda tx: tx.heartbeats.of(cluster_name("edge1")))
        assert last is not None
        assert last.owner == OTHER
        await stream.close()


@pytest.mark.parametrize("hub", ["", str(HUB)])
async def test_a_farewell_to_nowhere_leaves_the_cluster_as_it_is(stage: RpcStage, hub: str) -> None:
    stream = await opened(stage, await judged(stage), EPOCH)
    before = await available(stage)
    await stream.send(farewell=wire.Farewell(hub_id=hub, epoch=EPOCH))
    assert await stream.status() is grpc.StatusCode.OK
    assert await available(stage) == before
    await stream.close()


async def test_an_agent_in_reserve_is_told_how_it_stands(stage: RpcStage) -> None:
    answer = await stand_by(stage, await judged(stage))
    assert (answer.accepted, answer.epoch) == (True, EPOCH)
    assert answer.trust_bundle == stage.issuer.trust_bundle
    assert answer.again_after.ToTimedelta() == stage.parts.standby_interval
    assert answer.hub_time.seconds > 0
    assert await available(stage) == ("Unknown", "ManagedClusterStandby")


async def test_a_session_after_a_standby_restores_what_the_agent_says(stage: RpcStage) -> None:
    credential = await judged(stage)
    await stand_by(stage, credential)
    stream = await opened(stage, credential, EPOCH + 1)
    assert await available(stage) == ("True", "ManagedClusterAvailable")
    assert (await stand_by(stage, credential)).epoch == EPOCH + 1
    assert await available(stage) == ("True", "ManagedClusterAvailable")
    await stream.close()


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"cluster_name": "edge2"}, grpc.StatusCode.PERMISSION_DENIED),
        ({"agent_id": "another"}, grpc.StatusCode.PERMISSION_DENIED),
        ({"cluster_uid": "uid-2"}, grpc.StatusCode.ALREADY_EXISTS),
        ({"epoch": 2**64 - 1}, grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
async def test_nobody_stands_by_for_another(stage: RpcStage, changed: dict[str, Any], code: grpc.StatusCode) -> None:
    credential = await judged(stage)
    await judged(stage, "edge2")
    with pytest.raises(aio.AioRpcError) as refused:
        await stand_by(stage, credential, **changed)
    assert refused.value.code() is code
    for name in ("edge1", "edge2"):
        assert rules.availability(await stage.cluster(name)) is None
        assert not await stage.store.read(owners.is_claimed, cluster_name(name), 1)
    with pytest.raises(aio.AioRpcError) as refused:
        await stand_by(stage, await stage.bootstrap("edge1"))
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED


async def leave(stage: RpcStage, credential: Credential, **asked: Any) -> bool:
    told = {"cluster_name": "edge1", "agent_id": "agent", "cluster_uid": "uid-1", **asked}
    async with stage.channel(credential) as channel:
        return bool((await RegistrationStub(channel).Leave(registration.LeaveRequest(**told))).left)


async def test_a_cluster_leaves_with_its_certificates_and_may_say_so_again(stage: RpcStage) -> None:
    credential = await judged(stage)
    addon = {"metadata": {"name": "work", "namespace": "edge1"}, "spec": {}}
    await stage.store.run(addons.put, addon, None, ADMIN)
    stream = await opened(stage, credential, EPOCH)
    assert await leave(stage, credential)
    assert doc.is_deleting(await stage.cluster("edge1"))
    assert all(record.revoked_reason == "ClusterLeft" for record in await stage.records("edge1"))
    assert await stream.status() is grpc.StatusCode.UNAUTHENTICATED
    await stream.close()
    for _ in range(2):
        assert not await leave(stage, credential)
        await stage.store.run(removal.proceed, "edge1", timedelta(seconds=60), "hub")
    with pytest.raises(NotFoundError):
        await stage.cluster("edge1")
    assert not await leave(stage, credential)
    with pytest.raises(aio.AioRpcError) as refused:
        await stand_by(stage, credential)
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_cluster_that_an_operator_has_deleted_has_left(stage: RpcStage) -> None:
    credential = await judged(stage)
    stored = await stage.store.read(clusters.find, cluster_name("edge1"))
    await stage.store.run(clusters.remove, stored, ADMIN)
    assert not await leave(stage, credential)


async def test_who_was_revoked_for_another_reason_has_not_left(stage: RpcStage) -> None:
    credential = await judged(stage)
    await stage.store.run(certificates.revoke_cluster, cluster_name("edge1"), "Compromised")
    await stage.parts.peers.poll()
    with pytest.raises(aio.AioRpcError) as refused:
        await leave(stage, credential)
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert not doc.is_deleting(await stage.cluster("edge1"))


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"cluster_name": "edge2"}, grpc.StatusCode.PERMISSION_DENIED),
        ({"agent_id": "another"}, grpc.StatusCode.PERMISSION_DENIED),
        ({"cluster_uid": "uid-2"}, grpc.StatusCode.ALREADY_EXISTS),
        ({"cluster_uid": ""}, grpc.StatusCode.ALREADY_EXISTS),
    ],
)
async def test_nobody_leaves_for_another(stage: RpcStage, changed: dict[str, Any], code: grpc.StatusCode) -> None:
    credential = await judged(stage)
    await judged(stage, "edge2")
    bootstrap = await stage.bootstrap("edge1")
    with pytest.raises(aio.AioRpcError) as refused:
        await leave(stage, credential, **changed)
    assert refused.value.code() is code
    with pytest.raises(aio.AioRpcError) as refused:
        await leave(stage, bootstrap)
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
    for name in ("edge1", "edge2"):
        assert not doc.is_deleting(await stage.cluster(name))
        assert [record.revoked_at for record in await stage.records(name)] == [None]


async def test_the_session_of_a_denied_cluster_ends_at_once_and_opens_when_it_is_accepted_again(
    stage: RpcStage,
) -> None:
    credential = await judged(stage)
    stream = await opened(stage, credential, EPOCH)
    await stage.accept("edge1", accepted=False)
    async with asyncio.timeout(20):
        assert await stream.status() is grpc.StatusCode.PERMISSION_DENIED
    again = await Stream.open(stage, credential, epoch=EPOCH)
    with pytest.raises((AssertionError, aio.AioRpcError), match="PERMISSION_DENIED"):
        await again.expect("welcome")
    with pytest.raises(aio.AioRpcError, match="hubctl accept edge1") as refused:
        await stand_by(stage, credential, epoch=EPOCH + 1)
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
    await stage.accept("edge1")
    await (await opened(stage, credential, EPOCH)).close()
    await stream.close()
    await again.close()


async def test_a_cluster_that_nobody_has_judged_yet_waits_in_its_session(stage: RpcStage) -> None:
    stream = await Stream.open(stage, await stage.enrol("edge1", accepted=False), epoch=EPOCH)
    assert not (await stream.expect("desired")).accepted
    await stage.accept("edge1")
    assert (await stream.expect("desired")).accepted
    await stream.close()


def listing(state: wire.Hub.State.ValueType = wire.Hub.STATE_READY) -> wire.Hubs:
    names = ((str(HUB), "here"), (OTHER, "there"))
    return wire.Hubs(hubs=[wire.Hub(hub_id=hub_id, name=name, state=state) for hub_id, name in names])


async def test_the_hubs_of_an_agent_are_kept_as_it_tells_them(stage: RpcStage) -> None:
    stream = await Stream.open(stage, await judged(stage), epoch=EPOCH, hubs=listing(wire.Hub.STATE_REGISTERING))
    await stream.expect("welcome")
    await stream.send(hubs=listing())
    await stream.send(status=wire.StatusReport(sequence=1))
    await stream.expect("report_ack")
    kept = reported.hubs_of(await stage.cluster("edge1"))
    assert [(hub["name"], hub["state"]) for hub in kept] == [("here", "Ready"), ("there", "Ready")]
    await stream.close()


async def test_an_agent_is_asked_to_move_in_every_session_until_it_has_gone(stage: RpcStage) -> None:
    credential = await judged(stage)
    await stage.store.run(lambda tx: tx.facts.set(moves.HUB_ID, str(HUB)))
    stream = await Stream.open(stage, credential, epoch=EPOCH, hubs=listing())
    await stream.expect("welcome")
    await stream.send(status=wire.StatusReport(sequence=1))
    await stream.expect("report_ack")
    await stage.store.run(moves.order, cluster_name("edge1"), "there", ADMIN)
    assert (await stream.expect("drain")).target_hub_id == OTHER
    await stream.close()
    again = await Stream.open(stage, credential, epoch=EPOCH, hubs=listing())
    assert (await again.expect("drain")).target_hub_id == OTHER
    await again.send(farewell=wire.Farewell(hub_id=OTHER, epoch=EPOCH + 1))
    assert await again.status() is grpc.StatusCode.OK
    assert reported.move_to(await stage.cluster("edge1")) == ""
    back = await Stream.open(stage, credential, epoch=EPOCH + 2, hubs=listing())
    await back.send(status=wire.StatusReport(sequence=1))
    seen: list[str | None] = []
    while "report_ack" not in seen and isinstance(message := await back.call.read(), wire.HubMessage):
        seen.append(message.WhichOneof("message"))
    assert seen == ["welcome", "desired", "report_ack"]
    await again.close()
    await back.close()


async def test_labels_at_join_are_those_that_are_listed(tmp_path: Path) -> None:
    async with rpc_stage(tmp_path) as stage:
        object.__setattr__(stage.parts, "join_labels", ("example.com/*",))
        told = {"example.com/tier": "1", "region": "eu", "cluster.open-cluster-management.io/clusterset": "prod"}
        async with stage.channel(await stage.bootstrap("edge1")) as channel:
            asked = registration.EnsureClusterRequest(cluster_name="edge1", cluster_uid="uid-1", agent_id="agent", labels=told)
            await RegistrationStub(channel).EnsureCluster(asked)
        labels = doc.labels(await stage.cluster("edge1"))
        assert (labels.get("example.com/tier"), "region" in labels, "prod" in labels.values()) == ("1", False, False)


async def test_a_rebuilt_cluster_takes_its_name_with_an_operators_word_and_the_old_one_loses_it(stage: RpcStage) -> None:
    credential = await judged(stage)
    stream = await opened(stage, credential, EPOCH)
    async with stage.channel(await stage.bootstrap("edge1")) as channel:
        joining = registration.EnsureClusterRequest(cluster_name="edge1", cluster_uid="uid-2", agent_id="another")
        with pytest.raises(aio.AioRpcError, match="hubctl accept edge1 --rebuilt"):
            await RegistrationStub(channel).EnsureCluster(joining)
        stored = await stage.store.read(clusters.find, cluster_name("edge1"))
        wanted = doc.annotations(stored.document)[duplicate.WANTED_BY]
        handed = doc.with_annotations(stored.document, {rules.CLUSTER_UID: wanted})
        await stage.store.run(clusters.put, handed, stored, ADMIN)
        assert await stream.status() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.ALREADY_EXISTS)
        assert (await RegistrationStub(channel).EnsureCluster(joining)).accepted
    await stream.close()


async def test_two_agents_of_one_cluster_are_shown(stage: RpcStage) -> None:
    first, second = await judged(stage), await stage.enrol("edge1", agent="twin")
    streams = [await opened(stage, first, EPOCH), await opened(stage, second, EPOCH)]
    async with asyncio.timeout(20):
        async for _ in stage.store.follow(0):
            if duplicate.reason(await stage.cluster("edge1")) == "TwoAgents":
                break
    await streams[1].close()
    async with asyncio.timeout(20):
        async for _ in stage.store.follow(0):
            if not duplicate.reason(await stage.cluster("edge1")):
                break
    await streams[0].close()


async def test_what_one_replica_was_told_counts_on_the_other(tmp_path: Path) -> None:
    async with rpc_stage(tmp_path) as one, rpc_stage(tmp_path) as two:
        credential = await judged(one)
        await one.store.run(lambda tx: tx.facts.set(moves.HUB_ID, str(HUB)))
        older = await opened(one, credential, EPOCH)
        newer = await Stream.open(two, credential, epoch=EPOCH + 1, hubs=listing())
        await newer.send(status=wire.StatusReport(sequence=1))
        await newer.expect("report_ack")
        await older.send(beat=wire.Beat(sequence=2))
        assert await older.status() is STALE
        stale = await Stream.open(two, credential, epoch=EPOCH)
        assert await stale.status() is STALE
        await one.store.run(moves.order, cluster_name("edge1"), OTHER, ADMIN)
        assert (await newer.expect("drain")).target_hub_id == OTHER
        await one.accept("edge1", accepted=False)
        async with asyncio.timeout(20):
            assert await newer.status() is grpc.StatusCode.PERMISSION_DENIED
        for stream in (older, newer, stale):
            await stream.close()
