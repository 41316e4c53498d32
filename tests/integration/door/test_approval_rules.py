"""ApprovalRules through a real kubectl: made, shown, refused with what is wrong, made by nobody who may not decide himself."""

import json

import pytest

from tests.integration.door.conftest import HubUnderTest
from tests.integration.door.test_kubectl import create
from tests.integration.door.test_kubectl_rbac import operator

pytestmark = pytest.mark.kubectl
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
ACCEPTER = """
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: accepter}
rules:
- {verbs: [update], apiGroups: [register.open-cluster-management.io], resources: [managedclusters/accept]}
"""


async def test_a_rule_lives_from_create_to_delete(hub: HubUnderTest) -> None:
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


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("has(labels.tier) &&", "has(label.tier) &&", 'spec.condition: Invalid value: "has(label.tier) && requester.user.star'),
        ("has(labels.tier) &&", "has(label.tier) &&", 'column 5: there is no field "label.tier"'),
        ("[Accept, Approve]", "[Deny]", 'spec.decides[0]: Unsupported value: "Deny": supported values: "Accept", "Approve"'),
        ("[Accept, Approve]", "[]", "spec.decides"),
        ('["edge-*"]', '["Edge-*"]', "spec.clusterNames[0]"),
        ("{kind: BootstrapCredential}", "{kind: User}", "spec.requesters[0].name: Required value"),
    ],
)
async def test_a_mistake_in_a_rule_is_told_by_field_and_column(hub: HubUnderTest, before: str, after: str, said: str) -> None:
    await create(hub, "bad.yaml", RULE.replace(before, after), said=said)


async def test_an_operator_makes_no_rule_decide_what_he_may_not(hub: HubUnderTest) -> None:
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
