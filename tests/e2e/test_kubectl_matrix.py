"""A real kubectl against a real hub, command by command: what an operator types, how it ends, and what is said.

One hub process and one agent that joins; the commands run in the order of the table, each with what it needs before it.
"""

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from tests.e2e.processes import Bench, until

pytestmark = [pytest.mark.e2e, pytest.mark.kubectl]

EAST = """
apiVersion: cluster.open-cluster-management.io/v1
kind: ManagedCluster
metadata: {name: east, labels: {region: eu}}
spec: {hubAcceptsClient: false}
"""
WEST = EAST.replace("east", "west").replace("region: eu", "region: us")
CHANGED = EAST.replace("region: eu", "region: eu, tier: gold")
MISSPELT = EAST.replace("hubAcceptsClient", "hubAcceptClient")
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
    told("version", r"Server Version: v1\.\d+"),
    told("cluster-info", "Kubernetes control plane.* is running at https://127.0.0.1"),
    told("api-versions", r"^cluster\.open-cluster-management\.io/v1$", "^v1$", r"^certificates\.k8s\.io/v1$"),
    told("api-resources", r"^managedclusters +mcl,mcls +cluster\.open-cluster-management\.io/v1 +false +ManagedCluster"),
    told("api-resources --namespaced=true -o name", r"^leases\.coordination\.k8s\.io$", lacks="^namespaces$"),
    told("api-resources --verbs=deletecollection --api-group=addon.open-cluster-management.io", "managedclusteraddons"),
    told("get --raw /readyz", "^ok$"),
    told("get --raw /version", '"gitVersion"'),
    told("get --raw /nothing", "NotFound", exit=1),
    told("explain mcl", "^KIND: +ManagedCluster", "hubAcceptsClient|^  spec\t"),
    told("explain mcl.spec.taints.effect", "^ENUM:$", "NoSelectIfNew"),
    told("explain mcl --recursive", "^    leaseDurationSeconds\t<integer>$", "^      timeAdded\t<string>$"),
    told("explain mca --api-version=addon.open-cluster-management.io/v1beta1", "VERSION: +v1beta1"),
    told("explain mca --api-version=addon.open-cluster-management.io/v1alpha1", "VERSION: +v1alpha1"),
    told("explain managedclustersets.spec", "FIELD: spec"),
    told("explain mcl.status.conditions --output=plaintext-openapiv2", "lastTransitionTime\t<string> -required-"),
    told("explain mcl.nothing", "does not exist", exit=1),
    # Who I am and what I may do.
    told("auth whoami", "system:masters"),
    told("auth can-i get managedclusters", "^yes$"),
    told("auth can-i --list", r"\*\.\*"),
    told("auth can-i delete managedclusters --as=bob", "no|cannot create", exit=1),
    told("get mcl --as=bob", 'User "bob" cannot list resource "managedclusters"', exit=1),
    # Writing.
    told("create -f -", f"^{MCL}/east created$", given=EAST),
    told("create -f -", "AlreadyExists", exit=1, given=EAST),
    told("create --dry-run=server -f -", f"^{MCL}/west created \\(server dry run\\)$", given=WEST),
    told("get mcl west", "NotFound", exit=1),
    told("create -f -", 'unknown field "spec.hubAcceptClient"', exit=1, given=MISSPELT),
    told("apply -f -", f"^{MCL}/west created$", given=WEST),
    told("apply -f -", f"^{MCL}/west unchanged$", given=WEST),
    told("diff -f -", r"^\+    tier: gold$", exit=1, given=CHANGED),
    told("apply -f -", f"^{MCL}/east configured$", given=CHANGED),
    told("label mcl east tier=bronze --overwrite", "labeled$"),
    told("apply --server-side -f -", "conflict with", "kubectl-label", exit=1, given=CHANGED.replace("gold", "silver")),
    told("apply --server-side --force-conflicts -f -", f"^{MCL}/east serverside-applied$", given=CHANGED),
    told("apply --dry-run=server --server-side -f -", "serverside-applied \\(server dry run\\)$", given=CHANGED),
    told("get mcl east -o yaml --show-managed-fields", "^  - apiVersion", "operation: Apply"),
    told("edit mcl east", f"^{MCL}/east edited$"),
    told("get mcl east -o jsonpath={.spec.leaseDurationSeconds}", "^61$"),
    told('patch mcl east --type=merge -p {"spec":{"leaseDurationSeconds":45}}', f"^{MCL}/east patched$"),
    told('patch mcl east --type=json -p [{"op":"replace","path":"/spec/leaseDurationSeconds","value":46}]', "patched$"),
    told('patch mcl east -p {"spec":{}}', "strategic-merge-patch.json is not supported by", exit=1),
    told("get mcl east -o jsonpath={.spec.leaseDurationSeconds}", "^46$"),
    told("label mcl east stage=canary", "labeled$"),
    told("label mcl east stage=stable", "--overwrite", exit=1),
    told("label mcl --all checked=yes", f"^{MCL}/east labeled$", f"^{MCL}/west labeled$"),
    told("annotate mcl east note=hello", "annotated$"),
    told("set-last-applied -f -", "unknown command", exit=1, given=EAST),
    told("replace -f -", "replaced$", given=EAST),
    # Reading, in every form.
    told("get mcl", "^NAME +HUB ACCEPTED +MANAGED CLUSTER URLS +JOINED +AVAILABLE +AGE$", "^east +false"),
    told("get mcl -o wide", "VERSION +NODES +HUBS +FLAPS +LAST BEAT +AGENT$"),
    told("get mcl --show-labels", "region=us"),
    told("get mcl -L region", "REGION$", " us$"),
    told("get mcl --no-headers", "^east", lacks="NAME"),
    told("get mcl east -o json", '"kind": "ManagedCluster"'),
    told("get mcl -o yaml", "^kind: List$"),
    told("get mcl -o name", f"^{MCL}/east$"),
    told("get mcl -o jsonpath={.items[*].metadata.name}", "east.* west$"),
    told("get mcl -o go-template={{range.items}}{{.metadata.name}};{{end}}", "east;.*west;"),
    told("get mcl -o custom-columns=N:.metadata.name,R:.metadata.labels.region", "^west +us$"),
    told("get mcl --sort-by=.metadata.name --no-headers", "(?s)east.*west"),
    told("get mcl --chunk-size=1 -o name", "/east$", "/west$"),
    told("get mcl -l region=us -o name", "/west$", lacks="/east$"),
    told("get mcl -l region!=us,!nothing -o name", "/east$", lacks="/west$"),
    told("get mcl --field-selector metadata.name=west -o name", "/west$", lacks="/east$"),
    told("get mcl --field-selector spec.hubAcceptsClient=true -o name", f"^{MCL}/edge1$", lacks="/east$"),
    told("get mcl --field-selector status.available!=True -o name", "/east$", "/west$"),
    told("get mcl --field-selector spec.taints=x", "field label not supported: spec.taints", exit=1),
    told("get mcl,csr,ns -o name", "^namespace/default$", f"^{MCL}/west$", "^certificatesigningrequest"),
    told("get nothing", 'doesn\'t have a resource type "nothing"', exit=1),
    told("describe mcl east", "^Name: +east$", "Hub Accepts Client: +false"),
    told("describe ns default", "^Status: +Active$"),
    told("events -A", "."),
    # A cluster joins: its certificate is approved with kubectl, and waited for.
    told("get csr", "Pending"),
    told("certificate approve {csr}", "approved$"),
    told("wait mcl/edge1 --for=condition=ManagedClusterConditionAvailable --timeout=25s", "condition met$"),
    told("wait mcl/edge1 --for=jsonpath={.spec.hubAcceptsClient}=true --timeout=5s", "condition met$"),
    told("wait mcl/east --for=condition=ManagedClusterConditionAvailable --timeout=1s", "timed out", exit=1),
    told("get csr", "Approved,Issued"),
    told("certificate deny {csr}", "Approved", exit=1),
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
    # Core kinds.
    told("create ns team-a", "^namespace/team-a created$"),
    told("create configmap settings -n team-a --from-literal=a=b", "^configmap/settings created$"),
    told('patch cm settings -n team-a -p {"data":{"c":"d"}}', "patched$"),
    told("get cm settings -n team-a -o jsonpath={.data}", '"a":"b","c":"d"'),
    told("create secret generic s -n team-a --from-literal=a=b", "^secret/s created$"),
    told("get secret s -n team-a -o jsonpath={.data.a}", "^Yg==$"),
    told("create sa robot -n team-a", "^serviceaccount/robot created$"),
    told("create token robot -n team-a", r"^[\w-]+\.[\w-]+\.[\w-]+$"),
    # Roles.
    told(
        "create clusterrole viewer --verb=get,list --resource=managedclusters.cluster.open-cluster-management.io",
        "created$",
    ),
    told("create clusterrolebinding bob-viewer --clusterrole=viewer --user=bob", "created$"),
    told("get mcl --as=bob -o name", "/east$"),
    told("auth can-i list managedclusters --as=bob", "^yes$"),
    told("auth reconcile -f -", "reconciled$", given=ROLE),
    told("delete clusterrolebinding bob-viewer", "deleted"),
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
    told("delete mcl east --dry-run=server", "deleted \\(server dry run\\)$"),
    told("delete mcl east --timeout=10s", '"east" deleted'),
    told("delete mcl east", "NotFound", exit=1),
    told("delete mcl east --ignore-not-found"),
    told("delete mcl -l region=us --timeout=10s", '"west" deleted'),
    told("delete cm --all -n team-a", '"settings" deleted'),
    told("delete ns team-a --timeout=20s", '"team-a" deleted'),
)


