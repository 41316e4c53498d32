"""The gate of the agents' door: when nothing comes any more, as far as that can be told."""

import asyncio
from datetime import timedelta

import pytest

from hub.rpc.gate import QUIET, STEP, Gate
from machinery.clock import ManualClock


@pytest.mark.parametrize("how", ["still", "quiet"])
async def test_a_moment_in_which_the_process_was_not_let_run_is_none_in_which_nothing_came(how: str) -> None:
    clock = ManualClock()
    gate = Gate(clock)
    gate.close()
    waiting = asyncio.create_task(gate.still(timedelta(minutes=1)) if how == "still" else gate.quiet())
    await asyncio.sleep(0)
    clock.advance(4 * QUIET)
    await asyncio.sleep(2 * STEP)
    assert not waiting.done()
    async with asyncio.timeout(20):
        while not waiting.done():
            clock.advance(timedelta(seconds=STEP / 2))
            await asyncio.sleep(STEP / 2)
    await waiting
