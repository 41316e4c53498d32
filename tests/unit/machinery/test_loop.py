"""A loop that is busy takes wakes together; one that is not never waits."""

import asyncio
import functools
import selectors
import socket
import time
from collections.abc import Iterator

import pytest

from machinery import loop
from machinery.loop import BUSY, PAUSE, WINDOW, PausingLoop, PausingSelector


class Announcements:
    """What gRPC's completion queue does: one byte per event, one byte taken per wake."""

    def __init__(self, running: asyncio.AbstractEventLoop) -> None:
        self.theirs, self.ours = socket.socketpair()
        self.ours.setblocking(False)  # noqa: FBT003 - the library's signature
        self.events = 0
        self.wakes = 0
        self.woken = asyncio.Event()
        running.add_reader(self.ours, functools.partial(self._handle_events, running))

    def announce(self) -> None:
        self.events += 1
        self.theirs.send(b"1")

    def _handle_events(self, _loop: object) -> None:
        assert self.ours.recv(1)
        self.wakes += 1
        self.woken.set()

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
    async with asyncio.timeout(20):
        while not running._pausing.busy:
            for _ in range(BUSY):  # in each turn, however long one takes
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


class Paced:
    """A selector with a clock of its own: a paced file that always has something to say, and another that has, too."""

    def __init__(self) -> None:
        self.now = 100.0
        self.selector = PausingSelector(lambda: self.now)
        self.theirs, self.paced = socket.socketpair()
        self.others, self.ours = socket.socketpair()
        for file in (self.paced, self.ours):
            self.selector.register(file, selectors.EVENT_READ)
        self.selector.pace(self.paced)
        self.theirs.send(b"1")
        self.others.send(b"1")
        for _ in range(4):
            self.selector.announced(BUSY)
            self.now += WINDOW / 2

    def looks(self, seconds: float, *, hurried: bool = False) -> tuple[int, int, int]:
        """A look each millisecond: how many they were, and how many saw the paced file and the other one."""
        count, seen, others = round(seconds * 1000), 0, 0
        for _ in range(count):
            self.now += 0.001
            if hurried:
                self.selector.hurry()
            found = {key.fileobj for key, _ in self.selector.select(0)}
            if self.paced in found:
                self.selector.announced(BUSY)
                seen += 1
            others += self.ours in found
        return count, seen, others

    def close(self) -> None:
        self.selector.close()
        for file in (self.theirs, self.paced, self.others, self.ours):
            file.close()


@pytest.fixture
def paced() -> Iterator[Paced]:
    made = Paced()
    yield made
    made.close()


@pytest.mark.skipif(not hasattr(selectors, "EpollSelector"), reason="only epoll can be paced")
def test_a_busy_loop_takes_announcements_together_and_serves_others_meanwhile(paced: Paced) -> None:
    assert paced.selector.busy
    count, seen, others = paced.looks(10 * PAUSE)
    assert 9 <= seen <= 11
    assert others == count


def test_while_new_calls_come_a_busy_loop_does_not_pause(paced: Paced) -> None:
    assert paced.selector.busy
    count, seen, others = paced.looks(10 * PAUSE, hurried=True)
    assert seen == others == count


def test_a_busy_loop_that_others_do_not_wake_looks_when_the_pause_is_over() -> None:
    async def scenario() -> int:
        running = asyncio.get_running_loop()
        queue = Announcements(running)
        await made_busy(queue)
        before = queue.wakes
        queue.woken.clear()
        queue.announce()
        async with asyncio.timeout(20 * PAUSE):
            await queue.woken.wait()
        queue.close(running)
        return queue.wakes - before

    assert loop.run(scenario()) >= 1


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