@dataclass(frozen=True, slots=True)
class Ended:
    exit: int
    output: str


class Terminal:
    """A shell's worth of kubectl: its own home, the administrator's kubeconfig, an editor that changes 60 into 61."""

    def __init__(self, bench: Bench, home: Path) -> None:
        self.bench = bench
        self._home = home
        home.mkdir()

    @property
    def environment(self) -> Mapping[str, str]:
        editor = "sed -i -e /leaseDurationSeconds/s/60/61/"
        own = {"KUBECONFIG": str(self.bench.admin), "HOME": str(self._home), "KUBE_EDITOR": editor}
        return {**os.environ, **own}

    async def start(self, command: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            "kubectl",
            *command.split(" "),
            env=self.environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )

    async def run(self, command: str, given: str = "") -> Ended:
        process = await self.start(command)
        output, _ = await asyncio.wait_for(process.communicate(given.encode()), 40)
        return Ended(process.returncode or 0, output.decode())


@pytest.fixture(scope="module")
async def terminal(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Terminal]:
    """At a hub with one accepted cluster whose agent waits for its certificate."""
    folder = tmp_path_factory.mktemp("matrix")
    bench = Bench(folder)
    terminal = Terminal(bench, folder / "home")
    try:
        await bench.hub("--beat-interval=1s")
        await bench.spoke("edge1")
        await until(bench.requests, what="the agent asks for its certificate")
        await bench.hubctl("accept", "edge1")
        yield terminal
    finally:
        await bench.close()


