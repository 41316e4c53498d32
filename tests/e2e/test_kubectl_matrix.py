"""A real kubectl against a real hub and one agent that joins: commands in the order of a table, their exit codes and output."""

import asyncio
import json
import re
from dataclasses import dataclass

import aiohttp
import pytest

from tests.e2e.processes import Bench, until
from tests.fakes.kubectl import Kubectl

pytestmark = [pytest.mark.e2e, pytest.mark.kubectl, pytest.mark.timeout(300)]

EAST = """
apiVersion: cluster.open-cluster-management.io/v1
kind: ManagedCluster
metadata: {name: east, labels: {region: eu}}
spec: {hubAcceptsClient: false}
"""
WEST = EAST.replace("east", "west").replace("region: eu", "region: us")
SET = """
apiVersion: cluster.open-cluster-management.io/v1beta2
kind: ManagedClusterSet
metadata: {name: blue}
spec: {}
"""
BINDING = """
apiVersion: cluster.open-cluster-management.io/v1beta2
kind: ManagedClusterSetBinding
metadata: {name: blue, namespace: team-a}
spec: {clusterSet: blue}
"""
METRICS = r"feature\.open-cluster-management\.io/addon-metrics"
ADD_ON = """
apiVersion: addon.open-cluster-management.io/v1beta1
kind: ManagedClusterAddOn
metadata: {name: metrics, namespace: edge1}
spec: {}
"""
ROLE = """
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: readers}
rules: [{apiGroups: [""], resources: [namespaces], verbs: [get, list]}]
"""


@dataclass(frozen=True, slots=True)
class Step:
    """A command with its input, its exit code, patterns that its output has, and one that it must not have."""

    command: str
    says: tuple[str, ...] = ()
    exit: int = 0
    given: str = ""
    lacks: str = ""


def told(command: str, *says: str, exit: int = 0, given: str = "", lacks: str = "") -> Step:  # noqa: A002
    return Step(command, says, exit, given, lacks)


MCL = "managedcluster.cluster.open-cluster-management.io"
STEPS = (
    # The server and what it serves.
    told("cluster-info", "Kubernetes control plane.* is running at https://127.0.0.1"),
    told("api-resources --namespaced=true -o name", r"^leases\.coordination\.k8s\.io$", lacks="^namespaces$"),
    told("api-resources --verbs=deletecollection --api-group=addon.open-cluster-management.io", "managedclusteraddons"),
    told("explain mca --api-version=addon.open-cluster-management.io/v1beta1", "VERSION: +v1beta1"),
    told("explain mca --api-version=addon.open-cluster-management.io/v1alpha1", "VERSION: +v1alpha1"),
    told("explain managedclustersets.spec", "FIELD: spec"),
    told("explain mcl.status.conditions --output=plaintext-openapiv2", "lastTransitionTime\t<string> -required-"),
    told("explain mcl.nothing", "does not exist", exit=1),
    # Writing.
    told("create -f -", f"^{MCL}/east created$", given=EAST),
    told("apply -f -", f"^{MCL}/west created$", given=WEST),
    told("label mcl --all checked=yes", f"^{MCL}/east labeled$", f"^{MCL}/west labeled$"),
    # Reading, in every form.
    told("get mcl -L region", "REGION$", " us$"),
    told("get mcl -l region!=us,!nothing -o name", "/east$", lacks="/west$"),
    told("get mcl --field-selector spec.hubAcceptsClient=true -o name", f"^{MCL}/edge1$", lacks="/east$"),
    told("get mcl --field-selector status.available!=True -o name", "/east$", "/west$"),
    told("get mcl,csr,ns -o name", "^namespace/default$", f"^{MCL}/west$", "^certificatesigningrequest"),
    told("events -A", "."),
    # A cluster joins: its certificate is approved with kubectl, and waited for.
    told("certificate approve {csr}", "approved$"),
    told("wait mcl/edge1 --for=condition=ManagedClusterConditionAvailable --timeout=25s", "condition met$"),
    told("get mcl --field-selector status.available=True,status.joined=True -o name", f"^{MCL}/edge1$", lacks="east|west"),
    told(
        "get csr --field-selector spec.signerName=kubernetes.io/kube-apiserver-client -o name",
        "^certificatesigningrequest.*edge1",
    ),
    told("get csr --field-selector spec.signerName=example.com/other -o name", lacks="certificatesigningrequest"),
    told("get events -A --field-selector involvedObject.kind=ManagedCluster,involvedObject.name=edge1", "managedcluster/edge1"),
    told("get events -A --field-selector involvedObject.name=nobody", "No resources found"),
    told("get lease -n edge1 managed-cluster-lease", "^managed-cluster-lease"),
    told("describe mcl edge1", "Type: +ManagedClusterJoined"),
    told("create ns team-a", "^namespace/team-a created$"),
    told("auth reconcile -f -", "reconciled$", given=ROLE),
    # Cluster sets and add-ons.
    told("create -f -", "managedclusterset.*/blue created$", given=SET),
    told("get mclsets default global -o name", "/default$", "/global$"),
    told("get mcl edge1 --show-labels", "cluster.open-cluster-management.io/clusterset=default"),
    told("label mcl edge1 cluster.open-cluster-management.io/clusterset=blue --overwrite", "labeled$"),
    told("get managedclustersets -o name", "/blue$"),
    told("wait mclset/blue --for=condition=ClusterSetEmpty=False --timeout=30s", "condition met$"),
    told("get mclset blue -o jsonpath={.status.conditions[0].message}", "^1 ManagedClusters selected$"),
    told("create -f -", "managedclustersetbinding.*/blue created$", given=BINDING),
    told("wait managedclustersetbinding/blue -n team-a --for=condition=Bound --timeout=30s", "condition met$"),
    told("create -f -", "managedclusteraddon.*/metrics created$", given=ADD_ON),
    told("get managedclusteraddons.v1alpha1.addon.open-cluster-management.io -n edge1 -o yaml", "addon.*/v1alpha1$", "metrics"),
    told("get managedclusteraddons.v1alpha1.addon.open-cluster-management.io -n edge1", "^metrics"),
    told("get mca -A", "^edge1 +metrics"),
    told(f"wait mcl/edge1 --for=jsonpath={{.metadata.labels.{METRICS}}}=unreachable --timeout=30s", "condition met$"),
    told("get mcl -l feature.open-cluster-management.io/addon-metrics=unreachable -o name", "/edge1$"),
    told("get mca -A --field-selector status.available=True", "No resources found"),
    told("delete mca metrics -n edge1 --timeout=10s", "deleted"),
    # Deleting.
    told("delete mcl east --timeout=10s", '"east" deleted'),
    told("delete mcl -l region=us --timeout=10s", '"west" deleted'),
    told("delete ns team-a --timeout=20s", '"team-a" deleted'),
)


