"""Agents are asked to renew ahead of time, at a real door: by an operator's order, and because their CA is on its way out."""

import asyncio
from dataclasses import replace
from datetime import UTC, timedelta
from typing import Any

import pytest

from hub.domain.authority import Authority, AuthorityId, Phase
from hub.domain.renewal import LATE
from hub.services import renewals
from machinery.identity import ClusterName, HubId
from machinery.kubeconfig import Credential
from machinery.wire.registration.v1 import registration_pb2 as registration
from machinery.wire.registration.v1.registration_pb2_grpc import RegistrationStub
from tests.fakes.rpc_stage import ADMIN, RpcStage, Stream

EDGE = ClusterName("edge1")
ELSEWHERE = HubId("b2f1d5a0-0000-4000-8000-000000000002")
HOUR = timedelta(hours=1)


async def order(stage: RpcStage, within: timedelta = HOUR) -> Any:
    return await stage.store.run(renewals.order, EDGE, within, ADMIN)


async def asked_in_time(stream: Stream) -> Any:
    """The next Desired that asks for a renewal."""
    async with asyncio.timeout(10):
        while not (desired := await stream.expect("desired")).HasField("renew_within"):
            pass
        return desired


async def stand_by(stage: RpcStage, credential: Credential) -> registration.StandByResponse:
    async with stage.channel(credential) as channel:
        asked = registration.StandByRequest(
            cluster_name="edge1", agent_id="agent", cluster_uid="uid-1", owner_hub_id=ELSEWHERE, epoch=1
        )
        answer: registration.StandByResponse = await RegistrationStub(channel).StandBy(asked)
        return answer


async def test_a_session_whose_certificate_is_older_than_the_order_is_asked_at_once_and_a_newer_one_never(
    stage: RpcStage,
) -> None:
    stream = await Stream.open(stage, await stage.enrol("edge1"))
    assert not (await stream.expect("desired")).HasField("renew_within")
    given = (await order(stage)).order
    desired = await asked_in_time(stream)
    assert timedelta(minutes=59) < desired.renew_within.ToTimedelta() <= HOUR
    assert desired.renew_addons_before.ToDatetime(UTC) == given.before
    newer = await Stream.open(stage, await stage.enrol("edge1"))
    told = await newer.expect("desired")
    assert not told.HasField("renew_within")
    assert told.renew_addons_before.ToDatetime(UTC) == given.before, "those of add-ons may be older"
    found = await stage.store.read(renewals.progress, EDGE)
    assert [(holder.agent, holder.renewed) for holder in found.holders] == [("agent", True)]
    await stream.close()
    await newer.close()


async def test_who_comes_back_when_the_time_is_over_is_asked_too_and_has_a_moment(stage: RpcStage) -> None:
    credential = await stage.enrol("edge1")
    await order(stage, timedelta(seconds=0))
    await order(stage, timedelta(minutes=1))
    stream = await Stream.open(stage, credential)
    assert (await asked_in_time(stream)).renew_within.ToTimedelta() > LATE
    assert (await stand_by(stage, credential)).renew_within.ToTimedelta() > LATE
    assert not [holder for holder in (await stage.store.read(renewals.progress, EDGE)).holders if holder.renewed]
    await stream.close()


async def test_who_stands_by_is_asked_only_while_its_certificate_is_older(stage: RpcStage) -> None:
    older = await stage.enrol("edge1")
    assert not (await stand_by(stage, older)).HasField("renew_within")
    await order(stage)
    assert (await stand_by(stage, older)).HasField("renew_within")
    assert not (await stand_by(stage, await stage.enrol("edge1"))).HasField("renew_within")


async def test_agents_of_a_ca_that_is_on_its_way_out_are_asked_to_renew_while_they_are_connected(
    stage: RpcStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await Stream.open(stage, await stage.enrol("edge1"))
    await stream.expect("desired")
    (record,) = await stage.records("edge1")
    assert record.signed_by is not None
    now = stage.parts.clock.now()
    present = Authority(AuthorityId(record.signed_by.removeprefix("hub/")), b"", Phase.ISSUING, now, now)
    standing = [present]
    object.__setattr__(stage.parts, "authorities", lambda: tuple(standing))
    assert stage.parts.trusting is not None
    monkeypatch.setattr(stage.parts.trusting, "_standing", lambda: tuple(standing))
    standing[:] = [replace(present, phase=Phase.OUTGOING)]
    assert (await asked_in_time(stream)).renew_within.ToTimedelta() >= timedelta(seconds=10)
    standing[:] = [replace(present, phase=Phase.RETIRING)]
    async with asyncio.timeout(10):
        while (await stream.expect("desired")).HasField("renew_within"):
            pass
    await stream.close()
