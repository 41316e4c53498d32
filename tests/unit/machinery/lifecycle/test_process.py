"""Stop signals, step time limits, retries of the start, listening errors."""

import asyncio
import errno
import os
import signal
import threading
from datetime import timedelta

import pytest
import structlog.testing

from machinery.errors import InvalidError, UnavailableError
from machinery.lifecycle.process import LastResort, StopSignals
from machinery.lifecycle.startup import StartError, StartupRetry, in_time, listening_failed


async def test_first_signal_requests_a_stop_and_the_second_ends_the_process() -> None:
    ended: list[str] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        ended.clear()
        with StopSignals(at_once=lambda: ended.append("at once")) as stop:
            os.kill(os.getpid(), number)
            await stop.requested.wait()
            assert ended == [], number
            os.kill(os.getpid(), number)
            assert ended == ["at once"], number

    before = signal.getsignal(signal.SIGTERM)
    with StopSignals(), pytest.raises(RuntimeError, match="taken already"), StopSignals():
        pass
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


def test_listen_error_names_the_setting_and_the_reason() -> None:
    in_use, no_address = "is in use, perhaps by another hub", "is no address of this machine"
    reasons = {errno.EADDRINUSE: in_use, errno.EADDRNOTAVAIL: no_address, errno.EACCES: "take a port above 1023"}
    for number, said in (reasons | {errno.ENETDOWN: "Network is down"}).items():
        error = str(listening_failed("grpc_listen", "10.0.0.7", 443, OSError(number, os.strerror(number))))
        named = (said, "10.0.0.7 port 443 (grpc_listen)", "--grpc-listen")
        assert [each for each in named if each not in error] == [], error
    assert "cannot be listened on: choose another" in str(listening_failed("grpc_listen", "h", 1, None))


class Away:
    """Something that answers at the attempt of that number."""

    def __init__(self, until: int) -> None:
        self.attempts = 0
        self._until = until

    async def __call__(self) -> str:
        self.attempts += 1
        if self.attempts < self._until:
            raise UnavailableError("the database does not answer")
        return "open"


def persevering(limit: float, stop: asyncio.Event | None = None) -> StartupRetry:
    return StartupRetry(timedelta(seconds=limit), then="is it there?", stop=stop or asyncio.Event())


async def test_start_is_retried_until_its_limit_and_a_step_that_hangs_is_named() -> None:
    with pytest.raises(StartError, match=r"the schema did not finish within 0\.01 s: is the database there\?"):
        await in_time("the schema", asyncio.Event().wait(), timedelta(milliseconds=10), then="is the database there?")

    async def own() -> None:
        raise TimeoutError("mine")

    with pytest.raises(TimeoutError, match="mine"):
        await in_time("the schema", own(), timedelta(seconds=5))

    away = Away(until=3)
    assert await persevering(60)("opening it", away) == "open"
    assert away.attempts == 3

    with pytest.raises(
        StartError, match=r"^opening it did not finish within 0\.2 s: the database does not answer: is it there\?$"
    ):
        await persevering(0.2)("opening it", Away(until=10_000))

    with pytest.raises(StartError, match=r"^opening it did not finish within 0\.05 s: is it there\?$"):
        await persevering(0.05)("opening it", asyncio.Event().wait)

    async def wrong() -> None:
        raise InvalidError("the database has a newer schema")

    with pytest.raises(InvalidError):
        await persevering(60)("opening it", wrong)

    stop = asyncio.Event()
    asyncio.get_running_loop().call_later(0.05, stop.set)
    with pytest.raises(StartError, match="told to stop while it waited for opening it: the database does not answer"):
        await persevering(60, stop)("opening it", Away(until=10_000))
