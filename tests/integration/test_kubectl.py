"""What operators do with kubectl: watch, describe, accept, approve, deny, explain, delete."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from machinery.apiserver.access import EveryoneIsAdmin
from machinery.identity import Subject
from machinery.pki.keys import generate_key
from machinery.pki.requests import build_request
from tests.fakes.golden_world import MemoryWorld
from tests.fakes.kubectl import Kubectl

pytestmark = pytest.mark.kubectl
CLUSTER = {
    "apiVersion": "cluster.open-cluster-management.io/v1",
    "kind": "ManagedCluster",
    "metadata": {"name": "east"},
    "spec": {"hubAcceptsClient": False},
}


@pytest.fixture
async def world() -> AsyncIterator[MemoryWorld]:
    world = MemoryWorld(EveryoneIsAdmin())
    await world.start()
    yield world
    await world.close()


@pytest.fixture
def kubectl(world: MemoryWorld, tmp_path: Path) -> Kubectl:
    return Kubectl(tmp_path, world.url)


def request_document(name: str) -> str:
    pem = build_request(Subject("system:open-cluster-management:east:a1b2c"), generate_key())
    spec = {
        "request": base64.b64encode(pem).decode(),
        "signerName": "kubernetes.io/kube-apiserver-client",
        "usages": ["client auth"],
    }
    document = {"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": name}}
    return json.dumps({**document, "spec": spec})


async def test_a_watch_prints_a_row_per_change(kubectl: Kubectl) -> None:
    async with kubectl.following("get", "mcl", "-w") as output, asyncio.timeout(20):
        rows = [(await output.readline()).decode().split() for _ in range(3)]
        assert [row[0] for row in rows] == ["NAME", "edge1", "edge2"]

        await kubectl("create", "-f", "-", given=json.dumps(CLUSTER))
        assert (await output.readline()).decode().split()[:2] == ["east", "false"]
        await kubectl("patch", "mcl", "east", "--type=merge", "-p", '{"spec":{"hubAcceptsClient":true}}')
        assert (await output.readline()).decode().split()[:2] == ["east", "true"]


async def test_wide_columns_are_there_when_they_are_asked_for(kubectl: Kubectl) -> None:
    said = await kubectl("get", "mcl", "edge1", "-o", "wide")

    assert said.exit == 0
    assert said.lines[0].endswith("AGE VERSION NODES HUBS FLAPS LAST BEAT AGENT")
    assert said.lines[1].endswith("(no session)")


async def test_an_object_is_described(kubectl: Kubectl) -> None:
    said = await kubectl("describe", "managedcluster", "edge1")

    assert said.exit == 0
    assert "Hub Accepts Client: true" in [line.strip() for line in said.lines]
    assert "Reason: ManagedClusterLeaseUpdateStopped" in [line.strip() for line in said.lines]


async def test_an_approved_request_is_issued(kubectl: Kubectl, world: MemoryWorld) -> None:
    await kubectl("create", "-f", "-", given=request_document("east-1"))
    assert (await kubectl("get", "csr", "east-1", "--no-headers")).output.split()[-1] == "Pending"

    said = await kubectl("certificate", "approve", "east-1")
    assert said.lines == ["certificatesigningrequest.certificates.k8s.io/east-1 approved"]
    await world.settle()

    assert (await kubectl("get", "csr", "east-1", "--no-headers")).output.split()[-1] == "Approved,Issued"


async def test_a_denied_request_cannot_be_approved(kubectl: Kubectl) -> None:
    await kubectl("create", "-f", "-", given=request_document("east-1"))
    assert (await kubectl("certificate", "deny", "east-1")).exit == 0

    said = await kubectl("certificate", "approve", "east-1")

    assert said.exit == 1
    assert "Denied" in said.output
    assert (await kubectl("get", "csr", "east-1", "--no-headers")).output.split()[-1] == "Denied"


async def test_fields_are_explained(kubectl: Kubectl) -> None:
    said = await kubectl("explain", "managedcluster.spec.taints.effect")

    assert said.exit == 0
    assert "ENUM:" in said.lines
    assert "NoSelectIfNew" in said.output


async def test_an_unknown_field_is_refused_and_named(kubectl: Kubectl) -> None:
    document = {**CLUSTER, "spec": {"hubAcceptClient": True}}

    said = await kubectl("apply", "-f", "-", given=json.dumps(document))

    assert said.exit == 1
    assert 'unknown field "spec.hubAcceptClient"' in said.output


async def test_an_edit_of_an_old_copy_is_a_conflict(kubectl: Kubectl) -> None:
    await kubectl("create", "-f", "-", given=json.dumps(CLUSTER))
    old = (await kubectl("get", "mcl", "east", "-o", "json")).output
    await kubectl("label", "mcl", "east", "tier=gold")

    said = await kubectl("replace", "-f", "-", given=old)

    assert said.exit == 1
    assert "the object has been modified" in said.output


async def test_a_wait_ends_with_the_condition(kubectl: Kubectl) -> None:
    waiting = asyncio.ensure_future(
        kubectl("wait", "mcl/edge1", "--for=condition=ManagedClusterConditionAvailable", "--timeout=20s")
    )
    await asyncio.sleep(0)
    moment = "2026-11-21T00:00:00Z"
    condition = {"type": "ManagedClusterConditionAvailable", "status": "True", "lastTransitionTime": moment}
    status = {"status": {"conditions": [{**condition, "reason": "ManagedClusterAvailable", "message": ""}]}}

    patched = await kubectl("patch", "mcl", "edge1", "--subresource=status", "--type=merge", "-p", json.dumps(status))

    assert patched.exit == 0
    assert (await waiting).lines == ["managedcluster.cluster.open-cluster-management.io/edge1 condition met"]


async def test_a_deleted_object_with_a_finalizer_goes_when_it_is_let_go(kubectl: Kubectl) -> None:
    held = {**CLUSTER, "metadata": {"name": "east", "finalizers": ["example.com/hold"]}}
    await kubectl("create", "-f", "-", given=json.dumps(held))
    deleting = asyncio.ensure_future(kubectl("delete", "mcl", "east", "--timeout=20s"))
    await kubectl("wait", "mcl/east", "--for=jsonpath={.metadata.deletionGracePeriodSeconds}=0", "--timeout=10s")

    await kubectl("patch", "mcl", "east", "--type=merge", "-p", '{"metadata":{"finalizers":null}}')

    assert (await deleting).exit == 0
    assert (await kubectl("get", "mcl", "east")).exit == 1


async def test_builtin_kinds_take_strategic_merge_patches(kubectl: Kubectl) -> None:
    await kubectl("create", "secret", "generic", "s", "--from-literal=a=1")

    patched = await kubectl("patch", "secret", "s", "-p", '{"stringData":{"b":"2"}}')
    data = json.loads((await kubectl("get", "secret", "s", "-o", "json")).output)["data"]

    assert patched.exit == 0
    assert data == {"a": "MQ==", "b": "Mg=="}
