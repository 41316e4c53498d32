"""What agents trust and when they renew: trust bundles are pushed, renewals are requested by order and by CA rotation."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hub.api.certificateauthorities.authority import AgentTrust, AuthorityId, AuthorityRecord, Phase
from hub.api.managedclusters.agent_annotations import LATE_RENEWAL
from hub.grpc_door.session.trust_bundle_push import TrustBundlePush, fingerprints
from hub.registry.certificateauthorities import service
from hub.registry.managedclusters import actions
from machinery import pki
from machinery.errors import MusterError
from machinery.identity import AgentId, CertificateSubject, ClusterName
from tests.fakes.rpc_stage import ADMIN, RpcStage, Stream, until_found
from tests.integration.grpc_door.test_rpc_owners import stand_by

EDGE = ClusterName("edge1")
OTHER = "c" * 64
HOUR = timedelta(hours=1)


async def until_trusted(stage: RpcStage, wanted: frozenset[str] | None, cluster: str = "edge1") -> AgentTrust:
    found: list[AgentTrust] = []

    async def kept() -> bool:
        last = await stage.store.read(lambda tx: tx.trusts.get(ClusterName(cluster), AgentId("agent")))
        found[:] = [last] if last is not None and last.trusted == wanted else []
        return bool(found)

    await until_found(kept)
    return found[0]


def own(stage: RpcStage) -> frozenset[str]:
    return fingerprints(stage.issuer.trust_bundle)


def trusting_of(stage: RpcStage) -> TrustBundlePush:
    assert stage.parts.trusting is not None
    return stage.parts.trusting


async def test_trust_of_an_agent_is_recorded_once(stage: RpcStage) -> None:
    credential = await stage.enrol("edge1")
    await stage.welcomed(credential, trusted_authorities=sorted(own(stage)))
    found = await until_trusted(stage, own(stage))
    (record,) = await stage.records("edge1")
    assert (found.serial, found.signed_by, found.issued_at) == (record.serial, record.signed_by, record.issued_at)
    assert str(found.signed_by).startswith("hub/")
    newest = await stage.store.read(lambda tx: tx.changes.newest())
    await stage.welcomed(credential, trusted_authorities=sorted(own(stage)))
    await trusting_of(stage).write()
    assert await until_trusted(stage, own(stage)) == found
    assert await stage.store.read(lambda tx: tx.changes.newest()) == newest

    # One of a release that does not report its trust would not know what the bundle is.
    await stage.welcomed(await stage.enrol("edge2"))
    await until_trusted(stage, None, "edge2")
    assert (len(trusting_of(stage)), trusting_of(stage).pushed) == (0, 0)

    answer = await stand_by(stage, credential, trusted_authorities=[OTHER])
    assert answer.trust_bundle == stage.issuer.trust_bundle
    assert not (await until_trusted(stage, frozenset((OTHER,)))).trusts(*own(stage))


async def test_agent_whose_trust_differs_is_sent_the_bundle_and_its_answer_is_recorded(stage: RpcStage) -> None:
    for number, reported in enumerate(([OTHER], [*own(stage), OTHER])):
        cluster = f"edge{number}"
        stream = await Stream.open(stage, await stage.enrol(cluster), trusted_authorities=reported)
        assert (await stream.expect("trust_bundle")).certificates == stage.issuer.trust_bundle
        await until_trusted(stage, frozenset(reported), cluster)
        await stream.send(trust_installed={"trusted_authorities": sorted(own(stage))})
        await until_trusted(stage, own(stage), cluster)


async def test_changed_bundle_is_pushed_to_open_sessions(stage: RpcStage, monkeypatch: pytest.MonkeyPatch) -> None:
    streams = [
        await Stream.open(stage, await stage.enrol(f"edge{number}"), trusted_authorities=sorted(own(stage)))
        for number in range(3)
    ]
    for stream in streams:
        await stream.expect("desired")
    now, day = datetime.now(UTC), timedelta(days=1)
    new = pki.create_authority(CertificateSubject("new"), pki.generate_key(), pki.random_serial(), now - day, now + day)
    both = stage.issuer.trust_bundle + new.certificate
    monkeypatch.setattr(type(stage.issuer), "trust_bundle", both)
    for stream in streams:
        assert (await stream.expect("trust_bundle")).certificates == both


async def test_trust_that_cannot_be_written_now_is_written_later(stage: RpcStage, monkeypatch: pytest.MonkeyPatch) -> None:
    await stage.welcomed(await stage.enrol("edge1"))
    await until_trusted(stage, None)
    (record,) = await stage.records("edge1")

    def broken(*_: object) -> int:
        raise MusterError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(service, "note_trust", broken)
        trusting_of(stage).note(record, frozenset((OTHER,)))
        with pytest.raises(MusterError):
            await trusting_of(stage).write()
    await until_trusted(stage, frozenset((OTHER,)))


async def order(stage: RpcStage, within: timedelta = HOUR) -> Any:
    return await stage.store.run(actions.order_renewal, EDGE, within, ADMIN)


async def renewal_requested(stream: Stream) -> Any:
    """The next Desired that asks for a renewal."""
    while not (desired := await stream.expect("desired")).HasField("renew_within"):
        pass
    return desired


async def test_renewal_order_reaches_only_agents_whose_certificate_is_older(stage: RpcStage) -> None:
    credential = await stage.enrol("edge1")
    stream = await Stream.open(stage, credential)
    assert not (await stream.expect("desired")).HasField("renew_within")
    assert not (await stand_by(stage, credential)).HasField("renew_within")
    given = (await order(stage)).order
    desired = await renewal_requested(stream)
    assert timedelta(minutes=59) < desired.renew_within.ToTimedelta() <= HOUR
    assert desired.renew_addons_before.ToDatetime(UTC) == given.before
    assert (await stand_by(stage, credential)).HasField("renew_within")

    renewed = await stage.enrol("edge1")
    desired = await (await Stream.open(stage, renewed)).expect("desired")
    assert not desired.HasField("renew_within")
    assert desired.renew_addons_before.ToDatetime(UTC) == given.before, "certificates of add-ons may be older"
    assert not (await stand_by(stage, renewed)).HasField("renew_within")
    found = await stage.store.read(actions.renewal_progress, EDGE)
    assert [(holder.agent, holder.renewed) for holder in found.holders] == [("agent", True)]


async def test_agent_that_returns_after_the_deadline_gets_a_little_time_to_renew(stage: RpcStage) -> None:
    credential = await stage.enrol("edge1")
    await order(stage, timedelta(seconds=0))
    await order(stage, timedelta(minutes=1))
    stream = await Stream.open(stage, credential)
    assert (await renewal_requested(stream)).renew_within.ToTimedelta() > LATE_RENEWAL
    assert (await stand_by(stage, credential)).renew_within.ToTimedelta() > LATE_RENEWAL
    assert not [holder for holder in (await stage.store.read(actions.renewal_progress, EDGE)).holders if holder.renewed]


async def test_connected_agents_of_an_outgoing_ca_are_asked_to_renew(stage: RpcStage, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = await Stream.open(stage, await stage.enrol("edge1"))
    await stream.expect("desired")
    (record,) = await stage.records("edge1")
    now = stage.parts.clock.now()
    present = AuthorityRecord(AuthorityId(str(record.signed_by).removeprefix("hub/")), b"", Phase.ISSUING, now, now)
    standing = [present]
    object.__setattr__(stage.parts, "authorities", lambda: tuple(standing))
    monkeypatch.setattr(trusting_of(stage), "_standing", lambda: tuple(standing))
    standing[:] = [replace(present, phase=Phase.OUTGOING)]
    assert (await renewal_requested(stream)).renew_within.ToTimedelta() >= timedelta(seconds=10)
    standing[:] = [replace(present, phase=Phase.RETIRING)]
    while (await stream.expect("desired")).HasField("renew_within"):
        pass
