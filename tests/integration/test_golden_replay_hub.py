"""Every recorded request gets the recorded answer from the hub's door: its services on SQLite."""

from collections.abc import AsyncIterator

import aiohttp
import pytest

from tests.fakes.golden_hub import HubWorld
from tests.golden.expectations import HUB_DELIBERATE, HUB_OWED, STAMPED, unexpected
from tests.golden.replay import Exchange, Replay, exchanges

CASES = exchanges()


@pytest.fixture(scope="module")
async def found(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[dict[str, list[str]]]:
    world = HubWorld(tmp_path_factory.mktemp("golden"))
    await world.start()
    async with aiohttp.ClientSession() as session:
        yield await Replay(world, session).run()
    await world.close()


@pytest.mark.parametrize("exchange", CASES, ids=[case.name for case in CASES])
def test_the_hub_answers_as_recorded(exchange: Exchange, found: dict[str, list[str]]) -> None:
    differences = [difference for difference in found[exchange.name] if not difference.endswith(STAMPED)]
    if exchange.case in HUB_OWED:
        assert differences, f"this passes now: it no longer waits for {HUB_OWED[exchange.case]}"
    else:
        assert unexpected(exchange.case, differences, HUB_DELIBERATE) == []


def test_every_taint_has_its_time(found: dict[str, list[str]]) -> None:
    assert any(difference.endswith(STAMPED) for differences in found.values() for difference in differences)


def test_what_is_owed_names_recorded_cases() -> None:
    assert set(HUB_OWED) <= {case.case for case in CASES}


def test_nothing_is_owed_of_clusters_requests_and_leases() -> None:
    about = ("managedclusters", "certificatesigningrequests", "leases")
    apply = "server-side apply"
    owed = {case.case for case in CASES if any(word in case.request["path"] for word in about)} & set(HUB_OWED)
    assert {case for case in owed if HUB_OWED[case] != apply} == set()
