"""When replicas look for what was revoked: how often, and when as far back as a commit may have waited."""

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from hub.access.looking import AFRESH, POLL, RARELY, SOON, Looking
from tests.fakes.bell import Bell
from tests.fakes.virtual_time import in_virtual_time


@dataclass
class Looks:
    """When somebody looked, and how far."""

    failing: bool = False
    at: list[tuple[float, bool]] = field(default_factory=list)

    async def look(self, *, far: bool) -> bool:
        self.at.append((asyncio.get_running_loop().time(), far))
        return not self.failing

    @property
    def far(self) -> list[float]:
        return [at for at, far in self.at if far]


def looks_of(bell: Bell, looks: Looks, *, rings: tuple[float, ...] = (), until: float) -> Looks:
    async def looked() -> None:
        looking = asyncio.create_task(Looking(bell).run(looks.look))
        for at in rings:
            await asyncio.sleep(at - asyncio.get_running_loop().time())
            bell.ring()
        await asyncio.sleep(until - asyncio.get_running_loop().time())
        looking.cancel()

    in_virtual_time(looked())
    return looks


@pytest.mark.parametrize(("told", "period"), [(True, RARELY), (False, POLL)])
def test_where_word_comes_by_itself_looks_are_rare(*, told: bool, period: timedelta) -> None:
    looks = looks_of(Bell(told=told), Looks(), until=20)
    assert abs(len(looks.at) - 20 / period.total_seconds()) <= 2
    assert looks.far == [0.0], "the first look is one far back, the others are not"


def test_a_word_has_a_look_at_once_and_one_far_back_soon_after() -> None:
    looks = looks_of(Bell(), Looks(), rings=(7.0,), until=9)
    after = [(at, far) for at, far in looks.at if at >= 7.0]
    assert after[0] == (7.0, False)
    assert 7.0 < looks.far[1] <= 7.0 + SOON.total_seconds()


def test_many_words_have_one_look_far_back_each_half_second() -> None:
    looks = looks_of(Bell(), Looks(), rings=tuple(6 + number / 100 for number in range(300)), until=10)
    assert 5 <= len([at for at in looks.far if at >= 6]) <= 8


def test_without_any_word_a_look_a_minute_is_far_back() -> None:
    looks = looks_of(Bell(told=False), Looks(), until=5 * AFRESH.total_seconds() + 1)
    assert len(looks.far) == 6


def test_who_could_not_look_looks_soon_again_and_as_far_back() -> None:
    looks = looks_of(Bell(), Looks(failing=True), until=5)
    assert len(looks.at) >= 5 / POLL.total_seconds()
    assert len(looks.far) == len(looks.at)
