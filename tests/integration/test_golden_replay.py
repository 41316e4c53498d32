"""Recorded requests of real clients get the recorded answers from the hub."""

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from machinery.apiserver.access import EveryoneIsAdmin
from tests.fakes.golden_hub import HubWorld
from tests.golden.expectations import DELIBERATE, STAMPED, unexpected
from tests.golden.replay import Replay, exchanges

AGENT = Path(__file__).parents[1] / "golden" / "ocm-agent.jsonl"
PROTOBUF = "application/vnd.kubernetes.protobuf"


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
    assert {difference.case for difference in DELIBERATE} <= {case.case for case in exchanges()}


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[HubWorld]:
    world = HubWorld(tmp_path, EveryoneIsAdmin())
    await world.start()
    yield world
    await world.close()


async def test_protobuf_bodies_of_an_ocm_agent_are_read_and_answered_in_json(hub: HubWorld) -> None:
    recorded = [json.loads(line)["request"] for line in AGENT.read_text().splitlines()]

    async with aiohttp.ClientSession() as session:

        async def answer_to(kind: str) -> tuple[int, Any]:
            """Of the first recorded request with a protobuf body whose path has `kind`."""
            request = next(
                each for each in recorded if each["headers"].get("content-type") == PROTOBUF and kind in each["path"]
            )
            body, url = base64.b64decode(request["body"]["base64"]), hub.url + request["path"]
            async with session.request(request["method"], url, data=body, headers=request["headers"]) as response:
                assert response.content_type == "application/json"
                return response.status, await response.json()

        status, created = await answer_to("certificatesigningrequests")
        assert status == 201
        assert created["metadata"]["name"].startswith("edge2-")
        assert created["metadata"]["labels"] == {"open-cluster-management.io/cluster-name": "edge2"}
        assert created["spec"]["usages"] == ["digital signature", "key encipherment", "client auth"]

        status, created = await answer_to("/events")
        assert (status, created["reason"], created["regarding"]["kind"]) == (201, "Available", "ManagedCluster")

        status, refused = await answer_to("/leases/")
        assert (status, refused["reason"]) == (409, "Conflict"), "it names the uid of another lease"
