"""Made-up requests: no answer is a 500."""

import asyncio

import pytest

from bench.fuzz import fuzzed
from tests.e2e.processes import Bench

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]


OPERATIONS, FEWEST = 10, 2


async def test_no_request_is_answered_by_500_or_by_what_is_not_documented(bench: Bench) -> None:
    await bench.hub()

    findings = await asyncio.to_thread(fuzzed, bench.admin, examples=2, number=20_261_121, most=OPERATIONS)

    assert findings.failures == {}
    assert sum(count for status, count in findings.answers.items() if status < 300) > FEWEST, findings.answers
    assert sum(count for status, count in findings.answers.items() if status >= 400) > FEWEST, findings.answers
    assert '"level": "error"' not in bench.logs
