"""Health checks: named, sealed, bounded in time, lenient only where they may be, and shared where they cost something."""

import asyncio
import gc
from datetime import timedelta

import pytest

from machinery.clock import ManualClock
from machinery.lifecycle.health import LIVENESS, READINESS, Check, Endpoint, HealthChecks, LoopProgress, SharedCheck
from tests.fakes.virtual_time import in_virtual_time


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


async def test_what_was_found_last_is_known_without_asking_again() -> None:
    checks = registry()
    checks.add("database", failing, endpoints=READINESS)
    checks.add("other", passing, endpoints=READINESS)
    assert checks.known(Endpoint.READYZ) == {}, "nobody has asked yet"
    await checks.failing(Endpoint.READYZ)
    assert checks.known(Endpoint.READYZ) == {"database": False, "other": True, "ping": True}


async def test_without_checks_of_its_own_a_server_is_healthy() -> None:
    checks = registry()
    assert await checks.failing(Endpoint.LIVEZ) == {}
    assert [probe.name for probe in checks.probes()] == ["ping"]


async def test_a_failing_check_fails_its_endpoints_and_no_other() -> None:
    checks = registry()
    checks.add("database", failing, endpoints=READINESS)
    assert await checks.failing(Endpoint.READYZ) == {"database": "the database is away"}
    assert await checks.failing(Endpoint.LIVEZ) == {}


async def test_a_check_that_hangs_fails_with_that_reason() -> None:
    checks = registry()
    checks.add("slow", hanging, timeout=timedelta(milliseconds=5))
    assert await checks.failing(Endpoint.LIVEZ) == {"slow": "no answer within 0.005 s"}


async def test_names_are_unique_and_a_sealed_registry_takes_no_more() -> None:
    checks = registry()
    checks.add("one", passing)
    with pytest.raises(ValueError, match="registered already"):
        checks.add("one", passing)
    checks.seal()
    with pytest.raises(RuntimeError, match="too late"):
        checks.add("two", passing)


@pytest.mark.parametrize(("seconds", "lenient"), [(0, True), (30, True), (30.001, False)])
async def test_livez_is_lenient_with_the_boot_sequence_up_to_the_deadline_and_at_it(seconds: float, lenient: bool) -> None:  # noqa: FBT001 - a case
    clock = ManualClock()
    checks = HealthChecks(clock, livez_grace=timedelta(seconds=30))
    checks.add("hook", failing, boots=True)
    checks.add("database", failing, endpoints=READINESS)
    clock.advance(timedelta(seconds=seconds))
    assert (await checks.failing(Endpoint.LIVEZ) == {}) is lenient
    assert set(await checks.failing(Endpoint.HEALTHZ)) == {"hook"}
    assert set(await checks.failing(Endpoint.READYZ)) == {"hook", "database"}


async def test_a_check_that_is_done_early_does_not_fail_at_the_deadline() -> None:
    clock = ManualClock()
    checks = HealthChecks(clock, livez_grace=timedelta(seconds=30))
    checks.add("hook", passing, boots=True)
    clock.advance(timedelta(hours=1))
    assert await checks.failing(Endpoint.LIVEZ) == {}


async def test_without_a_grace_livez_is_as_strict_as_the_others() -> None:
    checks = registry()
    checks.add("hook", failing, boots=True)
    assert set(await checks.failing(Endpoint.LIVEZ)) == {"hook"}


async def test_a_lenient_check_is_served_once_per_endpoint() -> None:
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


async def test_many_probes_ask_once_a_second_and_share_the_answer() -> None:
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


async def test_a_question_without_an_answer_is_not_asked_again_and_fails_who_waits() -> None:
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


def test_an_answer_that_fails_when_nobody_waits_for_it_any_more_is_no_error_of_the_program() -> None:
    unseen: list[object] = []

    async def play() -> None:
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

    in_virtual_time(play())  # a loop of its own: what other tests left behind is told to theirs
    assert unseen == []


async def test_progress_is_judged_by_the_last_beat() -> None:
    clock = ManualClock()
    progress = LoopProgress(clock, timedelta(seconds=30))
    clock.advance(timedelta(seconds=31))
    with pytest.raises(RuntimeError, match="no progress for 31 s"):
        await progress()
    progress.beat()
    await progress()
