"""How much a process logs while it runs: orders, the signal, and what of both counts."""

import asyncio
import io
import json
import logging
import os
import signal

import pytest
import structlog

from machinery import logs
from machinery.lifecycle.verbosity import Verbosity, VerbositySignal


@pytest.fixture
def stream() -> io.StringIO:
    target = io.StringIO()
    logs.configure("info", logs.LogFormat.JSON, target)
    return target


def events(stream: io.StringIO) -> list[str]:
    return [json.loads(line)["event"] for line in stream.getvalue().splitlines()]


def test_an_order_counts_until_it_is_taken_back(stream: io.StringIO) -> None:
    verbosity, log = Verbosity("info"), structlog.get_logger("hub")
    log.debug("before")
    verbosity.order("debug")
    log.debug("ordered")
    verbosity.order(None)
    log.debug("after")
    assert [event for event in events(stream) if event != "log level changed"] == ["ordered"]
    assert verbosity.level == "info"


def test_that_less_is_logged_is_told_before_it_is_so(stream: io.StringIO) -> None:
    Verbosity("info").order("error")
    structlog.get_logger("hub").warning("unheard")
    assert events(stream) == ["log level changed"]


def test_the_signal_asks_for_everything_whatever_is_ordered_and_takes_that_back(stream: io.StringIO) -> None:
    verbosity = Verbosity("info")
    verbosity.order("error")
    verbosity.toggle()
    assert verbosity.level == "debug"
    verbosity.order("warning")
    assert verbosity.level == "debug"
    verbosity.toggle()
    assert verbosity.level == "warning"
    assert "log level changed" in events(stream)


def test_the_same_order_again_is_no_news(stream: io.StringIO) -> None:
    verbosity = Verbosity("info")
    for _ in range(3):
        verbosity.order("debug")
    assert events(stream) == ["log level changed"]


def test_libraries_that_are_noisy_stay_so_at_any_level(stream: io.StringIO) -> None:
    del stream
    Verbosity("info").order("debug")
    assert logging.getLogger("hub").isEnabledFor(logging.DEBUG)
    assert not logging.getLogger("grpc._cython.cygrpc").isEnabledFor(logging.DEBUG)
    assert not logging.getLogger("asyncio").isEnabledFor(logging.INFO)
    logs.set_level("info")


async def test_sigusr2_reaches_the_level_and_the_handler_before_it_comes_back(stream: io.StringIO) -> None:
    del stream
    before = signal.getsignal(signal.SIGUSR2)
    applied: asyncio.Queue[str] = asyncio.Queue()
    with VerbositySignal(Verbosity("info", applied.put_nowait)):
        for change in (["debug", "debug"], ["debug", "info"]):  # the more of both while the change is told, then what is asked
            os.kill(os.getpid(), signal.SIGUSR2)
            async with asyncio.timeout(5):
                assert [await applied.get(), await applied.get()] == change
    assert signal.getsignal(signal.SIGUSR2) == before
