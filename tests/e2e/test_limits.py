"""Made-up requests, bodies, tokens and messages: no answer is an internal error."""

import asyncio
from random import Random

import pytest

from bench import wirefuzz
from bench.fuzz import fuzzed
from bench.stage import staged
from tests.e2e.processes import Bench

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]
OPERATIONS, FEWEST = 10, 2
SEED = 20_261_121


async def test_no_request_is_answered_by_500_or_by_what_is_not_documented(bench: Bench) -> None:
    await bench.hub()
    findings = await asyncio.to_thread(fuzzed, bench.admin, examples=2, number=SEED, most=OPERATIONS)
    assert findings.failures == {}
    assert sum(count for status, count in findings.outcomes.items() if status < "300") > FEWEST, findings.outcomes
    assert sum(count for status, count in findings.outcomes.items() if status >= "400") > FEWEST, findings.outcomes
    assert '"level": "error"' not in bench.logs


async def test_no_mutated_body_token_or_message_is_an_internal_error_or_answered_in_the_terms_of_python() -> None:
    async with staged() as stage:
        await stage.start_hub("--auto-approve=fuzz-*")
        parts = await wirefuzz.fuzzed(stage, Random(SEED), cases=200, seconds=20)
    assert {name: sent for part in parts for name, sent in part.failures.items()} == {}
    assert all(len(part.outcomes) > FEWEST for part in parts), parts
