"""A real kubectl against the HTTPS door: clusters, requests, leases, roles, approval rules, the leader, suffixed groups."""

import asyncio
import json
import re
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
import yaml

from hub.domain.certificate import Purpose
from hub.services import operators
from machinery import kubeconfig, pki
from machinery.election import Candidate
from machinery.identity import HubId, Subject
from machinery.kubeconfig import HubEndpoint
from machinery.product import GROUP_SUFFIX
from tests.integration.door.conftest import LIFETIMES, HubUnderTest, Running, admin_of, hub_with

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


async def test_requests_and_credentials_are_decided_and_deleted(hub: HubUnderTest, tmp_path: Path) -> None:
    file = tmp_path / "edge1.kubeconfig"
    reached = ("--server", hub.server, "--allow-loopback")
    await hub.hubctl("create", "bootstrap-kubeconfig", "--cluster", "edge1", "-o", str(file), *reached)
    name = (await hub.kubectl("get", "bootstrapcredentials", "--no-headers")).out.split()[0]
    deleted = await hub.kubectl("delete", "bootstrapcredential", name, "--timeout=10s")
    assert (deleted.code, "deleted" in deleted.out) == (0, True), deleted.err
    assert (await hub.kubectl("get", "bootstrapcredential", name)).code == 1
    assert "does not know user" in (await hub.hubctl("get", "clusters", path=file)).err

    await hub.request("edge1", "edge1-aaaaa")
    await hub.request("edge1", "edge1-bbbbb")
    approved = await hub.kubectl("certificate", "approve", "edge1-aaaaa")
    assert (approved.code, "approved" in approved.out) == (0, True), approved.err
    assert (await hub.kubectl("certificate", "deny", "edge1-bbbbb")).code == 0
    listed = (await hub.kubectl("get", "csr")).out
    assert re.search(r"edge1-aaaaa .*Approved", listed)
    assert re.search(r"edge1-bbbbb .*Denied", listed)


async def test_a_watch_prints_a_row_for_every_change_and_the_heartbeat_lease_is_renewed(
    hub: HubUnderTest, tmp_path: Path
) -> None:
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

    arguments = (f"--kubeconfig={await hub.admin()}", f"--cache-dir={hub.folder / 'cache'}", "get", "mcl", "-w", "--no-headers")
    watching = Running(await asyncio.create_subprocess_exec("kubectl", *arguments, stdout=PIPE, stderr=PIPE))
    for name, act in (("edge1", None), ("edge2", hub.join("edge2")), ("edge1", hub.hubctl("accept", "edge1"))):
        if act is not None:
            await act
        assert (await watching.line()).split()[0] == name
    await watching.end()


async def test_a_cluster_and_its_add_on_live_from_create_to_delete(hub: HubUnderTest) -> None:
    ended = await hub.kubectl("version")
    assert "Server Version: v1.36.0+muster" in ended.out
    assert "could not parse" not in ended.err

    await create(hub, "bad.yaml", CLUSTER.replace("edge1", "edge.1"), said="metadata.name: Invalid value")

    await create(hub, "addon.yaml", ADD_ON.replace("edge1", "edge2"), said='namespaces "edge2" not found')
    await create(hub, "edge2.yaml", CLUSTER.replace("edge1", "edge2"))
    await create(hub, "early.yaml", ADD_ON.replace("edge1", "edge2"), said='namespaces "edge2" not found')
    await hub.kubectl("patch", "mcl", "edge2", "--type=merge", "-p", '{"spec":{"hubAcceptsClient":true}}')
    await create(hub, "addon.yaml", ADD_ON.replace("edge1", "edge2"))
    listed = (await hub.kubectl("get", "managedclusteraddons", "-A")).out.splitlines()
    assert listed[0].split() == ["NAMESPACE", "NAME", "AVAILABLE", "DEGRADED", "PROGRESSING"]
    assert listed[1].split() == ["edge2", "metrics"]

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


MCL, CSR = "managedclusters.cluster.open-cluster-management.io", "certificatesigningrequests"
RBAC = "clusterroles.rbac.authorization.k8s.io,clusterrolebindings.rbac.authorization.k8s.io"


