"""A session whose stream ends at an awkward moment."""

import asyncio
import gc
from typing import Any, cast

import grpc
from grpc import aio

from machinery.clock import ManualClock
from machinery.wire.session.v1 import session_pb2 as wire
from spoke.hubclient.session import GrpcSession
from spoke.ports import Greeting, HubLostError, Loss
from tests.fakes.virtual_time import in_virtual_time


class EndedWhileWriting:
    """Welcomes; then the hub ends the stream, which the writer is the first to notice."""

    def __init__(self) -> None:
        self._welcomed = False
        self.written = 0

    async def read(self) -> wire.HubMessage:
        if self._welcomed:
            await asyncio.Event().wait()
        self._welcomed = True
        return wire.HubMessage(welcome=wire.Welcome(hub_id="hub"))

    async def write(self, _message: wire.AgentMessage) -> None:
        self.written += 1
        if self.written > 1:
            raise asyncio.InvalidStateError

    async def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.ABORTED

    async def details(self) -> str:
        return "superseded"

    async def trailing_metadata(self) -> aio.Metadata:
        return aio.Metadata(("reason", "Conflict"))

    def cancel(self) -> None:
        pass


async def beat_once() -> HubLostError:
    """How the first beat fails; nothing of the session stays."""
    session = GrpcSession(cast("Any", EndedWhileWriting()), ManualClock())
    await session.start(Greeting("uid"))
    try:
        await session.beat(available=True)
    except HubLostError as error:
        return HubLostError(error.message, error.loss)
    finally:
        await session.stop()
    raise AssertionError


def test_a_beat_that_the_end_overtakes_says_why_and_leaves_no_stray_error() -> None:
    stray: list[dict[str, Any]] = []

    async def play() -> HubLostError:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: stray.append(context))
        lost = await asyncio.create_task(beat_once())
        gc.collect()
        return lost

    lost = in_virtual_time(play())  # a loop of its own: what other tests left behind is told to theirs
    assert (lost.loss, lost.message) == (Loss.SUPERSEDED, "superseded")
    assert stray == []
