"""Controllers count and log their steps, and tasks do not end unnoticed."""

import asyncio
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from machinery.controller import Controller, PartlyFailedError
from machinery.errors import UnavailableError
from machinery.tasks import GuardedTasks, TaskEndedError
from tests.fakes.virtual_time import in_virtual_time


class Flaky:
    """Fails for its first key."""

    def __init__(self) -> None:
        self.done = asyncio.Event()

    async def reconcile(self, key: str) -> timedelta | None:
        if key == "bad":
            raise UnavailableError("not now")
        self.done.set()
        return None


async def test_steps_are_counted_by_how_they_ended_from_nothing_on() -> None:
    work = Flaky()
    controller = Controller("flaky", work)
    assert dict(controller.outcomes) == {"success": 0, "error": 0}, "a rise from nothing is seen by no query"
    for key in ("bad", "good"):
        controller.enqueue(key)
    running = asyncio.create_task(controller.run())
    await work.done.wait()
    while not controller.outcomes["success"]:  # noqa: ASYNC110 - it tells nobody
        await asyncio.sleep(0)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    assert controller.outcomes["success"] == 1
    assert controller.outcomes["error"] >= 1
    assert controller.seconds.count == controller.outcomes.total()


class Partial:
    """Fails in part at every step, and wants to be asked again soon."""

    def __init__(self) -> None:
        self.steps = 0
        self.enough = asyncio.Event()

    async def reconcile(self, key: str) -> timedelta | None:
        del key
        self.steps += 1
        if self.steps == 20:
            self.enough.set()
        raise PartlyFailedError("1 of 2 failed", look_again=timedelta(seconds=1))


async def logged_until(done: asyncio.Event, controller: Controller[str]) -> list[MutableMapping[str, Any]]:
    """What is logged of the key "all" while the controller runs until then."""
    controller.enqueue("all")
    running = asyncio.create_task(controller.run())
    with capture_logs() as lines:
        await done.wait()
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
    return lines


def test_who_fails_in_part_says_when_to_be_asked_again() -> None:
    async def run() -> float:
        work = Partial()
        controller = Controller("partial", work)
        lines = await logged_until(work.enough, controller)
        assert dict(controller.outcomes) == {"success": 0, "error": 20}
        assert warnings(lines) == ["1 of 2 failed"]
        return asyncio.get_running_loop().time()

    assert in_virtual_time(run()) == pytest.approx(19)


class Troubled:
    """Fails at its steps with these words, in their order; "" is a success, and the last is its end."""

    def __init__(self, *words: str) -> None:
        self._words = list(words)
        self.done = asyncio.Event()

    async def reconcile(self, key: str) -> timedelta | None:
        del key
        word = self._words.pop(0)
        if not self._words:
            self.done.set()
        if word:
            raise UnavailableError(word)
        return timedelta(seconds=1)


def test_a_trouble_is_told_once_however_often_a_step_is_tried_and_another_one_or_a_new_one_again() -> None:
    async def run() -> list[object]:
        work = Troubled("full", "full", "full", "away", "away", "", "away", "away", "")
        controller = Controller("troubled", work)
        lines = await logged_until(work.done, controller)
        assert dict(controller.outcomes) == {"success": 2, "error": 7}
        return warnings(lines)

    assert in_virtual_time(run()) == ["full", "away", "away"]


class Rows:
    """Fails at each step for those that it says are wrong, every one with its word; "" is none."""

    def __init__(self, *steps: Mapping[str, str]) -> None:
        self._steps = list(steps)
        self.done = asyncio.Event()

    async def reconcile(self, key: str) -> timedelta | None:
        del key
        step = self._steps.pop(0)
        if not self._steps:
            self.done.set()
        failed: dict[str, Exception] = {name: UnavailableError(word) for name, word in step.items() if word}
        done = [name for name, word in step.items() if not word]
        if not failed:
            return timedelta(seconds=1)
        told = f"{len(failed)} failed, the last of them {next(reversed(failed))}"
        raise PartlyFailedError(told, look_again=timedelta(seconds=1), failed=failed, done=done)


def test_who_fails_as_another_has_for_long_is_told_as_well_and_nobody_twice() -> None:
    async def run() -> list[object]:
        work = Rows(
            {"a": "x"},
            {"a": "x", "b": ""},
            {"b": "x"},  # tried at times of their own
            {"a": "x"},
            {"a": "x", "b": "x"},
            {"b": ""},
            {"a": "x", "b": "y"},
            {"a": "", "b": "y"},
            {"a": "x", "b": "y"},
            {"b": "", "a": ""},
            {"a": "x"},
            {},
        )
        controller = Controller("rows", work)
        lines = await logged_until(work.done, controller)
        return warnings(lines)

    one, two = "1 failed, the last of them", "2 failed, the last of them"
    assert in_virtual_time(run()) == [f"{one} a", f"{one} b", f"{two} b", f"{two} b", f"{one} a"]


def warnings(lines: Sequence[Mapping[str, object]]) -> list[object]:
    return [line["error"] for line in lines if line["log_level"] == "warning"]


async def forever() -> None:
    await asyncio.Event().wait()


async def nothing() -> None:
    return


async def failing() -> None:
    raise RuntimeError("broken")


async def test_leaving_the_block_cancels_tasks_and_keeps_its_own_error() -> None:
    async with GuardedTasks("hub") as tasks:
        task = tasks.start("loop", forever())
    assert task.cancelled()

    async def service() -> None:
        async with GuardedTasks("hub") as tasks:
            tasks.start("loop", forever())
            await forever()

    running = asyncio.create_task(service())
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    with pytest.raises(ValueError, match="mine"):
        async with GuardedTasks("hub") as tasks:
            tasks.start("loop", forever())
            raise ValueError("mine")

    async def stubborn() -> None:
        try:
            await forever()
        finally:
            raise RuntimeError("broken on the way out")

    async with GuardedTasks("hub") as tasks:
        tasks.start("loop", stubborn())
        await asyncio.sleep(0)
    assert tasks.ended is None


async def test_task_that_ends_by_itself_ends_the_service_with_its_name() -> None:
    with pytest.raises(TaskEndedError, match="hub/loop") as caught:
        async with GuardedTasks("hub") as tasks:
            tasks.start("loop", failing())
            await forever()
    assert isinstance(caught.value.__cause__, RuntimeError)

    with pytest.raises(TaskEndedError, match='"hub/loop" ended unexpectedly'):
        async with GuardedTasks("hub") as tasks:
            tasks.start("loop", nothing())
            await forever()

    cleaned = []

    async def other() -> None:
        try:
            await forever()
        finally:
            cleaned.append("other")

    with pytest.raises(TaskEndedError):
        async with GuardedTasks("hub") as tasks:
            tasks.start("other", other())
            tasks.start("loop", failing())
            await forever()
    assert cleaned == ["other"]


async def test_a_service_that_stops_in_its_own_order_is_told_and_not_cancelled() -> None:
    told: list[TaskEndedError] = []
    ended = asyncio.Event()

    def on_end(error: TaskEndedError) -> None:
        told.append(error)
        ended.set()

    async with GuardedTasks("hub", on_end=on_end) as tasks:
        tasks.start("loop", failing())
        other = tasks.start("other", forever())
        await ended.wait()
        assert not other.done()
    assert [error.task for error in told] == ["hub/loop"]
    assert other.cancelled()
