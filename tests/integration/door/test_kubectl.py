"""A real kubectl against the door, with the admin kubeconfig."""

import asyncio
import json
import re
from pathlib import Path

import pytest

from tests.integration.door.conftest import HubUnderTest, environment

pytestmark = pytest.mark.kubectl
CLUSTER = """
apiVersion: cluster.open-cluster-management.io/v1
kind: ManagedCluster
metadata:
  name: edge1
  labels: {region: eu}
spec:
  hubAcceptsClient: false
  taints: [{key: maintenance, effect: NoSelect}]
"""
ADD_ON = """
apiVersion: addon.open-cluster-management.io/v1beta1
kind: ManagedClusterAddOn
metadata: {name: metrics, namespace: edge1}
spec: {}
"""


async def create(hub: HubUnderTest, name: str, document: str, *, said: str = "created") -> None:
    file = hub.folder / name
    file.write_text(document)
    ended = await hub.kubectl("create", "-f", str(file))
    assert said in ended.out + ended.err


async def test_a_cluster_lives_from_create_to_delete(hub: HubUnderTest) -> None:
    await create(hub, "edge1.yaml", CLUSTER)
    table = (await hub.kubectl("get", "mcl")).out.splitlines()
    assert table[0] == "NAME    HUB ACCEPTED   MANAGED CLUSTER URLS   JOINED   AVAILABLE   AGE"
    assert re.fullmatch(r"edge1   false +\d+s", table[1])
    wide = (await hub.kubectl("get", "mcl", "edge1", "-o", "wide")).out
    assert wide.splitlines()[0].split()[-3:] == ["LAST", "BEAT", "AGENT"]
    assert (await hub.kubectl("label", "mcl", "edge1", "tier=gold")).code == 0
    patch = '{"spec":{"hubAcceptsClient":true}}'
    assert (await hub.kubectl("patch", "mcl", "edge1", "--type=merge", "-p", patch)).code == 0
    document = json.loads((await hub.kubectl("get", "mcl", "edge1", "-o", "json")).out)
    assert document["metadata"]["labels"] == {"region": "eu", "tier": "gold"}
    assert (document["spec"]["hubAcceptsClient"], document["metadata"]["generation"]) == (True, 2)
    assert document["spec"]["taints"][0]["timeAdded"]
    assert "hubAcceptsClient: true" in (await hub.kubectl("get", "mcl", "edge1", "-o", "yaml")).out
    assert "Hub Accepts Client:" in (await hub.kubectl("describe", "mcl", "edge1")).out
    assert "edge1" in (await hub.kubectl("get", "mcl", "-l", "tier=gold", "--no-headers")).out
    deleted = await hub.kubectl("delete", "mcl", "edge1", "--timeout=10s")
    assert (deleted.code, "deleted" in deleted.out) == (0, True)
    assert (
        'managedclusters.cluster.open-cluster-management.io "edge1" not found' in (await hub.kubectl("get", "mcl", "edge1")).err
    )


async def test_a_broken_rule_of_the_hub_is_told_by_field(hub: HubUnderTest) -> None:
    await create(hub, "bad.yaml", CLUSTER.replace("edge1", "edge.1"), said="metadata.name: Invalid value")


async def test_an_add_on_lives_in_its_clusters_namespace_only(hub: HubUnderTest) -> None:
    await create(hub, "addon.yaml", ADD_ON, said='namespaces "edge1" not found')
    await create(hub, "edge1.yaml", CLUSTER)
    await create(hub, "early.yaml", ADD_ON, said='namespaces "edge1" not found')
    await hub.kubectl("patch", "mcl", "edge1", "--type=merge", "-p", '{"spec":{"hubAcceptsClient":true}}')
    await create(hub, "addon.yaml", ADD_ON)
    listed = (await hub.kubectl("get", "managedclusteraddons", "-A")).out.splitlines()
    assert listed[0].split() == ["NAMESPACE", "NAME", "AVAILABLE", "DEGRADED", "PROGRESSING"]
    assert listed[1].split() == ["edge1", "metrics"]


