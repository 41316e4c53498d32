"""The listener itself: the port, the certificates it shows and trusts, health, and what it does without a database."""

import asyncio
import ssl
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub

from hub.domain.heartbeat import Beat
from hub.heartbeat import BeatBuffer, Sink
from hub.rpc.door import RpcDoor
from machinery import pki
from machinery.clock import ManualClock
from machinery.errors import StaleEpochError, UnavailableError
from machinery.identity import Subject, cluster_name
from machinery.kubeconfig import Credential
from machinery.lifecycle.server import StartError
from machinery.tls import Material, client_context, shown_certificate
from machinery.wire.registration.v1 import registration_pb2 as wire
from machinery.wire.registration.v1.registration_pb2_grpc import RegistrationStub
from tests.fakes.authority import OtherCA
from tests.fakes.memory_store import MemoryStore
from tests.fakes.rpc_stage import RpcStage


async def test_a_port_that_is_taken_is_said_so_also_by_a_second_hub(stage: RpcStage) -> None:
    second = RpcDoor("127.0.0.1", stage.door.port, stage.serving, stage.parts)
    try:
        with pytest.raises(StartError, match=f"{stage.door.port}.*in use.*--grpc-listen"):
            await second.start()
    finally:
        await second.close(timedelta())


async def test_a_peer_without_a_certificate_of_this_hub_is_not_let_in(stage: RpcStage) -> None:
    from machinery.clock import SystemClock  # noqa: PLC0415 - only here

    now, key = SystemClock().now(), pki.generate_key()
    foreign = pki.create_authority(
        Subject("foreign"), key, pki.random_serial(), now - timedelta(days=1), now + timedelta(days=9)
    )
    plan = pki.Plan(Subject("x"), pki.public_key_of(key), pki.random_serial(), now, now + timedelta(days=1))
    async with stage.channel(Credential(foreign.sign(plan), key)) as channel:
        with pytest.raises(aio.AioRpcError) as caught:
            await RegistrationStub(channel).GetHub(wire.GetHubRequest())
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_cas_are_exchanged_while_the_door_serves(stage: RpcStage) -> None:
    """A certificate of a CA that is trusted gets as far as the records, where a stranger's has none."""
    other, before = OtherCA(), stage.serving.material
    stranger = other.issue("x")

    async def told(credential: Credential) -> grpc.StatusCode:
        async with stage.channel(credential) as channel:
            with pytest.raises(aio.AioRpcError) as caught:
                await RegistrationStub(channel).GetHub(wire.GetHubRequest())
        return caught.value.code()

    mine = await stage.bootstrap("edge1")
    async with stage.channel(mine) as kept:
        assert (await RegistrationStub(kept).GetHub(wire.GetHubRequest())).hub_id
        assert await told(stranger) is grpc.StatusCode.UNAVAILABLE
        stage.serving.replace(replace(before, trust=before.trust + other.certificate))
        assert await told(stranger) is grpc.StatusCode.UNAUTHENTICATED
        async with stage.channel(mine) as channel:
            assert (await RegistrationStub(channel).GetHub(wire.GetHubRequest())).hub_id
        stage.serving.replace(before)
        assert await told(stranger) is grpc.StatusCode.UNAVAILABLE
        assert (await RegistrationStub(kept).GetHub(wire.GetHubRequest())).hub_id


async def test_a_new_serving_certificate_is_shown_to_the_next_connection(stage: RpcStage, tmp_path: Path) -> None:
    before = await shown_certificate("localhost", stage.door.port)
    folder = tmp_path / "next"
    folder.mkdir()
    from hub.issuer import ServingNames  # noqa: PLC0415 - only here
    from machinery.clock import SystemClock  # noqa: PLC0415 - only here

    material = stage.issuer.serving(folder, ServingNames(("localhost",)), stage.lifetimes, SystemClock().now())
    stage.serving.replace(material)
    after = await shown_certificate("localhost", stage.door.port)
    assert before != after == ssl.PEM_cert_to_DER_cert(material.chain.decode())
    async with stage.channel(await stage.bootstrap("edge1")) as channel:
        assert (await RegistrationStub(channel).GetHub(wire.GetHubRequest())).hub_id


async def test_health_is_served_and_a_watch_ends_with_the_door(stage: RpcStage) -> None:
    async with stage.channel(await stage.bootstrap("edge1")) as channel:
        stub: Any = HealthStub(channel)  # type: ignore[no-untyped-call]
        assert (await stub.Check(health_pb2.HealthCheckRequest())).status == health_pb2.HealthCheckResponse.SERVING
        watch = stub.Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        await stage.door.refuse()
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        async with asyncio.timeout(10):
            assert await watch.read() is aio.EOF


