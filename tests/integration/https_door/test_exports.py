"""A list of everything: whole, of one revision, and never in memory as a whole."""

import json
import tracemalloc
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from hub.api.meta.change import MANAGED_CLUSTERS
from hub.https_door.storage.storage import ServiceStorage
from hub.ports import Transaction
from machinery.meta.objects import Key
from tests.integration.https_door.conftest import CLUSTERS, HubUnderTest, holder

BIG = 40_000
PORTION = 10


def put(tx: Transaction, numbers: range) -> None:
    for number in numbers:
        name = f"edge-{number:04}"
        metadata = {
            "name": name,
            "uid": f"uid-{name}",
            "creationTimestamp": "2026-11-22T00:00:00Z",
            "annotations": {"big": f"{number:04}" * (BIG // 4)},
        }
        document = {"apiVersion": "cluster.open-cluster-management.io/v1", "kind": "ManagedCluster", "metadata": metadata}
        tx.objects.put(MANAGED_CLUSTERS, {**document, "spec": {"hubAcceptsClient": False}}, None, "tester")


def touch(tx: Transaction) -> None:
    """The last one changes, the one before it goes, another comes."""
    found = tx.objects.get(MANAGED_CLUSTERS, Key("", "edge-0029"))
    gone = tx.objects.get(MANAGED_CLUSTERS, Key("", "edge-0028"))
    assert found is not None
    assert gone is not None
    tx.objects.put(MANAGED_CLUSTERS, {**found.document, "spec": {"hubAcceptsClient": True}}, found, "tester")
    tx.objects.delete(MANAGED_CLUSTERS, gone, "tester")
    put(tx, range(900, 901))


@asynccontextmanager
async def listing(hub: HubUnderTest, query: str = "", **headers: str) -> AsyncIterator[aiohttp.ClientResponse]:
    path = await hub.admin()
    connector = aiohttp.TCPConnector(ssl=holder(hub, path).context)
    async with (
        aiohttp.ClientSession(connector=connector, auto_decompress=False) as session,
        session.get(f"{hub.server}{CLUSTERS}{query}", headers={"Accept-Encoding": "identity", **headers}) as response,
    ):
        assert response.status == 200
        yield response


async def test_an_export_never_holds_more_than_some_portions_of_the_list(
    hub: HubUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hub.https_door.storage.storage.PORTION", PORTION)
    count = 300
    for first in range(0, count, 50):
        await hub.store.run(put, range(first, first + 50))
    async with listing(hub, "?limit=1") as response:
        await response.read()  # what is loaded once
    size = 0
    tracemalloc.start()
    async with listing(hub) as response:
        async for chunk in response.content.iter_chunked(1 << 16):
            size += len(chunk)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size > count * BIG
    assert peak < 12 * PORTION * BIG < size / 2, peak


async def test_an_export_is_of_the_revision_at_which_it_began(hub: HubUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hub.https_door.storage.storage.PORTION", PORTION)
    await hub.store.run(put, range(30))
    portions, list_ = 0, ServiceStorage.list

    async def interrupted(self: ServiceStorage, *arguments: Any, **options: Any) -> Any:
        """Others write after the first portion."""
        nonlocal portions
        page = await list_(self, *arguments, **options)
        portions += 1
        if portions == 1:
            await hub.store.run(touch)
        return page

    monkeypatch.setattr(ServiceStorage, "list", interrupted)
    async with listing(hub, **{"Accept-Encoding": "gzip"}) as response:
        found = json.loads(zlib.decompress(await response.read(), 31))
    assert portions == 3
    assert [item["metadata"]["name"] for item in found["items"]] == [f"edge-{number:04}" for number in range(30)]
    assert found["items"][-1]["spec"] == {"hubAcceptsClient": False}
    assert found["kind"] == "ManagedClusterList"
    revisions = [int(item["metadata"]["resourceVersion"]) for item in found["items"]]
    assert set(found["metadata"]) == {"resourceVersion"}
    assert max(revisions) <= int(found["metadata"]["resourceVersion"]) < await hub.store.read(lambda tx: tx.changes.newest())


async def test_an_export_of_metadata_and_one_that_ends_with_a_portion_are_whole(
    hub: HubUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hub.https_door.storage.storage.PORTION", PORTION)
    await hub.store.run(put, range(2 * PORTION))
    partial = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
    async with listing(hub, Accept=partial) as response:
        found = json.loads(await response.read())
    assert found["kind"] == "PartialObjectMetadataList"
    assert [len(item) for item in found["items"]] == [3] * 2 * PORTION
