"""Recorded requests of real clients get the recorded answers from the hub."""

from pathlib import Path

import aiohttp

from tests.fakes.golden_hub import HubWorld
from tests.golden.compare import DELIBERATE, STAMPED, unexpected
from tests.golden.replay import Replay, exchanges


async def test_recorded_requests_get_the_recorded_answers(tmp_path: Path) -> None:
    """The list has each unexpected difference, and each listed one that is gone, with the exchange's number and name."""
    world = HubWorld(tmp_path)
    await world.start()
    async with aiohttp.ClientSession() as session:
        found = await Replay(world, session).run()
    await world.close()

    wrong, stamped = [], 0
    for exchange in exchanges():
        differences = [each for each in found[exchange.name] if not each.endswith(STAMPED)]
        stamped += len(found[exchange.name]) - len(differences)
        wrong += [f"{exchange.name}: {each}" for each in unexpected(exchange.case, differences)]
    assert not wrong, "\n".join(wrong)
    assert stamped
    assert {difference["case"] for difference in DELIBERATE} <= {case.case for case in exchanges()}
