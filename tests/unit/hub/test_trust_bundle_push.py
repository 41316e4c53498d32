"""Pushes of the trust bundle: to sessions that lack a CA, at a bounded rate, and again to agents that do not install it."""

import asyncio
from itertools import pairwise

from hub.grpc_door.session import trust_bundle_push as push
from tests.fakes.authority import OtherCA
from tests.fakes.registration import fresh_store
from tests.fakes.virtual_time import in_virtual_time

OLD, NEW = OtherCA("old").certificate, OtherCA("new").certificate


class Session(push.TrustBundleReceiver):
    def __init__(self, trusted: frozenset[str] | None) -> None:
        self.trusted = trusted
        self.sent: list[tuple[float, bytes]] = []
        self.reconsidered = 0

    def reconsider(self) -> None:
        self.reconsidered += 1

    def push(self, bundle: bytes) -> None:
        self.sent.append((asyncio.get_running_loop().time(), bundle))


def test_bundle_that_changes_goes_to_all_that_lack_it_and_of_another_ca_every_session_gets_it_once() -> None:
    async def work() -> tuple[Session, Session, Session]:
        bundle, current = [OLD], [1]
        trusting = push.TrustBundlePush(fresh_store(), lambda: bundle[0], authorities=lambda: tuple(current))
        running = asyncio.create_task(trusting.run())
        taking, silent, gone = Session(push.fingerprints(OLD)), Session(None), Session(push.fingerprints(OLD))
        for session in (taking, silent, gone):
            trusting.check(session)
        await asyncio.sleep(2 * push.POLL.total_seconds())
        assert not taking.sent
        trusting.leave(gone)
        current[0] = 2
        for pem in (OLD + NEW, NEW):
            bundle[0] = pem
            await asyncio.sleep(2 * push.POLL.total_seconds())
            taking.trusted = push.fingerprints(pem)
            trusting.check(taking)
        await asyncio.sleep(3 * push.RESEND_AFTER.total_seconds())
        running.cancel()
        return taking, silent, gone

    taking, silent, gone = in_virtual_time(work())
    assert [pem for _, pem in taking.sent] == [OLD + NEW, NEW]
    assert silent.sent == gone.sent == []
    assert (taking.reconsidered, silent.reconsidered, gone.reconsidered) == (1, 1, 0)


def test_ten_thousand_that_come_at_once_are_served_evenly() -> None:
    async def work() -> list[Session]:
        trusting = push.TrustBundlePush(fresh_store(), lambda: NEW)
        sessions = [Session(push.fingerprints(OLD)) for _ in range(10_000)]
        running = asyncio.create_task(trusting.run())
        for session in sessions:
            trusting.check(session)
        await asyncio.sleep(10_000 / push.BUNDLES_PER_SECOND + 1)
        running.cancel()
        return sessions

    times = sorted(at for session in in_virtual_time(work()) for at, _ in session.sent)
    assert len(times) == 10_000
    busiest = max(
        sum(at <= other < at + 1 for other in times[index : index + 200]) for index, at in enumerate(times[:-200:100])
    )
    assert busiest <= push.BUNDLES_PER_SECOND + 1


def test_an_agent_that_does_not_take_it_is_sent_it_again_after_a_while_and_not_before() -> None:
    async def work() -> tuple[Session, Session]:
        trusting = push.TrustBundlePush(fresh_store(), lambda: NEW)
        running = asyncio.create_task(trusting.run())
        sessions = Session(push.fingerprints(OLD)), Session(push.fingerprints(OLD))
        for session in sessions:
            trusting.check(session)
            await asyncio.sleep(push.RESEND_AFTER.total_seconds() / 3)
        await asyncio.sleep(3 * push.RESEND_AFTER.total_seconds())
        running.cancel()
        return sessions

    for session in in_virtual_time(work()):
        pauses = [later[0] - earlier[0] for earlier, later in pairwise(session.sent)]
        assert len(pauses) == 3
        longest = (push.RESEND_AFTER + push.CHECK_PERIOD + 2 * push.POLL).total_seconds()
        assert all(push.RESEND_AFTER.total_seconds() <= pause <= longest for pause in pauses), pauses
