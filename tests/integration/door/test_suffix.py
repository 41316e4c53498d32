"""A hub whose API groups end as its operator chose: kubectl and hubctl find everything there, and nothing under OCM's name."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from hub.services import operators
from machinery import kubeconfig, pki
from machinery.identity import HubId
from machinery.kubeconfig import HubEndpoint
from machinery.product import GROUP_SUFFIX
from tests.integration.door.conftest import LIFETIMES, HubUnderTest

pytestmark = pytest.mark.kubectl
SUFFIX = "fleet.example.org"


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[HubUnderTest]:
    running = HubUnderTest(tmp_path, group_suffix=SUFFIX)
    await running.start()
    yield running
    await running.stop()


async def test_every_group_of_ours_bears_the_suffix(hub: HubUnderTest) -> None:
    versions = (await hub.kubectl("api-versions")).out.split()
    assert {f"cluster.{SUFFIX}/v1", f"addon.{SUFFIX}/v1beta1", f"addon.{SUFFIX}/v1alpha1", f"hub.{SUFFIX}/v1alpha1"} <= set(
        versions
    )
    assert not [version for version in versions if GROUP_SUFFIX in version]


async def test_what_services_write_is_served_under_the_suffix(hub: HubUnderTest, tmp_path: Path) -> None:
    await hub.join("edge1")
    document = json.loads((await hub.kubectl("get", "mcl", "edge1", "-o", "json")).out)
    assert document["apiVersion"] == f"cluster.{SUFFIX}/v1"
    accepted = await hub.kubectl("patch", "mcl", "edge1", "--type=merge", "-p", '{"spec":{"hubAcceptsClient":true}}')
    assert accepted.code == 0, accepted.err
    addon = {"kind": "ManagedClusterAddOn", "metadata": {"name": "metrics", "namespace": "edge1"}, "spec": {}}
    file = tmp_path / "addon.yaml"
    for version, said in ((f"addon.{GROUP_SUFFIX}/v1beta1", "no matches for kind"), (f"addon.{SUFFIX}/v1alpha1", "")):
        file.write_text(yaml.safe_dump({"apiVersion": version, **addon}))
        assert said in (await hub.kubectl("apply", "-f", str(file))).err
    stored = json.loads((await hub.kubectl("get", "mca", "-n", "edge1", "metrics", "-o", "json")).out)
    assert stored["apiVersion"] == f"addon.{SUFFIX}/v1beta1"
    assert (
        await hub.kubectl("get", "managedclusters", "--sort-by=.metadata.name", "-o", "name")
    ).out == f"managedcluster.cluster.{SUFFIX}/edge1\n"


async def test_hubctl_learns_the_suffix_from_its_kubeconfig(hub: HubUnderTest, tmp_path: Path) -> None:
    key = pki.generate_key()
    issued = await hub.store.run(operators.admit, "admin", pki.public_key_of(key), hub.issuer, LIFETIMES)
    endpoint = HubEndpoint("127.0.0.1:8443", HubId("h"), group_suffix=SUFFIX)
    path = hub.kubeconfig("operator", issued, key, endpoint=endpoint)
    await hub.join("edge1")
    assert "edge1" in (await hub.hubctl("get", "clusters", path=path)).out
    named = (await hub.hubctl("get", "clusters", "-o", "name", path=path)).out
    assert named == f"managedcluster.cluster.{SUFFIX}/edge1\n"
    accepted = await hub.hubctl("accept", "edge1", path=path)
    assert accepted.code == 0, accepted.err
    output = tmp_path / "bootstrap.kubeconfig"
    made = await hub.hubctl(
        *("create", "bootstrap-kubeconfig", "--cluster", "edge2", "--allow-loopback", "-o", str(output)), path=path
    )
    assert made.code == 0, made.err
    written = kubeconfig.read_kubeconfig(output).cluster.endpoint
    assert written is not None
    assert written.group_suffix == SUFFIX