async def test_certificate_approve_decides_a_request(hub: HubUnderTest) -> None:
    await hub.request("edge1", "edge1-aaaaa")
    await hub.request("edge1", "edge1-bbbbb")
    approved = await hub.kubectl("certificate", "approve", "edge1-aaaaa")
    assert (approved.code, "approved" in approved.out) == (0, True), approved.err
    assert (await hub.kubectl("certificate", "deny", "edge1-bbbbb")).code == 0
    listed = (await hub.kubectl("get", "csr")).out
    assert re.search(r"edge1-aaaaa .*Approved", listed)
    assert re.search(r"edge1-bbbbb .*Denied", listed)


async def test_a_deleted_bootstrap_credential_is_gone(hub: HubUnderTest, tmp_path: Path) -> None:
    file = tmp_path / "edge1.kubeconfig"
    reached = ("--server", hub.server, "--allow-loopback")
    await hub.hubctl("create", "bootstrap-kubeconfig", "--cluster", "edge1", "-o", str(file), *reached)
    name = (await hub.kubectl("get", "bootstrapcredentials", "--no-headers")).out.split()[0]
    deleted = await hub.kubectl("delete", "bootstrapcredential", name, "--timeout=10s")
    assert (deleted.code, "deleted" in deleted.out) == (0, True), deleted.err
    assert (await hub.kubectl("get", "bootstrapcredential", name)).code == 1
    assert "does not know user" in (await hub.hubctl("get", "clusters", path=file)).err


async def test_a_watch_prints_a_row_for_every_change(hub: HubUnderTest) -> None:
    await hub.join("edge1")
    process = await asyncio.create_subprocess_exec(
        *("kubectl", f"--kubeconfig={await hub.admin()}", f"--cache-dir={hub.folder / 'cache'}"),
        *("get", "mcl", "-w", "--no-headers"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(),
    )
    assert process.stdout is not None

    async def row() -> str:
        assert process.stdout is not None
        async with asyncio.timeout(15):
            return (await process.stdout.readline()).decode().split()[0]

    try:
        assert await row() == "edge1"
        await hub.join("edge2")
        assert await row() == "edge2"
        await hub.hubctl("accept", "edge1")
        assert await row() == "edge1"
    finally:
        process.terminate()
        await process.wait()


async def test_the_heartbeat_lease_is_read_and_renewed_but_never_deleted(hub: HubUnderTest, tmp_path: Path) -> None:
    await hub.join("edge1")
    lease = json.loads((await hub.kubectl("get", "lease", "-n", "edge1", "managed-cluster-lease", "-o", "json")).out)
    file = tmp_path / "lease.json"
    renewed = {**lease, "spec": {**lease["spec"], "renewTime": "2020-01-01T00:00:00.000000Z"}}
    file.write_text(json.dumps(renewed))
    assert (await hub.kubectl("replace", "-f", str(file))).code == 0
    after = json.loads((await hub.kubectl("get", "lease", "-n", "edge1", "managed-cluster-lease", "-o", "json")).out)
    assert after["spec"]["renewTime"] > lease["spec"]["renewTime"], "the hub's time counts, not the client's"
    assert int(after["metadata"]["resourceVersion"]) > int(lease["metadata"]["resourceVersion"])
    stale = await hub.kubectl("replace", "-f", str(file))
    assert (stale.code, "the object has been modified" in stale.err) == (1, True)
    refused = await hub.kubectl("delete", "lease", "-n", "edge1", "managed-cluster-lease")
    assert (refused.code, "heartbeat" in refused.err) == (1, True)


async def test_the_version_is_one_that_kubectl_reads(hub: HubUnderTest) -> None:
    ended = await hub.kubectl("version")
    assert "Server Version: v1.36.0+muster" in ended.out
    assert "could not parse" not in ended.err
