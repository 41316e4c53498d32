"""What an unmodified OCM agent sends in protobuf is understood and answered in JSON, as it accepts."""

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from machinery.apiserver.access import EveryoneIsAdmin
from tests.fakes.golden_hub import HubWorld
from tests.fakes.golden_world import MemoryWorld

RECORDING = Path(__file__).parents[1] / "golden" / "ocm-agent.jsonl"
PROTOBUF = "application/vnd.kubernetes.protobuf"


def sent(kind: str) -> dict[str, Any]:
    """The first recorded request with a protobuf body to a path that ends with `kind`."""
    for line in RECORDING.read_text().splitlines():
        request: dict[str, Any] = json.loads(line)["request"]
        if request["headers"].get("content-type") == PROTOBUF and kind in request["path"]:
            return request
    raise AssertionError(kind)


@pytest.fixture(params=["memory", "hub"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MemoryWorld | HubWorld]:
    world = MemoryWorld(EveryoneIsAdmin()) if request.param == "memory" else HubWorld(tmp_path, EveryoneIsAdmin())
    await world.start()
    yield world
    await world.close()


async def answered(world: MemoryWorld | HubWorld, kind: str) -> tuple[int, dict[str, Any]]:
    request = sent(kind)
    body = base64.b64decode(request["body"]["base64"])
    async with (
        aiohttp.ClientSession() as session,
        session.request(request["method"], world.url + request["path"], data=body, headers=request["headers"]) as response,
    ):
        assert response.content_type == "application/json"
        return response.status, await response.json()


async def test_its_signing_request_is_stored(world: MemoryWorld | HubWorld) -> None:
    status, created = await answered(world, "certificatesigningrequests")

    assert status == 201
    assert created["metadata"]["name"].startswith("edge2-")
    assert created["metadata"]["labels"] == {"open-cluster-management.io/cluster-name": "edge2"}
    assert created["spec"]["usages"] == ["digital signature", "key encipherment", "client auth"]


async def test_its_event_is_stored(world: MemoryWorld | HubWorld) -> None:
    status, created = await answered(world, "/events")

    assert (status, created["reason"], created["regarding"]["kind"]) == (201, "Available", "ManagedCluster")


async def test_its_renewal_is_checked_against_the_lease(world: MemoryWorld | HubWorld) -> None:
    path = f"{world.url}/apis/coordination.k8s.io/v1/namespaces/edge2/leases"
    lease = {"metadata": {"name": "managed-cluster-lease"}, "spec": {"holderIdentity": "managed-cluster-lease"}}
    async with aiohttp.ClientSession() as session, session.post(path, json=lease) as response:
        assert response.status in (201, 409), "on the hub it is there with its cluster"

    status, refused = await answered(world, "/leases/")

    assert (status, refused["reason"]) == (409, "Conflict"), "it names the uid of another lease"
