"""A real kubectl against the HTTPS door: clusters, requests, leases, roles, approval rules, the leader, suffixed groups."""

import asyncio
import json
import re
from asyncio.subprocess import PIPE
from datetime import timedelta
from pathlib import Path

import pytest
import yaml

from hub.api.certificates import Purpose
from hub.registry import certificates
from hubctl.errors import DONE, FAILED
from machinery import pki
from machinery.client import kubeconfig
from machinery.client.kubeconfig import HubEndpoint
from machinery.election import Candidate
from machinery.identity import CertificateSubject, HubId
from machinery.product import GROUP_SUFFIX
from tests.integration.https_door.conftest import LIFETIMES, HubUnderTest, Running, admin_of, hub_with

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
    ended = await hub.kubectl(f"create -f {file}")
    assert said in ended.out + ended.err


async def test_requests_and_credentials_are_decided_and_deleted(hub: HubUnderTest, tmp_path: Path) -> None:
    file = tmp_path / "edge1.kubeconfig"
    await hub.output(f"hubctl create bootstrap-kubeconfig --cluster edge1 -o {file} --server {hub.server} --allow-loopback")
    name = (await hub.output("kubectl get bootstrapcredentials --no-headers")).split()[0]
    await hub.runs(
        (f"kubectl delete bootstrapcredential {name} --timeout=10s", DONE, "deleted"),
        (f"kubectl get bootstrapcredential {name}", FAILED, "NotFound"),
    )
    await hub.runs(("hubctl get clusters", FAILED, "does not know user"), path=file)
    for request in ("edge1-aaaaa", "edge1-bbbbb"):
        await hub.request("edge1", request)
    await hub.runs(
        ("kubectl certificate approve edge1-aaaaa", DONE, "approved"),
        ("kubectl certificate deny edge1-bbbbb", DONE, ""),
        ("kubectl certificate approve edge1-bbbbb", FAILED, "Denied"),
    )
    listed = await hub.output("kubectl get csr")
    assert re.search(r"edge1-aaaaa .*Approved", listed)
    assert re.search(r"edge1-bbbbb .*Denied", listed)


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


async def test_a_cluster_and_its_add_on_live_from_create_to_delete(hub: HubUnderTest) -> None:
    ended = await hub.kubectl("version")
    assert ("Server Version: v1.36.0+muster" in ended.out, "could not parse" in ended.err) == (True, False)
    await create(hub, "bad.yaml", CLUSTER.replace("edge1", "edge.1"), said="metadata.name: Invalid value")
    await create(hub, "addon.yaml", ADD_ON, said='namespaces "edge1" not found')
    await create(hub, "edge1.yaml", CLUSTER)
    await create(hub, "early.yaml", ADD_ON, said='namespaces "edge1" not found')
    titles, row = (await hub.output("kubectl get mcl")).splitlines()
    assert titles == "NAME    HUB ACCEPTED   MANAGED CLUSTER URLS   JOINED   AVAILABLE   AGE"
    assert re.fullmatch(r"edge1   false +\d+s", row)
    await hub.output("kubectl label mcl edge1 tier=gold")
    await hub.output("kubectl patch mcl edge1 --type=merge -p", '{"spec":{"hubAcceptsClient":true}}')
    await create(hub, "addon.yaml", ADD_ON)
    titles, row = (await hub.output("kubectl get managedclusteraddons -A")).splitlines()
    assert titles.split() == ["NAMESPACE", "NAME", "AVAILABLE", "DEGRADED", "PROGRESSING"]
    assert row.split() == ["edge1", "metrics"]
    document = json.loads(await hub.output("kubectl get mcl edge1 -o json"))
    assert document["metadata"]["labels"] == {"region": "eu", "tier": "gold"}
    assert (document["spec"]["hubAcceptsClient"], document["metadata"]["generation"]) == (True, 2)
    assert document["spec"]["taints"][0]["timeAdded"]
    wide = (await hub.output("kubectl get mcl edge1 -o wide")).splitlines()
    assert (wide[0].split()[-3:], wide[1].endswith("(no session)")) == (["LAST", "BEAT", "AGENT"], True)
    await hub.output("kubectl delete mca metrics -n edge1")
    await hub.runs(
        ("kubectl describe mcl edge1", DONE, "Hub Accepts Client:"),
        ("kubectl get mcl -l tier=gold --no-headers", DONE, "edge1"),
        ("kubectl delete mcl edge1 --timeout=10s", DONE, "deleted"),
        ("kubectl get mcl edge1", FAILED, f'{MCL} "edge1" not found'),
    )


MCL, CSR = "managedclusters.cluster.open-cluster-management.io", "certificatesigningrequests"
RBAC = "clusterroles.rbac.authorization.k8s.io,clusterrolebindings.rbac.authorization.k8s.io"
APPROVER = "system:certificates.k8s.io:kube-apiserver-client-approver"


