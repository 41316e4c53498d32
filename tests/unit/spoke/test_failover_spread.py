"""Many agents lose their hub, or one replica of it, in one moment, and each chooses its own to come again.

In virtual time: no busy machine can bunch what was spread, nor spread what was not.
"""

from collections.abc import Sequence
from pathlib import Path
from random import Random

from spoke.options import Pauses
from tests.fakes.several import Several, played

AGENTS = 60
WINDOW, AWAY = 0.1, 60.0
AT_ONCE = 20
"""Of these agents, in a window. Spread over a second, six are to be expected there; 20 were the most in 10,000 drawn crowds."""


def _came_after(folder: Path, seed: int) -> float:
    """Seconds from the kill of its hub to the agent's session with the other one."""
    folder.mkdir()
    came: list[float] = []

    async def play(world: Several) -> None:
        async with world.running():
            await world.ready()
            world.kill("a")
            came.append(await world.arrived("b"))

    played(folder, play, random=Random(seed))
    return came[0]


def _came_back_after(folder: Path, seed: int) -> float:
    """Seconds from the death of the replica that has its session to the agent's session on another."""
    folder.mkdir()
    came: list[float] = []

    async def play(world: Several) -> None:
        async with world.running():
            await world.arrived("a")
            world.kill("a")
            world.revive("a")  # behind one address: another replica answers at once
            came.append(await world.arrived("a"))

    played(folder, play, count=1, random=Random(seed))
    return came[0]


def _peak(moments: Sequence[float], window: float) -> int:
    """The most of these within any `window`."""
    ordered = sorted(moments)
    most = first = 0
    for last, moment in enumerate(ordered):
        while moment - ordered[first] > window:
            first += 1
        most = max(most, last - first + 1)
    return most


def test_agents_whose_hub_is_killed_do_not_come_to_the_other_one_at_one_moment(tmp_path: Path) -> None:
    moments = [_came_after(tmp_path / str(seed), seed) for seed in range(AGENTS)]
    assert _peak(moments, WINDOW) <= AT_ONCE
    assert max(moments) < 3


def test_agents_whose_replica_is_killed_do_not_come_to_the_others_at_one_moment(tmp_path: Path) -> None:
    moments = [_came_back_after(tmp_path / str(seed), seed) for seed in range(AGENTS)]
    assert _peak(moments, WINDOW) <= 2 * AT_ONCE
    assert max(moments) < 1


def test_a_thousand_agents_whose_hub_is_away_knock_seldom_and_never_together() -> None:
    knocks: list[float] = []
    for seed in range(1000):
        pauses, now = Pauses().retry.backoff(Random(seed)), 0.0
        while (now := now + pauses.next().total_seconds()) < AWAY:
            knocks.append(now)
    assert _peak(knocks, WINDOW) < 400, "of a thousand in a tenth of a second"
    late = [moment for moment in knocks if moment > AWAY / 2]
    assert len(late) / (AWAY / 2) < 150, "a second"
    assert _peak(late, WINDOW) < 50
