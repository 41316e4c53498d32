"""Health checks and hooks: named, bounded in time, reported by name."""

import asyncio
import gc
from datetime import timedelta

import pytest

from machinery.lifecycle.health import LIVENESS, READINESS, Check, Endpoint, HealthChecks, LoopProgress, SharedCheck
from machinery.lifecycle.hooks import HookError, PostStartHooks
from machinery.lifecycle.server import LifecycleSignal, PathsInstalled
from machinery.runtime.clock import ManualClock


def registry(**options: timedelta) -> HealthChecks:
    return HealthChecks(ManualClock(), **options)


async def passing() -> None:
    return


async def failing() -> None:
    raise RuntimeError("the database is away")


async def hanging() -> None:
    await asyncio.Event().wait()


async def passes(check: Check) -> bool:
    try:
        await check()
    except RuntimeError:
        return False
    return True


async def test_livez_tolerates_boot_checks_until_the_grace_period_ends() -> None:
    for seconds, lenient in ((0, True), (30, True), (30.001, False)):
        clock = ManualClock()
        checks = HealthChecks(clock, livez_grace=timedelta(seconds=30))
        checks.add("hook", failing, boots=True)
        checks.add("database", failing, endpoints=READINESS)
        clock.advance(timedelta(seconds=seconds))
        assert (await checks.failing(Endpoint.LIVEZ) == {}) is lenient, (seconds, lenient)
        assert set(await checks.failing(Endpoint.HEALTHZ)) == {"hook"}, (seconds, lenient)
        assert set(await checks.failing(Endpoint.READYZ)) == {"hook", "database"}

    checks = registry()
    checks.add("hook", failing, boots=True)
    assert set(await checks.failing(Endpoint.LIVEZ)) == {"hook"}

    checks = registry(livez_grace=timedelta(seconds=30))
    checks.add("hook", failing, boots=True, group="boot")
    checks.add("loopback", passing, endpoints=LIVENESS)
    served = [(endpoint, probe.name) for endpoint in Endpoint for probe in checks.probes() if endpoint in probe.endpoints]
    assert len(served) == len(set(served)) == 3 + 3 + 2
    assert {probe.group for probe in checks.probes() if probe.name == "hook"} == {"boot"}


class Counted:
    """Something that is asked for its health."""

    def __init__(self) -> None:
        self.asked = 0
        self.well = True
        self.answers = asyncio.Event()
        self.answers.set()

    async def __call__(self) -> None:
        self.asked += 1
        await self.answers.wait()
        if not self.well:
            raise RuntimeError("away")


async def test_shared_check_asks_once_a_second_and_never_twice_at_a_time() -> None:
    clock, subject = ManualClock(), Counted()
    check = SharedCheck(subject, clock)
    await asyncio.gather(*(check() for _ in range(50)))
    subject.well = False
    clock.advance(timedelta(milliseconds=999))
    assert await passes(check), "the answer of less than a second ago"
    assert subject.asked == 1
    clock.advance(timedelta(milliseconds=1))
    assert not await passes(check)
    assert subject.asked == 2

    clock, subject = ManualClock(), Counted()
    check = SharedCheck(subject, clock, timeout=timedelta(milliseconds=10))
    subject.answers.clear()
    for _ in range(5):
        assert not await passes(check)
        clock.advance(timedelta(seconds=2))
    assert subject.asked == 1
    subject.answers.set()
    await asyncio.sleep(0)
    assert await passes(check)
    assert subject.asked == 2


async def test_an_answer_that_fails_when_nobody_waits_for_it_any_more_is_no_error_of_the_program() -> None:
    unseen: list[object] = []
    clock, subject = ManualClock(), Counted()
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: unseen.append(context))
    check = SharedCheck(subject, clock, timeout=timedelta(milliseconds=10))
    subject.answers.clear()
    subject.well = False
    assert not await passes(check)
    subject.answers.set()
    await asyncio.sleep(0)
    clock.advance(timedelta(seconds=2))
    subject.well = True
    assert await passes(check), "the next answer takes the place of the one that failed"
    gc.collect()
    assert unseen == []


async def test_check_names_are_unique_and_results_kept_until_the_registry_is_sealed() -> None:
    checks = registry()
    assert [probe.name for probe in checks.probes()] == ["ping"]
    checks.add("database", failing, endpoints=READINESS)
    checks.add("other", passing, endpoints=READINESS)
    assert checks.known(Endpoint.READYZ) == {}, "nobody has asked yet"
    assert await checks.failing(Endpoint.READYZ) == {"database": "the database is away"}
    assert checks.known(Endpoint.READYZ) == {"database": False, "other": True, "ping": True}
    assert await checks.failing(Endpoint.LIVEZ) == {}
    checks.add("slow", hanging, timeout=timedelta(milliseconds=5))
    assert await checks.failing(Endpoint.LIVEZ) == {"slow": "no answer within 0.005 s"}
    with pytest.raises(ValueError, match="registered already"):
        checks.add("slow", passing)
    checks.seal()
    with pytest.raises(RuntimeError, match="too late"):
        checks.add("two", passing)
    paths = PathsInstalled(LifecycleSignal("MuxAndDiscoveryComplete", ManualClock()))
    paths.expect("objects")
    with pytest.raises(ValueError, match="expected already"):
        paths.expect("objects")
    paths.seal()
    with pytest.raises(RuntimeError, match="too late"):
        paths.expect("console")

    clock = ManualClock()
    progress = LoopProgress(clock, timedelta(seconds=30))
    clock.advance(timedelta(seconds=31))
    with pytest.raises(RuntimeError, match="no progress for 31 s"):
        await progress()
    progress.beat()
    await progress()


def test_paths_are_complete_when_the_last_expected_one_is_installed() -> None:
    complete = LifecycleSignal("MuxAndDiscoveryComplete", ManualClock())
    paths = PathsInstalled(complete)
    first, second = paths.expect("objects"), paths.expect("console")
    first()
    assert not complete.signaled, "others may still be expected"
    paths.seal()
    first()
    assert not complete.signaled
    second()
    assert [complete.signaled] == [True]
    early = LifecycleSignal("MuxAndDiscoveryComplete", ManualClock())
    paths = PathsInstalled(early)
    paths.expect("objects")()
    paths.seal()
    assert early.signaled, "sealing completes what was already installed"


async def test_post_start_hooks_have_health_checks_and_a_failure_ends_them_all() -> None:
    health, go = registry(), asyncio.Event()
    hooks = PostStartHooks(health)

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

    health = registry()
    hooks, ended = PostStartHooks(health), asyncio.Event()

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    hooks.add("endless", endless)
    hooks.add("broken", failing)
    with pytest.raises(HookError, match='post-start hook "broken" failed'):
        await hooks.run()
    assert ended.is_set()
    assert "poststarthook/broken" in await health.failing(Endpoint.LIVEZ)