async def operator(hub: HubUnderTest, user: str, *groups: str) -> Path:
    """The kubeconfig of an operator who is not in system:masters: his rights come from roles."""
    return await hub.certificate(Purpose.OPERATOR, CertificateSubject(user, frozenset(groups)))


async def give(hub: HubUnderTest, *lines: str) -> None:
    """`kubectl create` of roles and bindings."""
    for line in lines:
        await hub.output(f"kubectl create {line}")


async def test_an_operator_may_do_what_roles_say_and_approve_with_the_signer(hub: HubUnderTest) -> None:
    await hub.join("edge1")
    await hub.request("edge1", "waiting")
    bob = await operator(hub, "bob", "team")
    await hub.runs(("kubectl get mcl", FAILED, "cannot list resource"), path=bob)
    await give(
        hub,
        "clusterrolebinding team-view --clusterrole=view --group=team",
        f"clusterrole labeller --verb=patch,get --resource={MCL} --resource-name=edge1",
        "clusterrolebinding bob-labels --clusterrole=labeller --user=bob",
        "role keeper --verb=* --resource=configmaps -n default",
        "rolebinding bob-keeps --role=keeper --user=bob -n default",
    )
    bindings = await hub.output("kubectl get clusterrolebinding,rolebinding -A -o wide")
    assert ("Role/keeper" in bindings, "ClusterRole/labeller" in bindings) == (True, True)
    joins = "cluster.open-cluster-management.io/clusterset=prod"
    await hub.runs(
        ("kubectl get mcl", DONE, "edge1"),
        ("kubectl label mcl edge1 a=b", DONE, ""),
        ("kubectl create cm x --from-literal=a=b", DONE, ""),
        ("kubectl label mcl edge1 x=y --as=eve", FAILED, "orbidden"),
        ("kubectl create cm x -n kube-public", FAILED, "orbidden"),
        ("kubectl delete mcl edge1", FAILED, "orbidden"),
        ("kubectl get secrets", FAILED, "orbidden"),
        ("kubectl patch mcl edge1 --type=merge -p 'spec: {hubAcceptsClient: true}'", FAILED, ACCEPTING),
        (f"kubectl label mcl edge1 {joins}", FAILED, 'cannot add/remove a ManagedCluster to/from ManagedClusterSet "prod"'),
        path=bob,
    )
    await give(
        hub,
        f"clusterrole approving --verb=get,list,update --resource={CSR},{CSR}/approval",
        "clusterrolebinding bob-approves --clusterrole=approving --user=bob",
    )
    early = "user not permitted to approve requests with signerName"
    await hub.runs(("kubectl certificate approve waiting", FAILED, early), path=bob)
    await give(hub, f"clusterrolebinding bob-signers --clusterrole={APPROVER} --user=bob")
    await hub.output("kubectl certificate approve waiting", path=bob)


ACCEPTING = "cannot update the HubAcceptsClient field"
GRANTING = "is attempting to grant RBAC permissions not currently held"


async def test_rights_are_reported_reconciled_and_given_away_only_by_their_holders(hub: HubUnderTest) -> None:
    await hub.join("edge1")
    await hub.runs(
        ("kubectl auth whoami", DONE, "system:open-cluster-management:edge1:bcdfg"),
        ("kubectl auth can-i get mcl/edge1", DONE, "yes\n"),
        ("kubectl auth can-i update mcl/edge1", FAILED, "no\n"),
        ("kubectl auth can-i --list", DONE, MCL),
        ("kubectl auth can-i --list", DONE, "[edge1]"),
        path=await hub.agent("edge1"),
    )
    await hub.runs(("kubectl auth can-i --list", DONE, "*.*"))

    file = hub.folder / "reconcile.yaml"
    file.write_text(TEAM)
    await hub.runs((f"kubectl auth reconcile -f {file}", DONE, "clusterrole.rbac.authorization.k8s.io/team reconciled"))
    file.write_text(file.read_text().replace("[configmaps]", "[secrets]").replace("name: bob", "name: ann"))
    await hub.output(f"kubectl auth reconcile -f {file}")
    told = await hub.output("kubectl get clusterrole,clusterrolebinding team -o json")
    assert [word for word in ("configmaps", "secrets", '"bob"', '"ann"') if word not in told] == []

    eve = await operator(hub, "eve")
    await give(
        hub,
        f"clusterrole rbac-writer --verb=* --resource={RBAC}",
        "clusterrolebinding eve-writes --clusterrole=rbac-writer --user=eve",
    )
    # `*` is escalate and bind too: as Kubernetes has it.
    await hub.output("kubectl create clusterrole all --verb=* --resource=*", path=eve)
    plain = "kubectl create clusterrole rbac-writer --verb=get,list,create,update,patch --dry-run=client -o yaml"
    file.write_text(await hub.output(f"{plain} --resource={RBAC}"))
    await hub.output(f"kubectl replace -f {file}")
    more = "kubectl create clusterrole more --verb=get --resource=secrets"
    await hub.runs(
        (more, FAILED, f'user "eve" (groups=["system:authenticated"]) {GRANTING}'),
        (more, FAILED, '{APIGroups:[""], Resources:["secrets"], Verbs:["get"]}'),
        ("kubectl create clusterrolebinding mine --clusterrole=cluster-admin --user=eve", FAILED, GRANTING),
        path=eve,
    )


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


