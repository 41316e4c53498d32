"""Controllers count and log their steps, and tasks do not end unnoticed."""

import asyncio
from contextlib import suppress
from datetime import timedelta

import pytest
from structlog.testing import capture_logs

from machinery.errors import UnavailableError
from machinery.runtime.controller import Controller, PartlyFailedError
from machinery.runtime.tasks import GuardedTasks, TaskEndedError
from tests.fakes.virtual_time import in_virtual_time


class Steps:
    """Ends each step as the next of these says: with an error, or with none. The last one ends the work; then it waits."""

    def __init__(self, *steps: Exception | None) -> None:
        self._steps = list(steps)
        self.done = asyncio.Event()

    async def reconcile(self, key: str) -> timedelta | None:
        del key
        step = self._steps.pop(0)
        if not self._steps:
            self.done.set()
        if step is not None:
            raise step
        return timedelta(seconds=1)


def partly(**words: str) -> Exception | None:
    """Of these, those with a word have failed with it."""
    failed: dict[str, Exception] = {name: UnavailableError(word) for name, word in words.items() if word}
    done = [name for name, word in words.items() if not word]
    if not failed:
        return None
    told = f"{len(failed)} failed, the last of them {next(reversed(failed))}"
    return PartlyFailedError(told, look_again=timedelta(seconds=1), failed=failed, done=done)


def away(word: str) -> Exception | None:
    return UnavailableError(word) if word else None


def run(*steps: Exception | None) -> tuple[dict[str, int], list[object], float]:
    """How the steps are counted, the warnings that are logged, and how long they take."""

    async def work() -> tuple[dict[str, int], list[object], float]:
        steps_ = Steps(*steps)
        controller = Controller("steps", steps_)
        assert dict(controller.outcomes) == {"success": 0, "error": 0}, "a rise from nothing is seen by no query"
        controller.enqueue("all")
        running = asyncio.create_task(controller.run())
        with capture_logs() as lines:
            await steps_.done.wait()
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
        assert controller.seconds.count == controller.outcomes.total()
        warned = [line["error"] for line in lines if line["log_level"] == "warning"]
        return dict(controller.outcomes), warned, asyncio.get_running_loop().time()

    return in_virtual_time(work())


def test_who_fails_in_part_says_when_to_be_asked_again() -> None:
    outcomes, warned, took = run(*([PartlyFailedError("1 of 2 failed", look_again=timedelta(seconds=1))] * 20))
    assert (outcomes, warned) == ({"success": 0, "error": 20}, ["1 of 2 failed"])
    assert took == pytest.approx(19)


def test_a_trouble_is_told_once_however_often_a_step_is_tried_and_another_one_or_a_new_one_again() -> None:
    words = ("full", "full", "full", "away", "away", "", "away", "away", "")
    outcomes, warned, _ = run(*map(away, words))
    assert (outcomes, warned) == ({"success": 2, "error": 7}, ["full", "away", "away"])


def test_who_fails_as_another_has_for_long_is_told_as_well_and_nobody_twice() -> None:
    _, warned, _ = run(
        partly(a="x"),
        partly(a="x", b=""),
        partly(b="x"),  # tried at times of their own
        partly(a="x"),
        partly(a="x", b="x"),
        partly(b=""),
        partly(a="x", b="y"),
        partly(a="", b="y"),
        partly(a="x", b="y"),
        partly(b="", a=""),
        partly(a="x"),
        None,
    )
    one, two = "1 failed, the last of them", "2 failed, the last of them"
    assert warned == [f"{one} a", f"{one} b", f"{two} b", f"{two} b", f"{one} a"]


async def forever() -> None:
    await asyncio.Event().wait()


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
            other = tasks.start("other", forever())
            tasks.start("loop", failing())
            await forever()
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert other.cancelled()

    with pytest.raises(TaskEndedError, match='"hub/loop" ended unexpectedly'):
        async with GuardedTasks("hub") as tasks:
            tasks.start("loop", asyncio.sleep(0))
            await forever()


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
