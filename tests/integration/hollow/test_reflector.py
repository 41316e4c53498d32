"""Our reflector against a hollow cluster that changes, forgets and breaks connections all the while."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from random import Random
from typing import Any

import pytest

from hollow.cluster import HollowCluster
from machinery.backoff import Backoff
from machinery.errors import NotFoundError
from machinery.kube.client import KubeClient, Object, Resource
from machinery.kube.reflector import ObjectKey, Reflector, mirrored
from tests.trials import repeated

MAPS = Resource("", "v1", "configmaps")
QUICK = timedelta(milliseconds=20)


@pytest.fixture
async def client(hollow_cluster: HollowCluster) -> AsyncIterator[KubeClient]:
    async with await KubeClient.from_document(hollow_cluster.kubeconfig()) as connected:
        yield connected


def value_of(item: Object) -> str:
    return str(item["data"]["value"])


async def change(client: KubeClient, name: str, value: int, random: Random) -> None:
    """Makes, changes or deletes the config map."""
    path = MAPS.path(name, namespace="default")
    try:
        if random.random() < 0.3:
            await client.delete(path)
        else:
            await client.patch(path, {"data": {"value": str(value)}})
    except NotFoundError:
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"value": str(value)}}
        await client.create(MAPS.path(namespace="default"), body)


@repeated(3, 40)
async def test_after_any_history_the_mirror_holds_what_the_cluster_holds(
    hollow_cluster: HollowCluster, client: KubeClient, trial: int
) -> None:
    random = Random(trial)
    told: dict[ObjectKey, Any] = {}
    settled = asyncio.Event()

    def take(key: ObjectKey, value: str | None) -> None:
        assert told.get(key) != value
        told[key] = value
        if key.name == "last":
            settled.set()

    reflector: Reflector[str] = Reflector(
        client,
        MAPS.path(namespace="default"),
        value_of,
        on_change=take,
        on_failure=lambda _error: None,
        page_size=4,
        backoff=Backoff(QUICK, QUICK),
    )
    async with asyncio.timeout(30), mirrored(reflector) as wait:
        await wait(reflector.synced)
        for step in range(120):
            await change(client, f"map-{random.randrange(12)}", step, random)
            match random.randrange(20):
                case 0:
                    hollow_cluster.cut_watches()
                case 1:
                    await hollow_cluster.forget_history()
                    hollow_cluster.cut_watches()
                case 2:
                    await hollow_cluster.stop()
                    await hollow_cluster.start()
        await change(client, "last", 0, random)
        await wait(settled)
    present = {item["metadata"]["name"]: value_of(item) for item in await client.list(MAPS.path(namespace="default"))}
    assert {key.name: value for key, value in reflector.items.items()} == present
    assert {key.name: value for key, value in told.items() if value is not None} == present