async def operator(hub: HubUnderTest, user: str, *groups: str) -> Path:
    """The kubeconfig of an operator who is not in system:masters: his rights come from roles."""
    return await hub.certificate(Purpose.OPERATOR, Subject(user, frozenset(groups)))


async def test_an_operator_may_do_what_roles_say_and_approve_with_the_signer(hub: HubUnderTest) -> None:
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

    for command in (
        f"create clusterrole approving --verb=get,list,update --resource={CSR},{CSR}/approval",
        "create clusterrolebinding bob-approves --clusterrole=approving --user=bob",
    ):
        assert (await hub.kubectl(*command.split())).code == 0
    early = await hub.kubectl("certificate", "approve", "waiting", path=bob)
    assert "user not permitted to approve requests with signerName" in early.err
    approver = "system:certificates.k8s.io:kube-apiserver-client-approver"
    assert (
        await hub.kubectl("create", "clusterrolebinding", "bob-signers", f"--clusterrole={approver}", "--user=bob")
    ).code == 0
    assert (await hub.kubectl("certificate", "approve", "waiting", path=bob)).code == 0


async def test_rights_are_reported_reconciled_and_given_away_only_by_their_holders(hub: HubUnderTest) -> None:
    await hub.join("edge1")
    agent = await hub.agent("edge1")
    assert "system:open-cluster-management:edge1:bcdfg" in (await hub.kubectl("auth", "whoami", path=agent)).out
    assert (await hub.kubectl("auth", "can-i", "get", "mcl/edge1", path=agent)).out.endswith("yes\n")
    assert (await hub.kubectl("auth", "can-i", "update", "mcl/edge1", path=agent)).code == 1
    listed = (await hub.kubectl("auth", "can-i", "--list", path=agent)).out
    assert "managedclusters.cluster.open-cluster-management.io" in listed
    assert "[edge1]" in listed
    assert "*.*" in (await hub.kubectl("auth", "can-i", "--list")).out

    file = hub.folder / "reconcile.yaml"
    file.write_text(TEAM)
    first = await hub.kubectl("auth", "reconcile", "-f", str(file))
    assert first.code == 0, first
    assert "clusterrole.rbac.authorization.k8s.io/team reconciled" in first.out
    file.write_text(file.read_text().replace("[configmaps]", "[secrets]").replace("name: bob", "name: ann"))
    assert (await hub.kubectl("auth", "reconcile", "-f", str(file))).code == 0
    told = (await hub.kubectl("get", "clusterrole,clusterrolebinding", "team", "-o", "json")).out
    for word in ("configmaps", "secrets", '"bob"', '"ann"'):
        assert word in told

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


TEAM = """
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


RULE = """
apiVersion: hub.open-cluster-management.io/v1alpha1
kind: ApprovalRule
metadata: {name: edge-eu}
spec:
  decides: [Accept, Approve]
  requesters: [{kind: BootstrapCredential}]
  clusterNames: ["edge-*"]
  clusterSelector: {matchLabels: {region: eu}}
  condition: has(labels.tier) && requester.user.startsWith("system:bootstrap:")
  dryRun: true