async def failure(kubectl: Kubectl, bench: Bench, step: Step) -> str:
    """What is wrong with the outcome of a step; empty: nothing."""
    request = (await bench.requests())[0]["metadata"]["name"] if "{csr}" in step.command else ""
    said = await kubectl(*step.command.replace("{csr}", request).split(" "), given=step.given)
    code, output = said.exit, said.output
    wanting = [pattern for pattern in step.says if not re.search(pattern, output, re.MULTILINE)]
    unwanted = bool(step.lacks and re.search(step.lacks, output, re.MULTILINE))
    if code == step.exit and not wanting and not unwanted:
        return ""
    return f"kubectl {step.command}\nexit {code}, wanting {wanting}, lacks {step.lacks!r}\n{output[-2000:]}"


async def test_kubectl_does_what_operators_need(bench: Bench) -> None:
    """All steps, in the order of the table, at a hub with one accepted cluster whose agent waits for its certificate."""
    await bench.hub("--beat-interval=1s")
    await bench.spoke("edge1")
    await until(bench.requests, what="the agent asks for its certificate")
    await bench.hubctl("accept", "edge1")
    kubectl = Kubectl(bench.folder, kubeconfig=bench.admin)
    failures = [found for step in STEPS if (found := await failure(kubectl, bench, step))]
    assert not failures, "\n\n".join(failures)


async def test_a_watch_prints_each_change_and_a_proxy_stands_before_the_hub(bench: Bench) -> None:
    await bench.hub()
    kubectl = Kubectl(bench.folder, kubeconfig=bench.admin)
    assert (await kubectl("create", "-f", "-", given=EAST)).exit == 0
    async with (
        kubectl.following("get", "mcl", "--watch-only", "-o", "name") as watching,
        kubectl.following("proxy", "--port=0") as proxy,
        aiohttp.ClientSession() as session,
    ):
        line = asyncio.ensure_future(watching.readline())
        while not line.done():  # until the watch is there to see the change
            await kubectl("annotate", "mcl", "east", "--overwrite", f"count={asyncio.get_running_loop().time()}")
            await asyncio.wait((line,), timeout=0.5)
        assert (await line).decode() == f"{MCL}/east\n"
        port = re.findall(rb":(\d+)", await proxy.readline())[0].decode()
        url = f"http://127.0.0.1:{port}/apis/cluster.open-cluster-management.io/v1/managedclusters/east"
        async with session.get(url) as answer:
            assert (answer.status, json.loads(await answer.text())["metadata"]["name"]) == (200, "east")
