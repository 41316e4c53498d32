"""A loop that is busy takes wakes together; one that is not never waits."""

import asyncio
import functools
import socket
import time

from machinery import loop
from machinery.loop import BUSY, PAUSE, PausingLoop


class Announcements:
    """What gRPC's completion queue does: one byte per event, one byte taken per wake."""

    def __init__(self, running: asyncio.AbstractEventLoop) -> None:
        self.theirs, self.ours = socket.socketpair()
        self.ours.setblocking(False)  # noqa: FBT003 - the library's signature
        self.events = 0
        self.wakes = 0
        running.add_reader(self.ours, functools.partial(self._handle_events, running))

    def announce(self) -> None:
        self.events += 1
        self.theirs.send(b"1")

    def _handle_events(self, _loop: object) -> None:
        assert self.ours.recv(1)
        self.wakes += 1

    def close(self, running: asyncio.AbstractEventLoop) -> None:
        running.remove_reader(self.ours)
        self.ours.close()
        self.theirs.close()


def test_announcements_that_have_come_together_are_one_wake() -> None:
    async def scenario() -> int:
        running = asyncio.get_running_loop()
        queue = Announcements(running)
        for _ in range(100):
            queue.announce()
        await asyncio.sleep(0.05)
        queue.close(running)
        return queue.wakes

    assert loop.run(scenario()) == 1


def test_a_quiet_loop_answers_at_once() -> None:
    async def scenario() -> float:
        running = asyncio.get_running_loop()
        queue = Announcements(running)
        began = time.monotonic()
        for _ in range(10):
            queue.announce()
            while queue.wakes < queue.events:  # noqa: ASYNC110 - the loop's own turns are what is measured
                await asyncio.sleep(0)
        took = time.monotonic() - began
        queue.close(running)
        return took

    assert loop.run(scenario()) < 10 * PAUSE


async def made_busy(queue: Announcements) -> None:
    running = asyncio.get_running_loop()
    assert isinstance(running, PausingLoop)
    async with asyncio.timeout(2):
        while not running._pausing.busy:
            queue.announce()
            await asyncio.sleep(0.0005)


def test_many_announcements_make_it_busy_and_calm_ends_that() -> None:
    async def scenario() -> bool:
        running = asyncio.get_running_loop()
        assert isinstance(running, PausingLoop)
        queue = Announcements(running)
        await made_busy(queue)
        for _ in range(3):
            await asyncio.sleep(0.12)
            queue.announce()
        await asyncio.sleep(0.02)
        queue.close(running)
        return running._pausing._busy

    assert BUSY > 0
    assert loop.run(scenario()) is False


def test_a_busy_loop_takes_announcements_together_and_serves_others_meanwhile() -> None:
    async def scenario() -> tuple[int, float]:
        running = asyncio.get_running_loop()
        queue = Announcements(running)
        theirs, ours = socket.socketpair()
        waits: list[float] = []
        running.add_reader(ours, lambda: waits.append(time.monotonic() - float(ours.recv(100))))
        await made_busy(queue)
        wakes, until = queue.wakes, running.time() + 10 * PAUSE
        while running.time() < until:
            queue.announce()
            theirs.send(str(time.monotonic()).encode())
            await asyncio.sleep(0.001)
        wakes = queue.wakes - wakes
        queue.close(running)
        running.remove_reader(ours)
        ours.close()
        theirs.close()
        return wakes, sorted(waits)[len(waits) // 2]

    wakes, wait = loop.run(scenario())
    assert wakes <= 12
    assert wait < PAUSE / 5


def test_while_new_calls_come_a_busy_loop_does_not_pause() -> None:
    async def scenario() -> float:
        running = asyncio.get_running_loop()
        queue = Announcements(running)
        await made_busy(queue)
        began = time.monotonic()
        for _ in range(10):
            loop.hurry()
            before = queue.wakes
            queue.announce()
            while queue.wakes == before:  # noqa: ASYNC110 - the loop's own turns are what is measured
                await asyncio.sleep(0.0005)
        took = time.monotonic() - began
        queue.close(running)
        return took

    assert loop.run(scenario()) < 5 * PAUSE


def test_hurry_is_nothing_to_other_loops() -> None:
    async def scenario() -> None:
        loop.hurry()

    asyncio.run(scenario())


def test_without_grpc_a_loop_never_pauses() -> None:
    async def scenario() -> bool:
        running = asyncio.get_running_loop()
        assert isinstance(running, PausingLoop)
        queue = Announcements(running)
        for _ in range(200):
            await asyncio.sleep(0.0005)
        queue.close(running)
        return running._pausing.busy

    assert loop.run(scenario()) is False