"""
RULES = "/apis/hub.open-cluster-management.io/v1alpha1/approvalrules"
ACCEPTER = """
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: accepter}
rules:
- {verbs: [update], apiGroups: [register.open-cluster-management.io], resources: [managedclusters/accept]}
"""


async def test_a_rule_is_made_without_mistakes_by_those_who_may_decide_and_lives_until_deleted(
    hub: HubUnderTest, subtests: pytest.Subtests
) -> None:
    admin = await admin_of(hub)
    for before, after, said in (
        ("has(labels.tier) &&", "has(label.tier) &&", 'spec.condition: Invalid value: "has(label.tier) && requester.user.star'),
        ("has(labels.tier) &&", "has(label.tier) &&", 'column 5: there is no field "label.tier"'),
        ("[Accept, Approve]", "[Deny]", 'spec.decides[0]: Unsupported value: "Deny": supported values: "Accept", "Approve"'),
        ("[Accept, Approve]", "[]", "spec.decides"),
        ('["edge-*"]', '["Edge-*"]', "spec.clusterNames[0]"),
        ("{kind: BootstrapCredential}", "{kind: User}", "spec.requesters[0].name: Required value"),
    ):
        with subtests.test(said=said):
            _, answer = await admin.ask("POST", RULES, yaml.safe_load(RULE.replace(before, after)))
            assert said in answer["message"]

    await create(hub, "rule.yaml", RULE)
    table = (await hub.kubectl("get", "approvalrules")).out.splitlines()
    assert table[0].split() == ["NAME", "DECIDES", "MODE", "MATCHED", "LAST", "MATCH", "AGE"]
    assert table[1].split()[:5] == ["edge-eu", "Accept,Approve", "DryRun", "0", "<never>"]
    patch = '{"spec":{"dryRun":null,"paused":true}}'
    assert (await hub.kubectl("patch", "aprule", "edge-eu", "--type=merge", "-p", patch)).code == 0
    document = json.loads((await hub.kubectl("get", "aprule", "edge-eu", "-o", "json")).out)
    assert (document["metadata"]["generation"], document["spec"]["paused"]) == (2, True)
    assert "Paused" in (await hub.hubctl("get", "rules")).out
    explained = (await hub.kubectl("explain", "approvalrule.spec.condition")).out
    assert "requester.groups" in explained
    applied = await hub.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(hub.folder / "rule.yaml"))
    assert applied.code == 0, applied.err
    assert (await hub.hubctl("delete", "rule", "edge-eu")).code == 0
    assert "not found" in (await hub.kubectl("get", "aprule", "edge-eu")).err

    bob = await operator(hub, "bob")
    file = hub.folder / "rule.yaml"
    file.write_text(RULE)
    for command in (
        "create clusterrole ruler --verb=get,create,update,patch --resource=approvalrules.hub.open-cluster-management.io",
        "create clusterrolebinding bob-rules --clusterrole=ruler --user=bob",
    ):
        assert (await hub.kubectl(*command.split())).code == 0
    assert "may not accept every cluster" in (await hub.kubectl("create", "-f", str(file), path=bob)).err
    await create(hub, "accepter.yaml", ACCEPTER)
    await hub.kubectl("create", "clusterrolebinding", "bob-accepts", "--clusterrole=accepter", "--user=bob")
    assert "not permitted to approve requests" in (await hub.kubectl("create", "-f", str(file), path=bob)).err
    role = "system:certificates.k8s.io:kube-apiserver-client-approver"
    await hub.kubectl("create", "clusterrolebinding", "bob-approves", f"--clusterrole={role}", "--user=bob")
    assert (await hub.kubectl("create", "-f", str(file), path=bob)).code == 0


LEASE = timedelta(seconds=15)


async def test_operators_see_the_leader_and_change_it_by_no_api(hub: HubUnderTest) -> None:
    assert "there is no leader to show" in (await hub.hubctl("get", "leader")).err
    first = await hub.store.run(lambda tx: tx.leaders.take(None, Candidate("hub-0", "a"), LEASE))
    second = await hub.store.run(lambda tx: tx.leaders.take(first, Candidate("hub-1", "b"), LEASE))
    table = (await hub.hubctl("get", "leader")).out.splitlines()
    assert table[0].split() == ["NAME", "HOLDER", "TERM", "SINCE", "RENEWED", "TRANSITIONS"]
    name, holder, term, since, renewed, transitions = table[1].split()
    assert (name, holder, term, transitions) == ("hub", "hub-1", "2", "1")
    assert since.endswith("s")
    assert renewed.endswith("s")
    shown = json.loads((await hub.kubectl("get", "hubleader", "hub", "-o", "json")).out)
    assert shown["status"] | {"acquireTime": "", "renewTime": ""} == {
        "holder": "hub-1",
        "term": 2,
        "transitions": 1,
        "leaseDuration": "15s",
        "acquireTime": "",
        "renewTime": "",
    }

    assert (await hub.kubectl("delete", "hubleader", "hub")).code == 1
    patched = await hub.kubectl("patch", "hubleader", "hub", "--type=merge", "-p", '{"status":{"holder":"me"}}')
    assert patched.code == 1
    assert "NotFound" in (await hub.kubectl("get", "hubleader", "other")).err

    await hub.store.run(lambda tx: tx.leaders.release(second))
    assert "<nobody>" in (await hub.kubectl("get", "hubleaders")).out


SUFFIX = "fleet.example.org"


@pytest.fixture
async def suffixed(tmp_path: Path) -> AsyncIterator[HubUnderTest]:
    async with hub_with(tmp_path, api_group_suffix=SUFFIX) as running:
        yield running


async def test_every_group_and_program_uses_the_suffix_that_the_operator_chose(suffixed: HubUnderTest, tmp_path: Path) -> None:
    versions = (await suffixed.kubectl("api-versions")).out.split()
    assert {f"cluster.{SUFFIX}/v1", f"addon.{SUFFIX}/v1beta1", f"addon.{SUFFIX}/v1alpha1", f"hub.{SUFFIX}/v1alpha1"} <= set(
        versions
    )
    assert not [version for version in versions if GROUP_SUFFIX in version]

    await suffixed.join("edge1")
    document = json.loads((await suffixed.kubectl("get", "mcl", "edge1", "-o", "json")).out)
    assert document["apiVersion"] == f"cluster.{SUFFIX}/v1"
    accepted = await suffixed.kubectl("patch", "mcl", "edge1", "--type=merge", "-p", '{"spec":{"hubAcceptsClient":true}}')
    assert accepted.code == 0, accepted.err
    addon = {"kind": "ManagedClusterAddOn", "metadata": {"name": "metrics", "namespace": "edge1"}, "spec": {}}
    file = tmp_path / "addon.yaml"
    for version, said in ((f"addon.{GROUP_SUFFIX}/v1beta1", "no matches for kind"), (f"addon.{SUFFIX}/v1alpha1", "")):
        file.write_text(yaml.safe_dump({"apiVersion": version, **addon}))
        assert said in (await suffixed.kubectl("apply", "-f", str(file))).err
    stored = json.loads((await suffixed.kubectl("get", "mca", "-n", "edge1", "metrics", "-o", "json")).out)
    assert stored["apiVersion"] == f"addon.{SUFFIX}/v1beta1"
    assert (
        await suffixed.kubectl("get", "managedclusters", "--sort-by=.metadata.name", "-o", "name")
    ).out == f"managedcluster.cluster.{SUFFIX}/edge1\n"

    key = pki.generate_key()
    issued = await suffixed.store.run(operators.admit, "admin", pki.public_key_of(key), suffixed.issuer, LIFETIMES)
    endpoint = HubEndpoint("127.0.0.1:8443", HubId("h"), group_suffix=SUFFIX)
    path = suffixed.kubeconfig("operator", issued, key, endpoint=endpoint)
    assert "edge1" in (await suffixed.hubctl("get", "clusters", path=path)).out
    named = (await suffixed.hubctl("get", "clusters", "-o", "name", path=path)).out
    assert named == f"managedcluster.cluster.{SUFFIX}/edge1\n"
    accepted = await suffixed.hubctl("deny", "edge1", path=path)
    assert accepted.code == 0, accepted.err
    output = tmp_path / "bootstrap.kubeconfig"
    made = await suffixed.hubctl(
        *("create", "bootstrap-kubeconfig", "--cluster", "edge2", "--allow-loopback", "-o", str(output)), path=path
    )
    assert made.code == 0, made.err
    written = kubeconfig.read_kubeconfig(output).cluster.endpoint
    assert written is not None
    assert written.group_suffix == SUFFIX


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
    listed = (await hub.kubectl("api-resources", "--no-headers", "-o", "wide")).out.splitlines()
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
        ended = await hub.kubectl("create", "-f", str(file))
        if "failed to" in ended.err or (ended.code != 0) is not (kind in refused):
            wrong[kind] = ended
    assert wrong == {}

    await hub.join("edge1")
    everything = await hub.kubectl("get", "all", "-A")
    assert (everything.code, everything.err) == (0, "No resources found\n")
    assert (
        "the server could not find the requested resource" in (await hub.kubectl("scale", "mcl", "edge1", "--replicas=2")).err
    )
