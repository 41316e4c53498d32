"""Who a certificate is: by its record, re-checked each time, and no longer once it is revoked."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest

from hub.access import Peers
from hub.access.peers import BLIND, KEPT_FOR, TIDY
from hub.apiserver.authentication import end_with_revocations
from hub.domain.authority import Authority, AuthorityId, Phase
from hub.domain.certificate import CertificateRecord, Purpose
from hub.services import certificates
from machinery import pki
from machinery.apiserver.authentication import Presence
from machinery.clock import ManualClock
from machinery.errors import UnauthorizedError, UnavailableError, Verdict
from machinery.identity import SerialNumber, Subject
from tests.fakes.memory_store import MemoryStore


@dataclass
class Stage:
    clock: ManualClock
    store: MemoryStore
    peers: Peers
    certificate: bytes
    serial: SerialNumber

    async def revoke(self) -> None:
        await self.store.run(lambda tx: tx.certificates.revoke([self.serial], tx.now, "test"))


@pytest.fixture
async def stage() -> Stage:
    clock = ManualClock()
    store, now, key = MemoryStore(clock), clock.now(), pki.generate_key()
    authority = pki.create_authority(
        Subject("ca"), pki.generate_key(), pki.random_serial(), now - timedelta(days=1), now + timedelta(days=9)
    )
    plan = pki.Plan(Subject("cn"), pki.public_key_of(key), pki.random_serial(), now, now + timedelta(hours=1))
    record = CertificateRecord(
        serial=plan.serial,
        purpose=Purpose.AGENT,
        user="cn",
        groups=(),
        not_before=plan.not_before,
        not_after=plan.not_after,
        key_hash=certificates.key_hash(plan.public_key),
        issued_at=now,
    )
    await store.run(lambda tx: tx.certificates.add(record))
    return Stage(clock, store, Peers(store, clock), authority.sign(plan), plan.serial)


AUTHORITY = Authority(AuthorityId("a" * 16), b"", Phase.ISSUING, ManualClock().now(), ManualClock().now())


@pytest.mark.parametrize(
    ("phase", "purpose", "opens"),
    [
        (Phase.ISSUING, Purpose.AGENT, True),
        (Phase.OUTGOING, Purpose.AGENT, True),
        (Phase.RETIRING, Purpose.AGENT, False),
        (Phase.RETIRING, Purpose.OPERATOR, False),
        (Phase.RETIRING, Purpose.RECOVERY, True),
        (Phase.RETIRED, Purpose.RECOVERY, False),
    ],
)
async def test_what_a_ca_signed_counts_for_less_from_phase_to_phase(
    stage: Stage, phase: Phase, purpose: Purpose, *, opens: bool
) -> None:
    state = stage.store.state
    state.certificates[stage.serial] = replace(state.certificates[stage.serial], purpose=purpose, signed_by=AUTHORITY.signer)
    others = replace(AUTHORITY, id=AuthorityId("b" * 16), created_at=AUTHORITY.created_at - timedelta(days=1))
    peers = Peers(stage.store, stage.clock, signers=lambda: (others, replace(AUTHORITY, phase=phase)))
    if opens:
        assert (await peers.identify(stage.certificate)).serial == stage.serial
        return
    with pytest.raises(UnauthorizedError, match=phase.value) as refused:
        await peers.identify(stage.certificate)
    assert refused.value.verdict is Verdict.AUTHORITY_RETIRED


async def test_a_record_without_a_signer_is_the_first_cas(stage: Stage) -> None:
    later = replace(AUTHORITY, id=AuthorityId("b" * 16), created_at=AUTHORITY.created_at + timedelta(days=1))
    peers = Peers(stage.store, stage.clock, signers=lambda: (later, replace(AUTHORITY, phase=Phase.RETIRED)))
    with pytest.raises(UnauthorizedError, match=AUTHORITY.id):
        await peers.identify(stage.certificate)


async def turns() -> None:
    """Whatever can be done now is done; no time passes."""
    for _ in range(50):
        await asyncio.sleep(0)


async def test_a_recorded_certificate_is_its_record(stage: Stage) -> None:
    assert (await stage.peers.identify(stage.certificate)).user == "cn"


async def test_validity_is_checked_on_every_question(stage: Stage) -> None:
    await stage.peers.identify(stage.certificate)
    stage.clock.advance(timedelta(hours=1, seconds=1))
    with pytest.raises(UnauthorizedError, match="valid from"):
        await stage.peers.identify(stage.certificate)


async def test_a_revocation_is_seen_after_one_poll_and_told(stage: Stage) -> None:
    told: list[SerialNumber | None] = []
    stage.peers.listen(told.append)
    await stage.peers.poll()
    await stage.peers.identify(stage.certificate)
    await stage.revoke()
    assert (await stage.peers.identify(stage.certificate)).user == "cn"
    await stage.peers.poll()
    with pytest.raises(UnauthorizedError, match="revoked"):
        await stage.peers.identify(stage.certificate)
    await stage.peers.poll()
    assert told == [stage.serial]


async def test_a_read_that_began_before_a_revocation_and_ends_after_the_look_that_saw_it_lets_nobody_in(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stage.peers.poll()
    read, begun, opened = stage.store.read, asyncio.Event(), asyncio.Event()

    async def late(query: Any, *args: Any) -> Any:
        found = await read(query, *args)
        begun.set()
        await opened.wait()
        return found

    with monkeypatch.context() as slowed:
        slowed.setattr(stage.store, "read", late)
        asking = asyncio.create_task(stage.peers.identify(stage.certificate))
        await begun.wait()
    await stage.revoke()
    await stage.peers.poll()
    opened.set()
    with pytest.raises(UnauthorizedError, match="revoked"):
        await asking
    with pytest.raises(UnauthorizedError, match="revoked"):
        await stage.peers.identify(stage.certificate)


async def test_a_revocation_is_told_before_the_next_look_is_due(stage: Stage) -> None:
    told: list[SerialNumber | None] = []
    stage.peers.listen(told.append)
    looking = asyncio.create_task(stage.peers.run())
    await turns()
    await stage.revoke()
    await turns()
    looking.cancel()
    assert told == [stage.serial]


@pytest.mark.parametrize("far", [False, True])
async def test_a_revocation_whose_commit_waited_for_hours_is_found_by_a_look_far_back(stage: Stage, *, far: bool) -> None:
    """It became visible only now: the commit waited for the standby."""
    told: list[SerialNumber | None] = []
    stage.peers.listen(told.append)
    await stage.peers.poll()
    stage.clock.advance(timedelta(days=1) - timedelta(minutes=1))
    await stage.peers.poll()
    await stage.store.run(lambda tx: tx.certificates.revoke([stage.serial], tx.now - timedelta(hours=20), "test"))
    await stage.peers.poll(far=far)
    await stage.peers.poll(far=far)
    assert told == [stage.serial] * far


async def test_without_polls_nothing_old_is_believed(stage: Stage) -> None:
    await stage.peers.identify(stage.certificate)
    await stage.revoke()
    stage.clock.advance(timedelta(seconds=3))
    with pytest.raises(UnauthorizedError, match="revoked"):
        await stage.peers.identify(stage.certificate)


async def test_a_certificate_without_a_record_is_nobody(stage: Stage) -> None:
    now = stage.clock.now()
    other = pki.create_authority(
        Subject("ca"), pki.generate_key(), pki.random_serial(), now - timedelta(days=1), now + timedelta(days=9)
    )
    for serial in (pki.random_serial(), stage.serial):
        plan = pki.Plan(Subject("cn"), pki.public_key_of(pki.generate_key()), serial, now, now + timedelta(days=1))
        with pytest.raises(UnauthorizedError, match="not known"):
            await stage.peers.identify(other.sign(plan))


async def test_what_is_no_certificate_is_nobody(stage: Stage) -> None:
    with pytest.raises(UnauthorizedError):
        await stage.peers.identify(b"junk")


async def test_a_certificate_that_nobody_comes_with_any_more_is_forgotten(stage: Stage) -> None:
    for _ in range(3):
        await stage.peers.identify(stage.certificate)
        stage.clock.advance(KEPT_FOR - timedelta(seconds=1))
        await stage.peers.poll()
        assert len(stage.peers) == 1
    stage.clock.advance(TIDY)
    await stage.peers.poll()
    assert len(stage.peers) == 0
    assert (await stage.peers.identify(stage.certificate)).user == "cn"


async def test_a_replica_that_cannot_read_revocations_for_a_minute_says_that_nobody_is_known(stage: Stage) -> None:
    told: list[SerialNumber | None] = []
    stage.peers.listen(told.append)
    await stage.peers.identify(stage.certificate)
    await stage.peers._look()
    stage.store.failure = UnavailableError("the database is away")
    stage.clock.advance(BLIND)
    await stage.peers._look()
    assert told == []
    stage.clock.advance(timedelta(seconds=1))
    await stage.peers._look()
    assert told == [None]
    with pytest.raises(UnavailableError):
        await stage.peers.identify(stage.certificate)
    stage.store.failure = None
    await stage.peers._look()
    assert (await stage.peers.identify(stage.certificate)).serial == stage.serial
    assert told == [None]


async def test_what_was_revoked_while_nobody_could_look_is_told_at_the_first_look_after(stage: Stage) -> None:
    told: list[SerialNumber | None] = []
    stage.peers.listen(told.append)
    await stage.peers._look()
    stage.store.failure = UnavailableError("the database is away from here")
    stage.clock.advance(BLIND / 2)
    await stage.peers._look()
    stage.store.failure = None
    await stage.revoke()
    stage.clock.advance(BLIND / 4)
    await stage.peers._look()
    assert told == [stage.serial]
    assert stage.peers.refusal(stage.serial).verdict is Verdict.CERTIFICATE_REVOKED


def test_whatever_is_open_at_the_https_door_ends_when_nobody_is_known() -> None:
    ended: list[str] = []

    class Noted(Presence):
        def end(self, mark: str) -> None:
            ended.append(mark)

        def end_all(self) -> None:
            ended.append("all")

    listeners: list[Callable[[SerialNumber | None], None]] = []
    end_with_revocations(Noted(ManualClock()), listeners.append, None)
    for serial in (SerialNumber(5), None):
        listeners[0](serial)
    assert ended == ["certificate/5", "all"]
