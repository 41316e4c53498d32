"""The first stop signal is a request, the second an order."""

import asyncio
import os
import signal

import pytest

from machinery.lifecycle.process import StopSignals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_the_first_signal_asks_and_the_second_ends_at_once(number: signal.Signals) -> None:
    ended: list[str] = []
    with StopSignals(at_once=lambda: ended.append("at once")) as stop:
        os.kill(os.getpid(), number)
        async with asyncio.timeout(5):
            await stop.requested.wait()
        assert ended == []
        os.kill(os.getpid(), number)
        assert ended == ["at once"]


async def test_there_is_one_such_block_in_a_process() -> None:
    with StopSignals(), pytest.raises(RuntimeError, match="taken already"), StopSignals():
        pass
    with StopSignals() as again:
        again.request()
        assert again.requested.is_set()


async def test_leaving_the_block_gives_the_signals_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with StopSignals():
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before
