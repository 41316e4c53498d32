"""A real kubectl against the HTTPS door: clusters, requests, leases, roles, approval rules, the leader, suffixed groups."""

import asyncio
import json
import re
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest
import yaml

from hub.registry import certificates
from hubctl.errors import DONE, FAILED
from machinery import pki
from machinery.client import kubeconfig
from machinery.client.kubeconfig import HubEndpoint
from machinery.identity import HubId
from machinery.product import GROUP_SUFFIX
from tests.integration.https_door.conftest import LIFETIMES, HubUnderTest, Running, hub_with

pytestmark = pytest.mark.kubectl


async def test_watch_prints_a_row_for_every_change_and_the_beat_lease_is_renewed(hub: HubUnderTest, tmp_path: Path) -> None:
    await hub.join("edge1")
    lease = json.loads(await hub.output("kubectl get lease -n edge1 managed-cluster-lease -o json"))
    file = tmp_path / "lease.json"
    file.write_text(json.dumps({**lease, "spec": {**lease["spec"], "renewTime": "2020-01-01T00:00:00.000000Z"}}))
    await hub.output(f"kubectl replace -f {file}")
    after = json.loads(await hub.output("kubectl get lease -n edge1 managed-cluster-lease -o json"))
    assert after["spec"]["renewTime"] > lease["spec"]["renewTime"], "the hub's time counts, not the client's"
    assert int(after["metadata"]["resourceVersion"]) > int(lease["metadata"]["resourceVersion"])
    await hub.runs(
        (f"kubectl replace -f {file}", FAILED, "the object has been modified"),
        ("kubectl delete lease -n edge1 managed-cluster-lease", FAILED, "heartbeat"),
    )
    arguments = (f"--kubeconfig={await hub.admin()}", f"--cache-dir={hub.folder / 'cache'}", "get", "mcl", "-w", "--no-headers")
    watching = Running(await asyncio.create_subprocess_exec("kubectl", *arguments, stdout=PIPE, stderr=PIPE))
    for name, act in (("edge1", None), ("edge2", hub.join("edge2")), ("edge1", hub.hubctl("accept edge1"))):
        if act is not None:
            await act
        assert (await watching.line()).split()[0] == name
    await watching.end()


SUFFIX = "fleet.example.org"


async def test_every_group_and_program_uses_the_suffix_that_the_operator_chose(tmp_path: Path) -> None:
    async with hub_with(tmp_path, api_group_suffix=SUFFIX) as hub:
        versions = (await hub.output("kubectl api-versions")).split()
        groups = {"cluster": "v1", "addon": "v1beta1", "hub": "v1alpha1"}
        assert {f"addon.{SUFFIX}/v1alpha1", *(f"{name}.{SUFFIX}/{version}" for name, version in groups.items())} <= {*versions}
        assert not [version for version in versions if GROUP_SUFFIX in version]

        await hub.join("edge1")
        assert json.loads(await hub.output("kubectl get mcl edge1 -o json"))["apiVersion"] == f"cluster.{SUFFIX}/v1"
        await hub.output("kubectl patch mcl edge1 --type=merge -p", '{"spec":{"hubAcceptsClient":true}}')
        addon = {"kind": "ManagedClusterAddOn", "metadata": {"name": "metrics", "namespace": "edge1"}, "spec": {}}
        file, output = tmp_path / "addon.yaml", tmp_path / "bootstrap.kubeconfig"
        file.write_text(yaml.safe_dump({"apiVersion": f"addon.{GROUP_SUFFIX}/v1beta1", **addon}))
        await hub.runs((f"kubectl apply -f {file}", FAILED, "no matches for kind"))
        file.write_text(yaml.safe_dump({"apiVersion": f"addon.{SUFFIX}/v1alpha1", **addon}))
        await hub.output(f"kubectl apply -f {file}")
        stored = json.loads(await hub.output("kubectl get mca -n edge1 metrics -o json"))
        assert stored["apiVersion"] == f"addon.{SUFFIX}/v1beta1"

        key = pki.generate_key()
        issued = await hub.store.run(certificates.admit_operator, "admin", pki.public_key_of(key), hub.issuer, LIFETIMES)
        endpoint = HubEndpoint("127.0.0.1:8443", HubId("h"), group_suffix=SUFFIX)
        path = hub.kubeconfig("operator", issued, key, endpoint=endpoint)
        await hub.runs(
            ("kubectl get managedclusters -o name", DONE, f"managedcluster.cluster.{SUFFIX}/edge1\n"),
            ("hubctl get clusters -o name", DONE, f"managedcluster.cluster.{SUFFIX}/edge1\n"),
            ("hubctl deny edge1", DONE, ""),
            (f"hubctl create bootstrap-kubeconfig --cluster edge2 --allow-loopback -o {output}", DONE, ""),
            path=path,
        )
        assert kubeconfig.read_kubeconfig(output).require_endpoint().group_suffix == SUFFIX


async def test_kubectl_creates_kinds_without_patch_and_gets_all_and_scales_as_with_a_kube_apiserver(hub: HubUnderTest) -> None:
    attributes = {"resourceAttributes": {"verb": "get", "resource": "secrets", "namespace": "default"}}
    specs = {
        "LocalSubjectAccessReview": {"user": "ann", **attributes},
        "SelfSubjectAccessReview": attributes,
        "SelfSubjectRulesReview": {"namespace": "default"},
        "SubjectAccessReview": {"user": "ann", **attributes},
        "TokenReview": {"token": "t"},
        "BootstrapCredential": {"token": True, "clusterName": "edge1"},
        "SelfSubjectReview": None,
    }
    refused = ("Revocation", "TokenCredentialRequest")  # by their schemas, for want of a spec
    listed = (await hub.output("kubectl api-resources --no-headers -o wide")).splitlines()
    rows = [re.split(r" {2,}", line) for line in listed if "create" in line and "patch" not in line]
    found = {row[-2] if row[-1].startswith("create") else row[-3]: row for row in rows}
    assert set(found) == {*specs, *refused}, "every kind without PATCH"
    wrong = {}
    for kind, row in found.items():
        version = next(part for part in row if "v1" in part)
        document = {"apiVersion": version, "kind": kind, "metadata": {"namespace": "default"}}
        document |= {"spec": specs.get(kind)} if specs.get(kind) else {}
        if kind in ("BootstrapCredential", "Revocation"):
            document["metadata"] = {"generateName": "bootstrap-"}
        file = hub.folder / f"{kind}.json"
        file.write_text(json.dumps(document))
        ended = await hub.kubectl(f"create -f {file}")
        if "failed to" in ended.err or (ended.code != 0) is not (kind in refused):
            wrong[kind] = ended
    assert wrong == {}

    await hub.join("edge1")
    everything = await hub.kubectl("get all -A")
    assert (everything.code, everything.err) == (0, "No resources found\n")
    await hub.runs(("kubectl scale mcl edge1 --replicas=2", FAILED, "the server could not find the requested resource"))
