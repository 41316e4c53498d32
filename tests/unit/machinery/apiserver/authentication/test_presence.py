"""What a credential has open ends with it."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from machinery.apiserver.access import Attributes
from machinery.apiserver.authentication import IDENTITY, Identity, Presence
from machinery.apiserver.filters import Incoming
from machinery.apiserver.storage import Actor
from machinery.clock import ManualClock
from machinery.errors import UnauthorizedError

ANN = Actor("ann")


class Connection(asyncio.Transport):
    """A connection that knows whether it was aborted."""

    def __init__(self) -> None:
        super().__init__()
        self.aborted = asyncio.Event()

    def get_extra_info(self, name: str, default: Any = None) -> Any:  # noqa: ARG002 - the base class's signature
        return default

    def abort(self) -> None:
        self.aborted.set()


class Open:
    """One request that stays open until it is let go, and whether its connection was aborted."""

    def __init__(self, presence: Presence, identity: Identity | None, *, verb: str = "watch") -> None:
        self.transport = Connection()
        self.go = asyncio.Event()
        request = make_mocked_request("GET", "/", transport=self.transport)
        if identity is not None:
            request[IDENTITY] = identity
        incoming = Incoming(request, "an-id", Attributes(verb, "/", resource="x"), 0.0)

        async def inner(_incoming: Incoming) -> web.StreamResponse:
            await self.go.wait()
            return web.Response()

        self.task = asyncio.ensure_future(presence(incoming, inner))

    @property
    def aborted(self) -> bool:
        return self.transport.aborted.is_set()

    async def end(self) -> None:
        self.go.set()
        await self.task


@pytest.fixture
def presence() -> Presence:
    return Presence(ManualClock())


async def begun(*requests: Open) -> None:
    await asyncio.sleep(0)
    assert not any(each.aborted for each in requests)


async def test_ending_a_credential_ends_all_it_has_open_and_nobody_elses(presence: Presence) -> None:
    mine = [Open(presence, Identity(ANN, "a")) for _ in range(2)]
    other, anonymous = Open(presence, Identity(ANN, "b")), Open(presence, None)
    await begun(*mine, other, anonymous)
    presence.end("a")
    assert [each.aborted for each in (*mine, other, anonymous)] == [True, True, False, False]
    for each in (*mine, other, anonymous):
        await each.end()


async def test_what_was_let_in_before_the_end_and_begins_after_it_is_refused(presence: Presence) -> None:
    presence.end("a")
    late = Open(presence, Identity(ANN, "a"))
    with pytest.raises(UnauthorizedError):
        await late.task


async def test_a_request_that_is_over_leaves_nothing_to_end(presence: Presence) -> None:
    once = Open(presence, Identity(ANN, "a"))
    await begun(once)
    await once.end()
    presence.end("a")
    presence.end_all()
    assert not once.aborted


async def test_short_requests_are_left_to_finish(presence: Presence) -> None:
    short = Open(presence, Identity(ANN, "a"), verb="list")
    await begun(short)
    presence.end("a")
    assert not short.aborted
    await short.end()


async def test_when_nobody_can_be_known_everything_ends_and_may_come_back(presence: Presence) -> None:
    both = [Open(presence, Identity(ANN, mark)) for mark in ("a", "b")]
    await begun(*both)
    presence.end_all()
    assert all(each.aborted for each in both)
    for each in both:
        await each.end()
    again = Open(presence, Identity(ANN, "a"))
    await begun(again)
    await again.end()


async def test_a_watch_ends_with_the_time_of_its_credential() -> None:
    clock = ManualClock()
    presence = Presence(clock)
    soon = Open(presence, Identity(ANN, "a", clock.now() + timedelta(milliseconds=20)))
    later = Open(presence, Identity(ANN, "b", clock.now() + timedelta(hours=1)))
    await begun(soon, later)
    async with asyncio.timeout(5):
        await soon.transport.aborted.wait()
    assert not later.aborted
    await soon.end()
    await later.end()
