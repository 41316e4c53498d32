"""A real kubectl against a hollow cluster."""

import asyncio
import json
from asyncio.subprocess import PIPE
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import yaml

from hollow.cluster import HollowCluster

pytestmark = pytest.mark.kubectl

Kubectl = Callable[..., Awaitable[str]]


@pytest.fixture
async def kubectl(hollow_cluster: HollowCluster, tmp_path: Path) -> Kubectl:
    file = tmp_path / "kubeconfig"
    file.write_text(yaml.safe_dump(hollow_cluster.kubeconfig()))

    async def run(*arguments: str, stdin: str = "", fails: bool = False) -> str:
        process = await asyncio.create_subprocess_exec(
            "kubectl",
            "--kubeconfig",
            str(file),
            "--cache-dir",
            str(tmp_path / "cache"),
            *arguments,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
        )
        out, err = await asyncio.wait_for(process.communicate(stdin.encode()), 60)
        assert (process.returncode != 0) is fails, err.decode()
        return err.decode() if fails else out.decode()

    return run


def table(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


async def test_nodes_are_shown_as_of_any_cluster(kubectl: Kubectl) -> None:
    rows = table(await kubectl("get", "nodes"))
    assert rows[0] == ["NAME", "STATUS", "ROLES", "AGE", "VERSION"]
    assert rows[1][:3] == ["test-node-0", "Ready", "control-plane"]
    assert rows[2][:3] == ["test-node-1", "Ready", "<none>"]
    assert rows[2][4] == "v1.34.2"
    wide = await kubectl("get", "nodes", "-o", "wide")
    assert "CONTAINER-RUNTIME" in wide
    assert "172.18.0.2" in wide


async def test_the_versions_of_client_and_server_are_shown(kubectl: Kubectl) -> None:
    assert json.loads(await kubectl("version", "-o", "json"))["serverVersion"]["gitVersion"] == "v1.34.2"


async def test_a_node_can_be_described_cordoned_and_labelled(kubectl: Kubectl) -> None:
    assert "test-node-1 cordoned" in await kubectl("cordon", "test-node-1")
    assert "Ready,SchedulingDisabled" in await kubectl("get", "node", "test-node-1")
    await kubectl("label", "node", "test-node-1", "disk=fast")
    assert table(await kubectl("get", "no", "-l", "disk=fast", "--no-headers"))[0][0] == "test-node-1"
    described = await kubectl("describe", "node", "test-node-1")
    assert "KubeletReady" in described
    assert "cpu:                8" in described


async def test_claims_can_be_applied_edited_and_deleted(kubectl: Kubectl) -> None:
    claim = {
        "apiVersion": "cluster.open-cluster-management.io/v1alpha1",
        "kind": "ClusterClaim",
        "metadata": {"name": "region.example"},
        "spec": {"value": "north"},
    }
    assert "created" in await kubectl("apply", "-f", "-", stdin=json.dumps(claim))
    assert "unchanged" in await kubectl("apply", "-f", "-", stdin=json.dumps(claim))
    claim["spec"] = {"value": "south"}
    assert "configured" in await kubectl("apply", "-f", "-", stdin=json.dumps(claim))
    assert await kubectl("get", "clusterclaim", "region.example", "-o", "jsonpath={.spec.value}") == "south"
    assert "deleted" in await kubectl("delete", "clusterclaims", "region.example")
    assert "NotFound" in await kubectl("get", "clusterclaim", "region.example", fails=True)


async def test_a_secret_from_literals_is_stored_and_counted(kubectl: Kubectl) -> None:
    await kubectl("create", "secret", "generic", "s", "--from-literal=a=1", "--from-literal=b=2")
    rows = table(await kubectl("get", "secrets"))
    assert rows[0] == ["NAME", "TYPE", "DATA", "AGE"]
    assert rows[1][:3] == ["s", "Opaque", "2"]
    await kubectl("patch", "secret", "s", "-p", '{"stringData": {"c": "3"}}')
    assert await kubectl("get", "secret", "s", "-o", "jsonpath={.data.c}") == "Mw=="


async def test_plain_secrets_are_encoded_on_arrival(kubectl: Kubectl) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "plain"}, "stringData": {"k": "v"}}
    await kubectl("create", "-f", "-", stdin=json.dumps(secret))
    stored = json.loads(await kubectl("get", "secret", "plain", "-o", "json"))
    assert stored["data"] == {"k": "dg=="}
    assert "stringData" not in stored


async def test_namespaces_can_be_made_used_and_deleted_with_all_they_hold(kubectl: Kubectl) -> None:
    await kubectl("create", "namespace", "team-a")
    assert table(await kubectl("get", "ns", "team-a", "--no-headers"))[0][:2] == ["team-a", "Active"]
    await kubectl("-n", "team-a", "create", "configmap", "c", "--from-literal=a=1")
    await kubectl("delete", "namespace", "team-a")
    await kubectl("create", "namespace", "team-a")
    assert await kubectl("-n", "team-a", "get", "configmaps", "-o", "name") == ""
    assert "not found" in await kubectl("-n", "nowhere", "create", "configmap", "c", fails=True)


async def test_what_is_served_is_discovered(kubectl: Kubectl) -> None:
    names = (await kubectl("api-resources", "-o", "name")).split()
    for name in ("nodes", "secrets", "leases.coordination.k8s.io", "clusterclaims.cluster.open-cluster-management.io"):
        assert name in names


async def test_a_watch_shows_changes_as_they_come(kubectl: Kubectl, hollow_cluster: HollowCluster, tmp_path: Path) -> None:
    ours = ("--kubeconfig", str(tmp_path / "kubeconfig"), "--cache-dir", str(tmp_path / "cache"))
    process = await asyncio.create_subprocess_exec("kubectl", *ours, "get", "nodes", "-w", "--no-headers", stdout=PIPE)
    assert process.stdout
    try:
        async with asyncio.timeout(30):
            for _ in range(hollow_cluster.shape.nodes):
                assert b"Ready" in await process.stdout.readline()
            await kubectl("cordon", "test-node-2")
            assert b"SchedulingDisabled" in await process.stdout.readline()
    finally:
        process.kill()
        await process.wait()
