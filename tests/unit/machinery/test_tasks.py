"""A service's tasks do not end unseen."""

import asyncio

import pytest

from machinery.tasks import GuardedTasks, TaskEndedError


async def forever() -> None:
    await asyncio.Event().wait()


async def nothing() -> None:
    return


async def failing() -> None:
    raise RuntimeError("broken")


async def test_leaving_the_block_ends_its_tasks() -> None:
    async with GuardedTasks("hub") as tasks:
        task = tasks.start("loop", forever())
    assert task.cancelled()


async def test_a_task_that_fails_ends_the_service_with_its_name() -> None:
    with pytest.raises(TaskEndedError, match="hub/loop") as caught:
        async with GuardedTasks("hub") as tasks:
            tasks.start("loop", failing())
            await forever()
    assert isinstance(caught.value.__cause__, RuntimeError)


async def test_a_task_that_returns_has_failed_too() -> None:
    with pytest.raises(TaskEndedError, match='"hub/loop" ended unexpectedly'):
        async with GuardedTasks("hub") as tasks:
            tasks.start("loop", nothing())
            await forever()


async def test_the_others_are_cancelled_and_awaited_when_one_falls() -> None:
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


async def test_a_cancelled_service_stays_cancelled() -> None:
    async def service() -> None:
        async with GuardedTasks("hub") as tasks:
            tasks.start("loop", forever())
            await forever()

    running = asyncio.create_task(service())
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_an_error_of_the_body_is_not_covered() -> None:
    with pytest.raises(ValueError, match="mine"):
        async with GuardedTasks("hub") as tasks:
            tasks.start("loop", forever())
            raise ValueError("mine")


async def test_a_service_that_stops_in_its_own_order_is_told_and_not_cancelled() -> None:
    told: list[TaskEndedError] = []
    ended = asyncio.Event()

    def on_end(error: TaskEndedError) -> None:
        told.append(error)
        ended.set()

    async with GuardedTasks("hub", on_end=on_end) as tasks:
        tasks.start("loop", failing())
        other = tasks.start("other", forever())
        async with asyncio.timeout(5):
            await ended.wait()
        assert not other.done()
    assert [error.task for error in told] == ["hub/loop"]
    assert other.cancelled()


async def test_a_task_that_fails_while_it_is_stopped_is_no_news() -> None:
    async def stubborn() -> None:
        try:
            await forever()
        finally:
            raise RuntimeError("broken on the way out")

    async with GuardedTasks("hub") as tasks:
        tasks.start("loop", stubborn())
        await asyncio.sleep(0)
    assert tasks.ended is None
