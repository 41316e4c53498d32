"""Rules with real processes: a cluster goes all the way by itself, through either door, and everything says by which rule."""

import json

import pytest

from machinery import kubeconfig, pki
from machinery.identity import AgentId, ClusterName, agent_subject
from machinery.kube.client import KubeClient
from tests.e2e.processes import REQUESTS, Bench, status_of, until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]
RULES = "/apis/hub.open-cluster-management.io/v1alpha1/approvalrules"
AUDIT = "/apis/hub.open-cluster-management.io/v1alpha1/auditrecords"


def rule(name: str, **spec: object) -> dict[str, object]:
    return {
        "apiVersion": "hub.open-cluster-management.io/v1alpha1",
        "kind": "ApprovalRule",
        "metadata": {"name": name},
        "spec": {"decides": ["Accept", "Approve"], **spec},
    }


async def test_a_rule_lets_a_cluster_in_at_the_agents_door_and_everything_names_it(bench: Bench) -> None:
    await bench.hub()
    async with await KubeClient.from_file(bench.admin) as client:
        condition = 'name.matches("edge-?") && requester.kind == "BootstrapCredential"'
        await client.create(RULES, rule("edges", condition=condition))
        await bench.spoke("edge-1")
        cluster = await bench.available("edge-1")
        accepted = next(each for each in cluster["status"]["conditions"] if each["type"] == "HubAcceptedManagedCluster")
        assert accepted["message"] == 'Accepted by hub cluster admin by the rule "edges"'
        (request,) = await bench.requests()
        assert request["status"]["conditions"][0]["message"] == 'Approved by the rule "edges".'

        async def counted() -> bool:
            status = (await client.get(f"{RULES}/edges")).get("status") or {}
            return (status.get("accepted"), status.get("approved")) == (1, 1)

        async def told() -> bool:
            events = (await client.get("/api/v1/namespaces/edge-1/events"))["items"]
            said = [str(event["message"]) for event in events]
            return any("accepted by system:muster:rule:edges" in each for each in said) and any(
                'approved by the rule "edges"' in each for each in said
            )

        async def remembered() -> bool:
            records = (await client.get(f"{AUDIT}?fieldSelector=user=system:muster:rule:edges"))["items"]
            return {record["annotations"]["muster/decision"] for record in records} == {"Accept", "Approve"}

        await until(counted, what="both decisions are counted")
        await until(told, what="both decisions are Events")
        await until(remembered, what="both decisions are in the audit log")


async def test_a_rule_lets_a_cluster_in_at_the_operators_door(bench: Bench) -> None:
    """As OCM's agent comes: with a token, a ManagedCluster and a CSR of its own."""
    await bench.hub()
    file = bench.folder / "c1.kubeconfig"
    await bench.hubctl("create", "bootstrap-kubeconfig", "--cluster", "c1", "--token", "--allow-loopback", "-o", str(file))
    bootstrap = kubeconfig.read_kubeconfig(file)
    assert bootstrap
    request = pki.build_request(agent_subject(ClusterName("c1"), AgentId("xk7pq")), pki.generate_key())
    body = {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"generateName": "c1-", "labels": {"open-cluster-management.io/cluster-name": "c1"}},
        "spec": {
            "request": _base64(request),
            "signerName": "kubernetes.io/kube-apiserver-client",
            "usages": ["digital signature", "key encipherment", "client auth"],
        },
    }
    async with await KubeClient.from_file(bench.admin) as admin, await KubeClient.from_file(file) as agent:
        await admin.create(RULES, rule("ones", requesters=[{"kind": "BootstrapCredential"}], clusterNames=["c1"]))
        cluster = {"apiVersion": "cluster.open-cluster-management.io/v1", "kind": "ManagedCluster", "metadata": {"name": "c1"}}
        await agent.create("/apis/cluster.open-cluster-management.io/v1/managedclusters", {**cluster, "spec": {}})
        name = (await agent.create(REQUESTS, body))["metadata"]["name"]

        async def issued() -> bool:
            return bool(((await admin.get(f"{REQUESTS}/{name}")).get("status") or {}).get("certificate"))

        await until(issued, what="the request is issued")
        await bench.cluster_when("c1", lambda each: status_of(each, "HubAcceptedManagedCluster") == "True", what="is accepted")
    assert json.loads(await bench.hubctl("get", "rule", "ones", "-o", "json"))["spec"]["clusterNames"] == ["c1"]


def _base64(raw: bytes) -> str:
    from base64 import b64encode  # noqa: PLC0415 - only here

    return b64encode(raw).decode()
