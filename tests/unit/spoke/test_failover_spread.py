"""Many agents lose their hub in one moment, and each chooses its own to come to the next.

In virtual time: no busy machine can bunch what was spread, nor spread what was not.
"""

from collections.abc import Sequence
from pathlib import Path
from random import Random

from tests.fakes.several import Several, played

AGENTS = 60
WINDOW = 0.1
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
