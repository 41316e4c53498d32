"""Ten thousand sessions whose trust is outdated at once: the bundle is pushed at a bounded rate, to whom still needs it."""

import asyncio
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from hub.rpc.trusting import AGAIN, LOOK, PER_SECOND, Trustee, Trusting, fingerprints
from machinery import pki
from machinery.identity import Subject
from tests.fakes.memory_store import MemoryStore
from tests.fakes.virtual_time import in_virtual_time

NOW = datetime(2026, 1, 1, tzinfo=UTC)
OLD, NEW = (
    pki.create_authority(
        Subject(name), pki.generate_key(), pki.random_serial(), NOW - timedelta(days=1), NOW + timedelta(days=1)
    ).certificate
    for name in ("old", "new")
)


class Session(Trustee):
    """Notes when it was sent what."""

    def __init__(self, trusted: frozenset[str] | None) -> None:
        self.trusted = trusted
        self.sent: list[tuple[float, bytes]] = []
        self.reconsidered = 0

    def reconsider(self) -> None:
        self.reconsidered += 1

    def push(self, bundle: bytes) -> None:
        self.sent.append((asyncio.get_running_loop().time(), bundle))


class Bundle:
    def __init__(self, pem: bytes) -> None:
        self.pem = pem

    def __call__(self) -> bytes:
        return self.pem


def test_ten_thousand_that_come_at_once_are_served_evenly() -> None:
    async def work() -> list[Session]:
        trusting = Trusting(MemoryStore(), Bundle(NEW))
        sessions = [Session(fingerprints(OLD)) for _ in range(10_000)]
        running = asyncio.create_task(trusting.run())
        for session in sessions:
            trusting.look(session)
        await asyncio.sleep(10_000 / PER_SECOND + 1)
        running.cancel()
        return sessions

    times = sorted(at for session in in_virtual_time(work()) for at, _ in session.sent)
    assert len(times) == 10_000
    busiest = max(
        sum(at <= other < at + 1 for other in times[index : index + 200]) for index, at in enumerate(times[:-200:100])
    )
    assert busiest <= PER_SECOND + 1


def test_a_bundle_that_changes_goes_to_all_that_lack_it_and_again_to_whom_it_changes_meanwhile() -> None:
    async def work() -> tuple[Session, Session, Session]:
        bundle = Bundle(OLD)
        trusting = Trusting(MemoryStore(), bundle)
        running = asyncio.create_task(trusting.run())
        taking, silent, gone = Session(fingerprints(OLD)), Session(None), Session(fingerprints(OLD))
        for session in (taking, silent, gone):
            trusting.look(session)
        await asyncio.sleep(2 * LOOK.total_seconds())
        assert not taking.sent
        trusting.leave(gone)
        for pem in (OLD + NEW, NEW):
            bundle.pem = pem
            await asyncio.sleep(2 * LOOK.total_seconds())
            taking.trusted = fingerprints(pem)
            trusting.look(taking)
        await asyncio.sleep(3 * AGAIN.total_seconds())
        running.cancel()
        return taking, silent, gone

    taking, silent, gone = in_virtual_time(work())
    assert [pem for _, pem in taking.sent] == [OLD + NEW, NEW]
    assert silent.sent == gone.sent == []


def test_an_agent_that_does_not_take_it_is_sent_it_again_after_a_while_and_not_before() -> None:
    async def work() -> Session:
        trusting = Trusting(MemoryStore(), Bundle(NEW))
        running = asyncio.create_task(trusting.run())
        session = Session(fingerprints(OLD))
        for _ in range(60):
            trusting.look(session)
            await asyncio.sleep(AGAIN.total_seconds() / 20)
        running.cancel()
        return session

    sent = in_virtual_time(work()).sent
    assert 3 <= len(sent) <= 4
    assert all(later[0] - earlier[0] >= AGAIN.total_seconds() for earlier, later in pairwise(sent))


def test_when_one_of_the_hubs_cas_is_another_every_session_looks_again_once() -> None:
    async def work() -> list[Session]:
        standing = [1]
        trusting = Trusting(MemoryStore(), Bundle(OLD), standing=lambda: tuple(standing))
        running = asyncio.create_task(trusting.run())
        sessions = [Session(None) for _ in range(100)]
        for session in sessions:
            trusting.look(session)
        await asyncio.sleep(10 * LOOK.total_seconds())
        standing[0] = 2
        await asyncio.sleep(10 * LOOK.total_seconds())
        running.cancel()
        return sessions

    assert {session.reconsidered for session in in_virtual_time(work())} == {1}
