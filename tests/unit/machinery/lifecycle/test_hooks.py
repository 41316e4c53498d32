"""Hooks have names, each its own, and what happens to one of them is told with that name."""

import asyncio
from datetime import timedelta

import pytest

from machinery.clock import ManualClock
from machinery.lifecycle.health import Endpoint, HealthChecks
from machinery.lifecycle.hooks import HookError, PostStartHooks, StoppingHooks

SOON = timedelta(milliseconds=100)


async def nothing() -> None:
    return


def post_start() -> tuple[PostStartHooks, HealthChecks]:
    health = HealthChecks(ManualClock())
    return PostStartHooks(health), health


async def test_a_name_taken_twice_is_told_with_both_places() -> None:
    hooks, _ = post_start()
    stopping = StoppingHooks("pre-shutdown hook")
    for subject in (hooks, stopping):
        subject.add("caches", nothing)
        with pytest.raises(ValueError, match=r"already, at .*test_hooks\.py:\d+; now again at .*test_hooks") as told:
            subject.add("caches", nothing)
        first, _, second = str(told.value).partition("; now again at ")
        assert first.rpartition(":")[2] != second.rpartition(":")[2], "two places, two lines"


async def test_a_hook_without_a_name_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a name"):
        StoppingHooks("flush").add("", nothing)


async def test_hooks_that_have_run_take_no_more() -> None:
    hooks, _ = post_start()
    stopping = StoppingHooks("flush")
    await hooks.run()
    await stopping.run(SOON)
    for subject in (hooks, stopping):
        with pytest.raises(RuntimeError, match="too late"):
            subject.add("late", nothing)


async def test_each_post_start_hook_has_a_health_check_until_it_is_done() -> None:
    hooks, health = post_start()
    go = asyncio.Event()

    async def waits() -> None:
        await go.wait()

    hooks.add("caches", waits)
    running = asyncio.create_task(hooks.run())
    await asyncio.sleep(0)
    for endpoint in Endpoint:
        assert await health.failing(endpoint) == {"poststarthook/caches": "not finished"}
    go.set()
    await running
    assert await health.failing(Endpoint.READYZ) == {}


async def test_a_failing_post_start_hook_is_named_and_ends_the_others() -> None:
    hooks, health = post_start()
    ended = asyncio.Event()

    async def broken() -> None:
        raise TimeoutError

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    hooks.add("endless", endless)
    hooks.add("broken", broken)
    with pytest.raises(HookError, match='post-start hook "broken" failed'):
        await hooks.run()
    assert ended.is_set()
    assert "poststarthook/broken" in await health.failing(Endpoint.LIVEZ)


async def test_hooks_that_fail_or_hang_keep_none_from_running_and_each_is_told() -> None:
    hooks = StoppingHooks("pre-shutdown hook")
    ran: list[str] = []

    async def works() -> None:
        ran.append("works")

    async def broken() -> None:
        raise RuntimeError("no lease")

    async def hangs() -> None:
        await asyncio.Event().wait()

    hooks.add("works", works)
    hooks.add("broken", broken)
    hooks.add("hangs", hangs)
    failures = await hooks.run(SOON)
    assert ran == ["works"]
    assert [str(failure).partition(" within")[0] for failure in failures] == [
        'pre-shutdown hook "hangs" did not finish',
        'pre-shutdown hook "broken" failed: no lease',
    ]


async def test_the_last_hook_added_runs_first() -> None:
    hooks = StoppingHooks("flush")
    ran: list[str] = []

    async def first() -> None:
        ran.append("first")

    async def second() -> None:
        ran.append("second")

    hooks.add("first", first)
    hooks.add("second", second)
    assert await hooks.run(SOON) == []
    assert ran == ["second", "first"]
