"""What looks or writes for ever and cannot: the log tells each trouble once, another one as well, and that it is over."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from hub.access import BootstrapTokens, Peers
from hub.access.rolebook import RoleBook
from hub.rpc.clocks import Clocks
from hub.rpc.sessions import Sessions
from machinery.clock import ManualClock
from machinery.errors import UnavailableError
from machinery.identity import ClusterName
from tests.fakes.memory_store import MemoryStore
from tests.fakes.virtual_time import in_virtual_time
from tests.unit.hub.test_sessions import Open

EDGE = ClusterName("edge")
WORDS = ("full", "full", "away", "away", "", "away")
LONG_ENOUGH = 12
"""Seconds; longer than any of them pauses."""


@dataclass
class Ailing:
    """A store that fails with this word; "" is none."""

    store: MemoryStore
    word: str = ""

    def fails(self, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
        right = getattr(self.store, method)

        async def asked(*args: Any, **kwargs: Any) -> Any:
            if self.word:
                raise UnavailableError(self.word)
            return await right(*args, **kwargs)

        monkeypatch.setattr(self.store, method, asked)


@dataclass
class Case:
    """`again`: what is told when the trouble is over. `wanted`: gives it something to do."""

    run: Coroutine[Any, Any, None]
    trouble: str
    again: str = ""
    wanted: Callable[[], None] = lambda: None


def peers(store: MemoryStore, clock: ManualClock) -> Case:
    return Case(Peers(store, clock).run(), "revocations cannot be read", "revocations are read again")


def tokens(store: MemoryStore, _clock: ManualClock) -> Case:
    return Case(BootstrapTokens(store).run(), "revoked bootstrap credentials cannot be read")


def roles(store: MemoryStore, clock: ManualClock) -> Case:
    return Case(RoleBook(store, clock).run(), "the age of the roles cannot be proven")


def clocks(store: MemoryStore, _clock: ManualClock) -> Case:
    subject = Clocks(store, timedelta())
    told = "what agents' clocks say cannot be written down"
    return Case(subject.run(), told, wanted=lambda: subject.told(EDGE, timedelta()))


def others(store: MemoryStore, _clock: ManualClock) -> Case:
    told, again = "sessions of other replicas cannot be read", "sessions of other replicas are read again"
    return Case(Sessions(store, "one").follow_others(), told, again)


@pytest.mark.parametrize("made", [peers, tokens, roles, clocks, others])
def test_each_trouble_is_told_once_and_another_one_as_well(
    made: Callable[[MemoryStore, ManualClock], Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines, case = logged(made, WORDS, monkeypatch)
    assert [line["error"] for line in lines if line["event"] == case.trouble] == ["full", "away", "away"]
    assert [line["log_level"] for line in lines if line["event"] == case.again] == ["info"] * bool(case.again)


def test_it_is_told_when_open_sessions_are_written_down_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def ours(store: MemoryStore, _clock: ManualClock) -> Case:
        sessions = Sessions(store, "one")
        return Case(sessions.run(), "open sessions cannot be written down", wanted=lambda: sessions.add(Open("a")))

    lines, case = logged(ours, ("", "full", "full", "away", "", ""), monkeypatch)
    told = [line["event"] for line in lines]
    assert told == [case.trouble, case.trouble, "open sessions are written down again"]


def logged(
    made: Callable[[MemoryStore, ManualClock], Case], words: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> tuple[Sequence[Mapping[str, Any]], Case]:
    """What is told while the store has these words, one after the other."""

    async def run() -> tuple[Sequence[Mapping[str, Any]], Case]:
        clock = ManualClock()
        ailing = Ailing(MemoryStore(clock))
        for method in ("run", "read"):
            ailing.fails(monkeypatch, method)
        case = made(ailing.store, clock)
        running = asyncio.create_task(case.run)
        with capture_logs() as lines:
            for ailing.word in words:
                case.wanted()
                await asyncio.sleep(LONG_ENOUGH)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        return lines, case

    return in_virtual_time(run())
