"""Health checks: named, sealed, bounded in time, and honest."""

import asyncio
from datetime import timedelta

import pytest

from machinery.clock import ManualClock
from machinery.lifecycle.health import READINESS, Endpoint, HealthChecks, LoopProgress


async def passing() -> None:
    return


async def failing() -> None:
    raise RuntimeError("the database is away")


async def hanging() -> None:
    await asyncio.Event().wait()


async def test_without_checks_of_its_own_a_server_is_healthy() -> None:
    verdict = await HealthChecks().verdict(Endpoint.LIVEZ)
    assert verdict.passed
    assert [outcome.name for outcome in verdict.outcomes] == ["ping"]


async def test_a_failing_check_fails_its_endpoints_and_no_other() -> None:
    checks = HealthChecks()
    checks.add("database", failing, endpoints=READINESS)
    assert not (await checks.verdict(Endpoint.READYZ)).passed
    assert (await checks.verdict(Endpoint.LIVEZ)).passed


async def test_an_excluded_check_is_not_asked() -> None:
    checks = HealthChecks()
    checks.add("database", failing)
    verdict = await checks.verdict(Endpoint.READYZ, excluded=["database", "nothing"])
    assert verdict.passed
    assert verdict.unknown_exclusions == ("nothing",)


async def test_a_check_that_hangs_fails_with_that_reason() -> None:
    checks = HealthChecks()
    checks.add("slow", hanging, timeout=timedelta(milliseconds=5))
    outcome = await checks.single(Endpoint.LIVEZ, "slow")
    assert outcome is not None
    assert outcome.reason == "no answer within 0.005 s"


async def test_an_unknown_single_check_is_none() -> None:
    assert await HealthChecks().single(Endpoint.LIVEZ, "nothing") is None


async def test_the_first_ready_answer_is_told() -> None:
    told: list[str] = []
    checks = HealthChecks(first_ready=lambda: told.append("ready"))
    await checks.verdict(Endpoint.LIVEZ)
    assert told == []
    await checks.verdict(Endpoint.READYZ)
    assert told == ["ready"]


async def test_names_are_unique_and_a_sealed_registry_takes_no_more() -> None:
    checks = HealthChecks()
    checks.add("one", passing)
    with pytest.raises(ValueError, match="registered already"):
        checks.add("one", passing)
    checks.seal()
    with pytest.raises(RuntimeError, match="too late"):
        checks.add("two", passing)


async def test_progress_is_judged_by_the_last_beat() -> None:
    clock = ManualClock()
    progress = LoopProgress(clock, timedelta(seconds=30))
    clock.advance(timedelta(seconds=31))
    with pytest.raises(RuntimeError, match="no progress for 31 s"):
        await progress()
    progress.beat()
    await progress()