async def test_calls_after_the_gate_closed_are_unavailable_and_never_cancelled(stage: RpcStage) -> None:
    async with stage.channel(await stage.bootstrap("edge1")) as channel:
        stub = RegistrationStub(channel)
        await stub.GetHub(wire.GetHubRequest())
        calls = [stub.GetHub(wire.GetHubRequest()) for _ in range(200)]
        await stage.door.refuse()
        await stage.door.drain(timedelta(seconds=5))
        await stage.door.close(timedelta(seconds=1))
        codes = {await call.code() for call in calls}
    assert codes <= {grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE}


def test_a_key_that_does_not_fit_leaves_the_serving_material_as_it_was(tmp_path: Path) -> None:
    from hub.domain.certificate import Lifetimes  # noqa: PLC0415 - only here
    from hub.issuer import LocalIssuer, ServingNames  # noqa: PLC0415 - only here
    from machinery.clock import SystemClock  # noqa: PLC0415 - only here
    from machinery.errors import InvalidError  # noqa: PLC0415 - only here
    from machinery.tls import Serving  # noqa: PLC0415 - only here

    now = SystemClock().now()
    issuer = LocalIssuer.open(tmp_path, Lifetimes(), now)
    serving = Serving(issuer.serving(tmp_path, ServingNames(("localhost",)), Lifetimes(), now))
    before = serving.material
    with pytest.raises(InvalidError):
        serving.replace(Material(before.chain, pki.generate_key(), before.trust))
    assert serving.material is before
    assert client_context(before.trust)


class Acks(Sink):
    def __init__(self) -> None:
        self.seen: list[int] = []

    def acknowledge(self, sequence: int, *, ended_silence: bool) -> None:
        del ended_silence
        self.seen.append(sequence)

    def refuse(self, error: StaleEpochError) -> None:
        raise AssertionError(error.message)


class UnwillingStore(MemoryStore):
    """A store that is away, or slow, while it is told to be."""

    def __init__(self) -> None:
        super().__init__(ManualClock())
        self.away = False
        self.gate: asyncio.Event | None = None

    async def run(self, use_case: Any, *args: Any, **kwargs: Any) -> Any:
        if self.gate is not None:
            await self.gate.wait()
        if self.away:
            raise UnavailableError("the database is away")
        return await super().run(use_case, *args, **kwargs)


async def beats_of(store: MemoryStore, cluster: str) -> Any:
    return await store.read(lambda tx: tx.heartbeats.of(cluster_name(cluster)))


async def test_a_beat_is_acknowledged_only_once_it_is_durable() -> None:
    store, acks = UnwillingStore(), Acks()
    buffer = BeatBuffer(store, ManualClock(), timedelta(seconds=1))
    store.gate = asyncio.Event()
    buffer.hold(cluster_name("edge1"), 1, acks, available=True)
    flush = asyncio.create_task(buffer.flush())
    await asyncio.sleep(0)
    assert acks.seen == []
    store.gate.set()
    await flush
    assert acks.seen == [1]
    assert (await beats_of(store, "edge1")).available is True


async def test_while_the_database_is_away_the_newest_beat_is_kept_and_none_acknowledged() -> None:
    store, clock, acks = UnwillingStore(), ManualClock(), Acks()
    buffer = BeatBuffer(store, clock, timedelta(seconds=1))
    store.away = True
    for sequence in (1, 2):
        buffer.hold(cluster_name("edge1"), sequence, acks, available=sequence == 1, ends_silence=sequence == 2)
        await buffer.flush()
        clock.advance(timedelta(seconds=1))
    assert acks.seen == []
    store.away = False
    await buffer.flush()
    assert acks.seen == [2]
    assert (await beats_of(store, "edge1")).available is False


async def test_a_beat_is_as_old_as_it_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    del monkeypatch
    store, clock = MemoryStore(ManualClock()), ManualClock()
    seen: list[Beat] = []

    class Watching(MemoryStore):
        async def run(self, use_case: Any, *args: Any, **kwargs: Any) -> Any:
            seen.extend(args[0])
            return await store.run(use_case, *args, **kwargs)

    buffer = BeatBuffer(Watching(ManualClock()), clock, timedelta(seconds=1))
    buffer.hold(cluster_name("edge1"), 1, Acks(), available=None)
    clock.advance(timedelta(milliseconds=700))
    await buffer.flush()
    assert [beat.age for beat in seen] == [timedelta(milliseconds=700)]


async def test_a_beat_that_ends_a_silence_is_acknowledged_although_the_window_ends_while_it_is_stored() -> None:
    store, acks = UnwillingStore(), Acks()
    buffer = BeatBuffer(store, ManualClock(), timedelta(milliseconds=20))
    buffer.hold(cluster_name("edge1"), 1, acks, available=True)
    running = asyncio.create_task(buffer.run())
    async with asyncio.timeout(20):
        while acks.seen != [1]:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0)
    store.gate = asyncio.Event()
    buffer.hold(cluster_name("edge2"), 2, acks, available=True, ends_silence=True)
    await asyncio.sleep(0.1)
    store.gate.set()
    async with asyncio.timeout(20):
        while acks.seen != [1, 2]:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0)
    running.cancel()
