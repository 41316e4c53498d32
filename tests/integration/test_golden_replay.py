"""Every recorded request gets the recorded answer from the generic API server on MemoryStorage."""

from collections.abc import AsyncIterator

import aiohttp
import pytest

from tests.fakes.golden_world import MemoryWorld
from tests.golden.expectations import DELIBERATE, OWED, unexpected
from tests.golden.replay import Exchange, Replay, exchanges

CASES = exchanges()


@pytest.fixture(scope="module")
async def found() -> AsyncIterator[dict[str, list[str]]]:
    world = MemoryWorld()
    await world.start()
    async with aiohttp.ClientSession() as session:
        yield await Replay(world, session).run()
    await world.close()


@pytest.mark.parametrize("exchange", CASES, ids=[case.name for case in CASES])
def test_the_answer_is_as_recorded(exchange: Exchange, found: dict[str, list[str]]) -> None:
    differences = found[exchange.name]
    if exchange.case in OWED:
        assert differences, f"this passes now: it no longer waits for {OWED[exchange.case]}"
    else:
        assert unexpected(exchange.case, differences) == []


def test_every_listed_exception_names_a_recorded_case() -> None:
    names = {case.case for case in CASES}

    assert {difference.case for difference in DELIBERATE} <= names
    assert set(OWED) <= names