async def test_a_rule_is_made_without_mistakes_by_those_who_may_decide_and_lives_until_deleted(hub: HubUnderTest) -> None:
    admin = await admin_of(hub)
    for before, after, said in (
        ("has(labels.tier) &&", "has(label.tier) &&", 'spec.condition: Invalid value: "has(label.tier) && requester.user.star'),
        ("has(labels.tier) &&", "has(label.tier) &&", 'column 5: there is no field "label.tier"'),
        ("[Accept, Approve]", "[Deny]", 'spec.decides[0]: Unsupported value: "Deny": supported values: "Accept", "Approve"'),
        ("[Accept, Approve]", "[]", "spec.decides"),
        ('["edge-*"]', '["Edge-*"]', "spec.clusterNames[0]"),
        ("{kind: BootstrapCredential}", "{kind: User}", "spec.requesters[0].name: Required value"),
    ):
        _, answer = await admin.ask("POST", RULES, yaml.safe_load(RULE.replace(before, after)))
        assert said in answer["message"]

    await create(hub, "rule.yaml", RULE)
    file = hub.folder / "rule.yaml"
    titles, row = (await hub.output("kubectl get approvalrules")).splitlines()
    assert titles.split() == ["NAME", "DECIDES", "MODE", "MATCHED", "LAST", "MATCH", "AGE"]
    assert row.split()[:5] == ["edge-eu", "Accept,Approve", "DryRun", "0", "<never>"]
    await hub.output("kubectl patch aprule edge-eu --type=merge -p", '{"spec":{"dryRun":null,"paused":true}}')
    document = json.loads(await hub.output("kubectl get aprule edge-eu -o json"))
    assert (document["metadata"]["generation"], document["spec"]["paused"]) == (2, True)
    await hub.runs(
        ("hubctl get rules", DONE, "Paused"),
        ("kubectl explain approvalrule.spec.condition", DONE, "requester.groups"),
        (f"kubectl apply --server-side --force-conflicts -f {file}", DONE, ""),
        ("hubctl delete rule edge-eu", DONE, ""),
        ("kubectl get aprule edge-eu", FAILED, "not found"),
    )

    bob = await operator(hub, "bob")
    await give(
        hub,
        "clusterrole ruler --verb=get,create,update,patch --resource=approvalrules.hub.open-cluster-management.io",
        "clusterrolebinding bob-rules --clusterrole=ruler --user=bob",
    )
    await hub.runs((f"kubectl create -f {file}", FAILED, "may not accept every cluster"), path=bob)
    await create(hub, "accepter.yaml", ACCEPTER)
    await give(hub, "clusterrolebinding bob-accepts --clusterrole=accepter --user=bob")
    await hub.runs((f"kubectl create -f {file}", FAILED, "not permitted to approve requests"), path=bob)
    await give(hub, f"clusterrolebinding bob-approves --clusterrole={APPROVER} --user=bob")
    await hub.output(f"kubectl create -f {file}", path=bob)


LEASE = timedelta(seconds=15)


async def test_operators_see_the_leader_and_change_it_by_no_api(hub: HubUnderTest) -> None:
    await hub.runs(("hubctl get leader", DONE, "there is no leader to show"))
    first = await hub.store.run(lambda tx: tx.leaders.take(None, Candidate("hub-0", "a"), LEASE))
    second = await hub.store.run(lambda tx: tx.leaders.take(first, Candidate("hub-1", "b"), LEASE))
    titles, row = (await hub.output("hubctl get leader")).splitlines()
    assert titles.split() == ["NAME", "HOLDER", "TERM", "SINCE", "RENEWED", "TRANSITIONS"]
    assert re.fullmatch(r"hub +hub-1 +2 +\d+s +\d+s +1", row)
    status = json.loads(await hub.output("kubectl get hubleader hub -o json"))["status"]
    assert (status.pop("acquireTime") <= status.pop("renewTime")) is True
    assert status == {"holder": "hub-1", "term": 2, "transitions": 1, "leaseDuration": "15s"}
    await hub.store.run(lambda tx: tx.leaders.release(second))
    await hub.runs(
        ("kubectl delete hubleader hub", FAILED, ""),
        ("kubectl patch hubleader hub --type=merge -p 'status: {holder: me}'", FAILED, ""),
        ("kubectl get hubleader other", FAILED, "NotFound"),
        ("kubectl get hubleaders", DONE, "<nobody>"),
    )


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
