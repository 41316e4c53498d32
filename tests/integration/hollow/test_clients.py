"""kubectl and our reflector against a hollow cluster; `test_kubernetes_package.py` has the clients of others."""

import asyncio
import json
from asyncio.subprocess import PIPE
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from hollow.cluster import HollowCluster
from machinery.client.reflector import ObjectKey, Reflector, mirrored
from machinery.client.rest import KubeClient, Object, RestResource
from machinery.errors import NotFoundError
from machinery.runtime.backoff import Backoff
from tests.trials import repeated

Kubectl = Callable[..., Awaitable[str]]


@pytest.fixture
async def kubectl(hollow_cluster: HollowCluster, tmp_path: Path) -> Kubectl:
    file = tmp_path / "kubeconfig"
    file.write_text(yaml.safe_dump(hollow_cluster.kubeconfig()))

    async def run(*arguments: str, fails: bool = False) -> str:
        command = ("kubectl", "--kubeconfig", str(file), "--cache-dir", str(tmp_path / "cache"), *arguments)
        process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
        out, err = await process.communicate()
        assert (process.returncode != 0) is fails, err.decode()
        return err.decode() if fails else out.decode()

    return run


def table(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


@pytest.mark.kubectl
async def test_kubectl_shows_and_changes_nodes_and_empties_namespaces(kubectl: Kubectl) -> None:
    rows = table(await kubectl("get", "nodes"))
    assert rows[0] == ["NAME", "STATUS", "ROLES", "AGE", "VERSION"]
    assert rows[1][:3] == ["test-node-0", "Ready", "control-plane"]
    assert (rows[2][:3], rows[2][4]) == (["test-node-1", "Ready", "<none>"], "v1.34.2")
    wide = await kubectl("get", "nodes", "-o", "wide")
    assert ("CONTAINER-RUNTIME" in wide, "172.18.0.2" in wide) == (True, True)
    assert json.loads(await kubectl("version", "-o", "json"))["serverVersion"]["gitVersion"] == "v1.34.2"
    names = (await kubectl("api-resources", "-o", "name")).split()
    assert {"nodes", "leases.coordination.k8s.io", "clusterclaims.cluster.open-cluster-management.io"} <= set(names)
    assert "test-node-1 cordoned" in await kubectl("cordon", "test-node-1")
    assert "Ready,SchedulingDisabled" in await kubectl("get", "node", "test-node-1")
    described = await kubectl("describe", "node", "test-node-1")
    assert ("KubeletReady" in described, "cpu:                8" in described) == (True, True)

    await kubectl("create", "namespace", "team-a")
    assert table(await kubectl("get", "ns", "team-a", "--no-headers"))[0][:2] == ["team-a", "Active"]
    await kubectl("-n", "team-a", "create", "configmap", "c", "--from-literal=a=1")
    await kubectl("delete", "namespace", "team-a")
    await kubectl("create", "namespace", "team-a")
    assert await kubectl("-n", "team-a", "get", "configmaps", "-o", "name") == ""
    assert "not found" in await kubectl("-n", "nowhere", "create", "configmap", "c", fails=True)


MAPS = RestResource("", "v1", "configmaps")
QUICK = timedelta(milliseconds=20)


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

    maps, quick = MAPS.path(namespace="default"), Backoff(QUICK, QUICK)
    reflector: Reflector[str] = Reflector(
        client, maps, value_of, on_change=take, on_failure=lambda _error: None, page_size=4, backoff=quick
    )
    async with mirrored(reflector) as wait:
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
