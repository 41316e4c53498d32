"""Controllers count and log their steps, and tasks do not end unnoticed."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta

import pytest
from structlog.testing import capture_logs

from machinery.errors import ConflictError, UnavailableError
from machinery.runtime.clock import ManualClock
from machinery.runtime.controller import FIRST_BACKOFF, MAX_BACKOFF, Batch, BatchReconciler, Controller
from machinery.runtime.tasks import GuardedTasks, TaskEndedError
from machinery.runtime.work_queue import WorkQueue
from tests.checks import present
from tests.fakes.virtual_time import VirtualLoop, in_virtual_time


class Steps:
    """Ends each step as the next of these says: with an error, or with none. The last one ends the work; then it waits."""

    def __init__(self, *steps: Exception | None) -> None:
        self._steps = list(steps)
        self.done = asyncio.Event()

    async def reconcile(self, _key: str) -> timedelta | None:
        step = self._steps.pop(0)
        if not self._steps:
            self.done.set()
        if step is not None:
            raise step
        return timedelta(seconds=1)


def test_a_trouble_is_reported_once_however_often_a_step_is_tried_and_another_one_or_a_new_one_again() -> None:
    words = ("full", "full", "full", "away", "away", "", "away", "away", "")
    steps = Steps(*(UnavailableError(word) if word else None for word in words))

    async def work() -> None:
        controller = Controller("steps", steps)
        assert dict(controller.outcomes) == {"success": 0, "error": 0}, "a rise from nothing is seen by no query"
        controller.enqueue("all")
        running = asyncio.create_task(controller.run())
        with capture_logs() as lines:
            await steps.done.wait()
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
        assert controller.seconds.count == controller.outcomes.total()
        assert dict(controller.outcomes) == {"success": 2, "error": 7}
        assert [line["error"] for line in lines if line["log_level"] == "warning"] == ["full", "away", "away"]

    in_virtual_time(work())


class Failing(BatchReconciler[str]):
    """Fails with these texts by key."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.calls: list[tuple[str, ...]] = []

    async def reconcile_all(self, keys: Sequence[str]) -> Batch[str]:
        batch = Batch[str]()
        await batch.run(keys, self._work)
        return batch

    async def _work(self, keys: Sequence[str]) -> dict[str, timedelta | None]:
        self.calls.append(tuple(keys))
        for key in keys:
            if self.texts.get(key):
                raise ConflictError(self.texts[key])
        return dict.fromkeys(keys)


async def test_a_key_that_fails_as_another_has_for_long_is_logged_as_well_and_none_twice() -> None:
    clock, subject, warned = ManualClock(), Failing(), list[str]()
    controller = Controller("batch", subject, clock=clock)
    for texts in ("a:x", "a:x b:", "b:x", "a:x", "a:x b:x", "b:", "a:x b:y", "a: b:y", "a:x b:y", "b: a:", "a:x", "a:"):
        subject.texts = {key: text for key, _, text in (each.partition(":") for each in texts.split())}
        clock.advance(timedelta(minutes=1))
        controller.queue.done(controller.queue.take(10))
        for key in subject.texts:
            controller.enqueue(key)
        with capture_logs() as lines:
            await controller.step()
        warned += [str(line["error"]) for line in lines if line["log_level"] == "warning"]
    of_two = "of 2 failed, the last of them"
    assert warned == ["x", "x", f"2 {of_two} b: y", f"2 {of_two} b: y", "x"]


async def test_keys_of_a_batch_that_fails_are_tried_alone_and_the_failing_one_later_and_later() -> None:
    clock, subject = ManualClock(), Failing()
    subject.texts = {"b": "x"}
    controller = Controller("batch", subject, clock=clock)
    for key in "abc":
        controller.enqueue(key)
    await controller.step()
    assert subject.calls == [("a", "b", "c"), ("a",), ("b",), ("c",)]
    pauses = []
    for _ in range(20):
        pauses.append(pause := present(controller.queue.pause()))
        clock.advance(pause)
        await controller.step()
    assert pauses[0] <= FIRST_BACKOFF
    assert MAX_BACKOFF / 2 <= pauses[-1] <= MAX_BACKOFF


class Periodic(Failing):
    """The key "*" stands for work on other keys, which its batch has instead of it."""

    async def reconcile_all(self, keys: Sequence[str]) -> Batch[str]:
        await self._work(keys)
        return Batch[str]()


async def test_back_off_and_log_of_a_key_begin_again_after_a_success_that_its_batch_does_not_name() -> None:
    clock, subject = ManualClock(), Periodic()
    controller = Controller("batch", subject, clock=clock)
    for text in ("x", "x", "x", "x", "", "x"):
        subject.texts = {"*": text}
        controller.enqueue("*")
        with capture_logs() as lines:
            await controller.step()
    assert [line["log_level"] for line in lines] == ["warning"]
    assert present(controller.queue.pause()) <= FIRST_BACKOFF


def test_delayed_key_is_taken_although_other_keys_are_added_again_and_again() -> None:
    clock = ManualClock()
    queue = WorkQueue[str](clock)
    for key in "ab":
        queue.add(key)
    queue.add_after("late", timedelta(seconds=1))
    clock.advance(timedelta(seconds=1))
    taken = list[str]()
    for _ in range(3):
        taken += (keys := queue.take())
        queue.done(keys)
        for key in keys:
            queue.add(key)
    assert taken == ["a", "b", "late"]


def test_wait_for_a_delayed_key_returns_when_it_can_be_taken() -> None:
    async def work() -> Sequence[str]:
        queue, loop = WorkQueue[str](), asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        queue.add_after("a", timedelta(seconds=1))
        loop.stand_still(7e-7)  # a part of a microsecond, which no delay can express
        await queue.wait()
        return queue.take()

    assert in_virtual_time(work()) == ("a",)


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


async def test_a_service_that_stops_in_its_own_order_is_reported_and_not_cancelled() -> None:
    errors: list[TaskEndedError] = []
    ended = asyncio.Event()

    def on_end(error: TaskEndedError) -> None:
        errors.append(error)
        ended.set()

    async with GuardedTasks("hub", on_end=on_end) as tasks:
        tasks.start("loop", failing())
        other = tasks.start("other", forever())
        await ended.wait()
        assert not other.done()
    assert [error.task for error in errors] == ["hub/loop"]
    assert other.cancelled()
