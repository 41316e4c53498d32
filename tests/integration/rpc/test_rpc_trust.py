"""What agents trust, at a real door: kept as they say it, and the bundle pushed to those whose trust is another."""

import asyncio
from datetime import UTC, datetime, timedelta

import grpc
import pytest

from hub.domain.trust import AgentTrust
from hub.rpc.trusting import fingerprints
from hub.services import trust
from machinery import pki
from machinery.errors import MusterError
from machinery.identity import AgentId, ClusterName, HubId, Subject
from machinery.wire.registration.v1 import registration_pb2 as registration
from machinery.wire.registration.v1.registration_pb2_grpc import RegistrationStub
from tests.fakes.rpc_stage import RpcStage, Stream

OTHER = "c" * 64
ELSEWHERE = HubId("b2f1d5a0-0000-4000-8000-000000000002")


async def kept(stage: RpcStage, cluster: str = "edge1") -> AgentTrust | None:
    return await stage.store.read(lambda tx: tx.trusts.get(ClusterName(cluster), AgentId("agent")))


async def until_trusted(stage: RpcStage, wanted: frozenset[str] | None, cluster: str = "edge1") -> AgentTrust:
    async with asyncio.timeout(10):
        while True:
            found = await kept(stage, cluster)
            if found is not None and found.trusted == wanted:
                return found
            await asyncio.sleep(0.02)


def own(stage: RpcStage) -> frozenset[str]:
    return fingerprints(stage.issuer.trust_bundle)


async def test_what_an_agent_trusts_and_which_certificate_it_holds_is_kept(stage: RpcStage) -> None:
    stream = await Stream.open(stage, await stage.enrol("edge1"), trusted_authorities=sorted(own(stage)))
    found = await until_trusted(stage, own(stage))
    (record,) = await stage.records("edge1")
    assert (found.serial, found.signed_by, found.issued_at) == (record.serial, record.signed_by, record.issued_at)
    assert found.signed_by is not None
    assert found.signed_by.startswith("hub/")
    await stream.close()


async def test_an_agent_that_lacks_or_has_more_than_the_bundle_is_sent_it_and_its_answer_is_kept(stage: RpcStage) -> None:
    for number, said in enumerate(([OTHER], [*own(stage), OTHER])):
        cluster = f"edge{number}"
        stream = await Stream.open(stage, await stage.enrol(cluster), trusted_authorities=said)
        pushed = await stream.expect("trust_bundle")
        assert pushed.certificates == stage.issuer.trust_bundle
        await until_trusted(stage, frozenset(said), cluster)
        await stream.send(trust_installed={"trusted_authorities": sorted(own(stage))})
        await until_trusted(stage, own(stage), cluster)
        await stream.close()


async def test_one_that_trusts_just_this_and_one_that_does_not_say_are_sent_nothing(stage: RpcStage) -> None:
    """The second is of a release that has no word for it, and would not know what the bundle is."""
    assert stage.parts.trusting is not None
    for number, said in enumerate((sorted(own(stage)), [])):
        cluster = f"edge{number}"
        stream = await Stream.open(stage, await stage.enrol(cluster), trusted_authorities=said)
        await until_trusted(stage, frozenset(said) or None, cluster)
        assert len(stage.parts.trusting) == 0
        assert stage.parts.trusting.pushed == 0
        await stream.close()


async def test_nothing_is_written_for_what_is_on_record(stage: RpcStage) -> None:
    credential = await stage.enrol("edge1")
    first = await Stream.open(stage, credential, trusted_authorities=sorted(own(stage)))
    before = await until_trusted(stage, own(stage))
    newest = await stage.store.read(lambda tx: tx.changes.newest())
    second = await Stream.open(stage, credential, trusted_authorities=sorted(own(stage)))
    await second.expect("welcome")
    assert stage.parts.trusting is not None
    await stage.parts.trusting.write()
    assert await kept(stage) == before
    assert await stage.store.read(lambda tx: tx.changes.newest()) == newest, "no news"
    await first.close()
    await second.close()


async def test_a_list_of_fingerprints_that_is_none_ends_the_session_with_the_reason(stage: RpcStage) -> None:
    stream = await Stream.open(stage, await stage.enrol("edge1"), trusted_authorities=["everything"])
    assert await stream.status() is grpc.StatusCode.INVALID_ARGUMENT
    await stream.close()


async def test_a_bundle_that_changes_is_pushed_to_the_sessions_that_are_open(
    stage: RpcStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = [
        await Stream.open(stage, await stage.enrol(f"edge{number}"), trusted_authorities=sorted(own(stage)))
        for number in range(3)
    ]
    for stream in streams:
        await stream.expect("desired")
    now = datetime.now(UTC)
    new = pki.create_authority(
        Subject("new"), pki.generate_key(), pki.random_serial(), now - timedelta(days=1), now + timedelta(days=1)
    )
    both = stage.issuer.trust_bundle + new.certificate
    monkeypatch.setattr(type(stage.issuer), "trust_bundle", both)
    for stream in streams:
        async with asyncio.timeout(10):
            assert (await stream.expect("trust_bundle")).certificates == both
        await stream.close()


async def test_who_stands_by_says_so_too(stage: RpcStage) -> None:
    async with stage.channel(await stage.enrol("edge1")) as channel:
        asked = registration.StandByRequest(
            cluster_name="edge1",
            agent_id="agent",
            cluster_uid="uid-1",
            owner_hub_id=ELSEWHERE,
            epoch=1,
            trusted_authorities=[OTHER],
        )
        answer = await RegistrationStub(channel).StandBy(asked)
    assert answer.trust_bundle == stage.issuer.trust_bundle
    assert not (await until_trusted(stage, frozenset((OTHER,)))).trusts(*own(stage))


async def test_what_cannot_be_written_now_is_not_lost(stage: RpcStage, monkeypatch: pytest.MonkeyPatch) -> None:
    trusting = stage.parts.trusting
    assert trusting is not None
    stream = await Stream.open(stage, await stage.enrol("edge1"))
    await until_trusted(stage, None)
    (record,) = await stage.records("edge1")

    def broken(*_: object) -> int:
        raise MusterError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(trust, "note", broken)
        trusting.note(record, frozenset((OTHER,)))
        with pytest.raises(MusterError):
            await trusting.write()
    await until_trusted(stage, frozenset((OTHER,)))
    await stream.close()
