"""A real kubectl as operators whose rights come from roles: what they may do, what they may give away, what they are told."""

from pathlib import Path

import pytest

from hub.domain.certificate import Holder, IssuedCertificate, Profile, Purpose
from hub.issuer import LocalIssuer
from hub.ports import Transaction
from hub.services import certificates
from machinery import pki
from machinery.identity import Subject
from tests.integration.door.conftest import LIFETIMES, HubUnderTest

pytestmark = pytest.mark.kubectl
MCL, CSR = "managedclusters.cluster.open-cluster-management.io", "certificatesigningrequests"
RBAC = "clusterroles.rbac.authorization.k8s.io,clusterrolebindings.rbac.authorization.k8s.io"


async def operator(hub: HubUnderTest, user: str, *groups: str) -> Path:
    """The kubeconfig of an operator who is not in system:masters: his rights come from roles."""
    key = pki.generate_key()

    def sign(tx: Transaction, issuer: LocalIssuer) -> IssuedCertificate:
        subject = Subject(user, frozenset(groups))
        profile = Profile(
            Purpose.OPERATOR, subject, pki.public_key_of(key), tx.now - LIFETIMES.backdate, tx.now + LIFETIMES.agent
        )
        return certificates.sign(tx, issuer, profile, Holder())

    return hub.kubeconfig(user, await hub.store.run(sign, hub.issuer), key)


async def test_an_operator_with_roles_may_do_what_they_say(hub: HubUnderTest) -> None:
    await hub.join("edge1")
    await hub.request("edge1", "waiting")
    bob = await operator(hub, "bob", "team")
    assert "cannot list resource" in (await hub.kubectl("get", "mcl", path=bob)).err

    for command in (
        "create clusterrolebinding team-view --clusterrole=view --group=team",
        f"create clusterrole labeller --verb=patch,get --resource={MCL} --resource-name=edge1",
        "create clusterrolebinding bob-labels --clusterrole=labeller --user=bob",
        "create role keeper --verb=* --resource=configmaps -n default",
        "create rolebinding bob-keeps --role=keeper --user=bob -n default",
    ):
        made = await hub.kubectl(*command.split())
        assert made.code == 0, made
    told = (await hub.kubectl("get", "clusterrolebinding,rolebinding", "-A", "-o", "wide")).out
    assert "Role/keeper" in told
    assert "ClusterRole/labeller" in told

    assert "edge1" in (await hub.kubectl("get", "mcl", path=bob)).out
    assert (await hub.kubectl("label", "mcl", "edge1", "a=b", path=bob)).code == 0
    assert (await hub.kubectl("create", "cm", "x", "--from-literal=a=b", path=bob)).code == 0
    for refused in ("label mcl edge1 x=y --as=eve", "create cm x -n kube-public", "delete mcl edge1", "get secrets"):
        assert "forbidden" in (await hub.kubectl(*refused.split(), path=bob)).err.lower(), refused
    accepting = await hub.kubectl("patch", "mcl", "edge1", "--type=merge", '-p={"spec":{"hubAcceptsClient":true}}', path=bob)
    assert "cannot update the HubAcceptsClient field" in accepting.err
    joining = await hub.kubectl("label", "mcl", "edge1", "cluster.open-cluster-management.io/clusterset=prod", path=bob)
    assert 'cannot add/remove a ManagedCluster to/from ManagedClusterSet "prod"' in joining.err


async def test_an_approver_needs_the_signer_too(hub: HubUnderTest) -> None:
    await hub.request("edge1", "waiting")
    bob = await operator(hub, "bob")
    for command in (
        f"create clusterrole approving --verb=get,list,update --resource={CSR},{CSR}/approval",
        "create clusterrolebinding bob-approves --clusterrole=approving --user=bob",
    ):
        assert (await hub.kubectl(*command.split())).code == 0
    refused = await hub.kubectl("certificate", "approve", "waiting", path=bob)
    assert "user not permitted to approve requests with signerName" in refused.err
    approver = "system:certificates.k8s.io:kube-apiserver-client-approver"
    assert (
        await hub.kubectl("create", "clusterrolebinding", "bob-signers", f"--clusterrole={approver}", "--user=bob")
    ).code == 0
    assert (await hub.kubectl("certificate", "approve", "waiting", path=bob)).code == 0


async def test_nobody_gives_away_more_than_he_has(hub: HubUnderTest) -> None:
    eve = await operator(hub, "eve")
    for command in (
        f"create clusterrole rbac-writer --verb=* --resource={RBAC}",
        "create clusterrolebinding eve-writes --clusterrole=rbac-writer --user=eve",
    ):
        assert (await hub.kubectl(*command.split())).code == 0
    # `*` is escalate and bind too: as Kubernetes has it.
    assert (await hub.kubectl("create", "clusterrole", "all", "--verb=*", "--resource=*", path=eve)).code == 0
    plain = ["create", "clusterrole", "rbac-writer", "--verb=get,list,create,update,patch", "--dry-run=client", "-o", "yaml"]
    written = hub.folder / "role.yaml"
    written.write_text((await hub.kubectl(*plain, f"--resource={RBAC}")).out)
    assert (await hub.kubectl("replace", "-f", str(written))).code == 0

    refused = await hub.kubectl("create", "clusterrole", "more", "--verb=get", "--resource=secrets", path=eve)
    assert (
        'user "eve" (groups=["system:authenticated"]) is attempting to grant RBAC permissions not currently held' in refused.err
    )
    assert '{APIGroups:[""], Resources:["secrets"], Verbs:["get"]}' in refused.err
    bound = await hub.kubectl("create", "clusterrolebinding", "mine", "--clusterrole=cluster-admin", "--user=eve", path=eve)
    assert "attempting to grant RBAC permissions not currently held" in bound.err


async def test_can_i_and_whoami_answer_for_operators_and_agents(hub: HubUnderTest) -> None:
    await hub.join("edge1")
    agent = await hub.agent("edge1")
    assert "system:open-cluster-management:edge1:bcdfg" in (await hub.kubectl("auth", "whoami", path=agent)).out
    assert (await hub.kubectl("auth", "can-i", "get", "mcl/edge1", path=agent)).out.endswith("yes\n")
    assert (await hub.kubectl("auth", "can-i", "update", "mcl/edge1", path=agent)).code == 1
    listed = (await hub.kubectl("auth", "can-i", "--list", path=agent)).out
    assert "managedclusters.cluster.open-cluster-management.io" in listed
    assert "[edge1]" in listed
    assert "*.*" in (await hub.kubectl("auth", "can-i", "--list")).out


async def test_auth_reconcile_adds_what_is_missing(hub: HubUnderTest) -> None:
    file = hub.folder / "reconcile.yaml"
    file.write_text(
        """
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: team}
rules:
- {apiGroups: [""], resources: [configmaps], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: team}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: team}
subjects:
- {apiGroup: rbac.authorization.k8s.io, kind: User, name: bob}
"""
    )
    first = await hub.kubectl("auth", "reconcile", "-f", str(file))
    assert first.code == 0, first
    assert "clusterrole.rbac.authorization.k8s.io/team reconciled" in first.out
    file.write_text(file.read_text().replace("[configmaps]", "[secrets]").replace("name: bob", "name: eve"))
    assert (await hub.kubectl("auth", "reconcile", "-f", str(file))).code == 0
    told = (await hub.kubectl("get", "clusterrole,clusterrolebinding", "team", "-o", "json")).out
    for word in ("configmaps", "secrets", '"bob"', '"eve"'):
        assert word in told