class Script:
    """The steps in order, each run once, when its outcome or a later one is asked for."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._ended: list[Ended] = []

    async def outcome(self, number: int) -> Ended:
        while len(self._ended) <= number:
            step = STEPS[len(self._ended)]
            request = (await self._terminal.bench.requests())[0]["metadata"]["name"] if "{csr}" in step.command else ""
            self._ended.append(await self._terminal.run(step.command.replace("{csr}", request), step.given))
        return self._ended[number]


@pytest.fixture(scope="module")
async def script(terminal: Terminal) -> Script:
    return Script(terminal)


@pytest.mark.parametrize("number", range(len(STEPS)), ids=lambda number: f"{number:02d} {STEPS[number].command[:60]}")
async def test_kubectl_does_what_operators_need(number: int, script: Script) -> None:
    step, ended = STEPS[number], await script.outcome(number)
    wanting = [pattern for pattern in step.says if not re.search(pattern, ended.output, re.MULTILINE)]
    well = ended.exit == step.exit and not wanting and not (step.lacks and re.search(step.lacks, ended.output, re.MULTILINE))

    assert well, f"kubectl {step.command}\nexit {ended.exit}, wanting {wanting}, lacks {step.lacks!r}\n{ended.output[-2000:]}"


async def test_a_watch_prints_each_change(terminal: Terminal) -> None:
    watching = await terminal.start("get mcl --watch-only -o name --field-selector spec.hubAcceptsClient=true")
    assert watching.stdout is not None
    line = asyncio.ensure_future(watching.stdout.readline())
    try:
        async with asyncio.timeout(20):
            while not line.done():  # until the watch is there to see the change
                await terminal.run(f"annotate mcl edge1 --overwrite count={watching.pid}{asyncio.get_running_loop().time()}")
                await asyncio.wait((line,), timeout=0.5)
        assert (await line).decode() == f"{MCL}/edge1\n"
    finally:
        watching.kill()
        await watching.communicate()


async def test_a_proxy_stands_before_the_hub(terminal: Terminal) -> None:
    proxy = await terminal.start("proxy --port=0")
    assert proxy.stdout is not None
    try:
        async with asyncio.timeout(20):
            port = re.findall(rb":(\d+)", await proxy.stdout.readline())[0].decode()
        url = f"http://127.0.0.1:{port}/apis/cluster.open-cluster-management.io/v1/managedclusters/edge1"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            assert (answer.status, json.loads(await answer.text())["metadata"]["name"]) == (200, "edge1")
    finally:
        proxy.kill()
        await proxy.communicate()
