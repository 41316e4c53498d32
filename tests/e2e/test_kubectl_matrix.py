"""A real kubectl against a real hub and one agent that joins: commands in the order of a table, their exit codes and output."""

import re

import pytest

from tests.e2e.processes import Bench, until
from tests.fakes.kubectl import Kubectl
from tests.integration.https_door.test_kubectl import ADD_ON

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
ROLE = """
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: readers}
rules: [{apiGroups: [""], resources: [namespaces], verbs: [get, list]}]
"""


class Step:
    """A command with patterns that its output has, its exit code, its input, and a pattern that its output must not have."""

    def __init__(self, command: str, *says: str, exit: int = 0, given: str = "", lacks: str = "") -> None:  # noqa: A002
        self.command, self.says, self.exit, self.given, self.lacks = command, says, exit, given, lacks


MCL = "managedcluster.cluster.open-cluster-management.io"
STEPS = (
    # The server and what it serves.
    Step("cluster-info", "Kubernetes control plane.* is running at https://127.0.0.1"),
    Step("api-resources --namespaced=true -o name", r"^leases\.coordination\.k8s\.io$", lacks="^namespaces$"),
    Step("api-resources --verbs=deletecollection --api-group=addon.open-cluster-management.io", "managedclusteraddons"),
    Step("explain mca --api-version=addon.open-cluster-management.io/v1beta1", "VERSION: +v1beta1"),
    Step("explain mca --api-version=addon.open-cluster-management.io/v1alpha1", "VERSION: +v1alpha1"),
    Step("explain managedclustersets.spec", "FIELD: spec"),
    Step("explain mcl.status.conditions --output=plaintext-openapiv2", "lastTransitionTime\t<string> -required-"),
    Step("explain mcl.nothing", "does not exist", exit=1),
    # Writing.
    Step("create -f -", f"^{MCL}/east created$", given=EAST),
    Step("apply -f -", f"^{MCL}/west created$", given=WEST),
    Step("label mcl --all checked=yes", f"^{MCL}/east labeled$", f"^{MCL}/west labeled$"),
    # Reading, in every form.
    Step("get mcl -L region", "REGION$", " us$"),
    Step("get mcl -l region!=us,!nothing -o name", "/east$", lacks="/west$"),
    Step("get mcl --field-selector spec.hubAcceptsClient=true -o name", f"^{MCL}/edge1$", lacks="/east$"),
    Step("get mcl --field-selector status.available!=True -o name", "/east$", "/west$"),
    Step("get mcl,csr,ns -o name", "^namespace/default$", f"^{MCL}/west$", "^certificatesigningrequest"),
    Step("events -A", "."),
    # A cluster joins: its certificate is approved with kubectl, and waited for.
    Step("certificate approve {csr}", "approved$"),
    Step("wait mcl/edge1 --for=condition=ManagedClusterConditionAvailable --timeout=25s", "condition met$"),
    Step("get mcl --field-selector status.available=True,status.joined=True -o name", f"^{MCL}/edge1$", lacks="east|west"),
    Step(
        "get csr --field-selector spec.signerName=kubernetes.io/kube-apiserver-client -o name",
        "^certificatesigningrequest.*edge1",
    ),
    Step("get csr --field-selector spec.signerName=example.com/other -o name", lacks="certificatesigningrequest"),
    Step("get events -A --field-selector involvedObject.kind=ManagedCluster,involvedObject.name=edge1", "managedcluster/edge1"),
    Step("get events -A --field-selector involvedObject.name=nobody", "No resources found"),
    Step("get lease -n edge1 managed-cluster-lease", "^managed-cluster-lease"),
    Step("describe mcl edge1", "Type: +ManagedClusterJoined"),
    Step("create ns team-a", "^namespace/team-a created$"),
    Step("auth reconcile -f -", "reconciled$", given=ROLE),
    # Cluster sets and add-ons.
    Step("create -f -", "managedclusterset.*/blue created$", given=SET),
    Step("get mclsets default global -o name", "/default$", "/global$"),
    Step("get mcl edge1 --show-labels", "cluster.open-cluster-management.io/clusterset=default"),
    Step("label mcl edge1 cluster.open-cluster-management.io/clusterset=blue --overwrite", "labeled$"),
    Step("get managedclustersets -o name", "/blue$"),
    Step("wait mclset/blue --for=condition=ClusterSetEmpty=False --timeout=30s", "condition met$"),
    Step("get mclset blue -o jsonpath={.status.conditions[0].message}", "^1 ManagedClusters selected$"),
    Step("create -f -", "managedclustersetbinding.*/blue created$", given=BINDING),
    Step("wait managedclustersetbinding/blue -n team-a --for=condition=Bound --timeout=30s", "condition met$"),
    Step("create -f -", "managedclusteraddon.*/metrics created$", given=ADD_ON),
    Step("get managedclusteraddons.v1alpha1.addon.open-cluster-management.io -n edge1 -o yaml", "addon.*/v1alpha1$", "metrics"),
    Step("get managedclusteraddons.v1alpha1.addon.open-cluster-management.io -n edge1", "^metrics"),
    Step("get mca -A", "^edge1 +metrics"),
    Step(f"wait mcl/edge1 --for=jsonpath={{.metadata.labels.{METRICS}}}=unreachable --timeout=30s", "condition met$"),
    Step("get mcl -l feature.open-cluster-management.io/addon-metrics=unreachable -o name", "/edge1$"),
    Step("get mca -A --field-selector status.available=True", "No resources found"),
    Step("delete mca metrics -n edge1 --timeout=10s", "deleted"),
    # Deleting.
    Step("delete mcl east --timeout=10s", '"east" deleted'),
    Step("delete mcl -l region=us --timeout=10s", '"west" deleted'),
    Step("delete ns team-a --timeout=20s", '"team-a" deleted'),
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
