"""The first stop signal is a request, the second an order; a request from inside counts as the first."""

import asyncio
import os
import signal
import threading
from datetime import timedelta

import pytest
import structlog.testing

from machinery.lifecycle.process import LastResort, StopSignals, request_shutdown
from machinery.lifecycle.server import StartError
from machinery.lifecycle.starting import in_time


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


async def test_a_request_from_inside_is_the_first_and_says_whether_somebody_listens() -> None:
    ended: list[str] = []
    assert request_shutdown() is False
    with StopSignals(at_once=lambda: ended.append("at once")) as stop:
        assert await asyncio.to_thread(request_shutdown) is True
        assert request_shutdown() is True, "twice is as good as once"
        async with asyncio.timeout(5):
            await stop.requested.wait()
        assert ended == []
        os.kill(os.getpid(), signal.SIGTERM)
        assert ended == ["at once"]
    assert request_shutdown() is False


async def test_leaving_the_block_gives_the_signals_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with StopSignals():
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


def test_an_end_that_takes_too_long_is_made_and_one_in_time_is_left_alone() -> None:
    ended, disarmed = threading.Event(), threading.Event()
    late, prompt = LastResort(ended.set), LastResort(disarmed.set)
    prompt.arm(timedelta(minutes=1), "it hangs")
    waiting = prompt._timer
    prompt.disarm()
    assert waiting is not None
    waiting.join(10)
    assert (waiting.is_alive(), disarmed.is_set()) == (False, False), "nobody waits for its time any more"
    with structlog.testing.capture_logs() as logs:
        late.arm(timedelta(hours=1), "the start hangs")
        late.arm(timedelta(milliseconds=20), "the end hangs")
        assert ended.wait(5)
    assert [(line["log_level"], line["event"]) for line in logs] == [("critical", "the end hangs")]


async def test_a_step_of_the_start_that_hangs_is_named_and_ended() -> None:
    with pytest.raises(StartError, match=r"the schema did not finish within 0\.01 s: is the database there\?"):
        await in_time("the schema", asyncio.Event().wait(), timedelta(milliseconds=10), then="is the database there?")


async def test_a_step_that_gives_up_by_itself_keeps_its_own_error() -> None:
    async def own() -> None:
        raise TimeoutError("mine")

    with pytest.raises(TimeoutError, match="mine"):
        await in_time("the schema", own(), timedelta(seconds=5))
