"""Both charts as Helm renders them: lint, Kubernetes schemas, pod security, accounts, rights, labels, and what is generated."""

import asyncio
import base64
import copy
import json
import os
import re
import shlex
import shutil
import subprocess
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import helm_python
import jsonschema
import pytest
import yaml
from kubernetes_validate.utils import ValidationError
from pydantic import BaseModel

from docs.chart_pages import generated, own_of_the_chart, settings_schema
from hollow.cluster import HollowCluster
from hollow.objects import ClusterShape, manager_pod
from hub.extensions.aggregation.management import keep_bundle
from hub.extensions.kube_cert_agent.authority import KubernetesIssuer
from hub.extensions.kube_cert_agent.cluster_client import DEPLOYMENTS, PODS as AGENT_PODS, ClusterClient, mirrors
from hub.extensions.kube_cert_agent.controller import KEY, KubeCertAgent, OutdatedPods
from hub.extensions.kube_cert_agent.deployment import AgentDeploymentShape as AgentShape
from hub.extensions.settings import Settings
from hub.replica.host_secrets import ClusterKeySecret
from machinery import product
from machinery.client.leaselock import LEASES, LeaseLock
from machinery.client.ownership import owner_of
from machinery.client.rest import KubeClient, RestResource
from machinery.election.lock import Candidate
from machinery.errors import NotFoundError
from machinery.runtime.clock import SystemClock
from spoke.settings import SpokeSettings
from tests.charts.rendering import (
    BARE,
    CHARTS,
    FULL,
    MATRIX,
    ROOT,
    VALUES,
    environment,
    of_kind,
    only,
    pod_spec,
    pods_of,
    render,
)
from tests.charts.rights import Calls, rights_of
from tests.charts.schemas import validate, violations
from tests.checks import present
from tests.fakes.host_cluster import StatusInMemory

KUBERNETES = ["1.27", "1.37"]  # the oldest that the charts take, and the newest there is
SETTINGS: dict[str, type[BaseModel]] = {"hub": Settings, "spoke": SpokeSettings}
ROLES_OF_KUBERNETES = {("ClusterRole", "system:auth-delegator"), ("Role", "extension-apiserver-authentication-reader")}
RULES = """groups:
  - name: more
    rules:
      - alert: Gone
        expr: up == 0
        annotations:
          summary: "{{ $labels.instance }} is gone"
"""


def flaws_of(documents: list[dict[str, Any]]) -> Iterator[str]:
    """Objects that Kubernetes refuses, pods that are not restricted, bindings of other accounts or roles."""
    for document in documents:
        for kubernetes in KUBERNETES:
            try:
                validate(document, kubernetes)
            except (jsonschema.ValidationError, ValidationError) as error:
                yield f"{document['kind']} in Kubernetes {kubernetes}: {error}"
    for pod in pods_of(documents):
        yield from violations(pod)
    [account] = {each["metadata"]["name"] for each in of_kind(documents, "ServiceAccount")} - {"muster-muster-hub-cert"}
    if not {pod.get("serviceAccountName", account) for pod in pods_of(documents)} <= {account}:
        yield "a pod has another account"
    bindings = [*of_kind(documents, "ClusterRoleBinding"), *of_kind(documents, "RoleBinding")]
    if any(each["subjects"] != [{"kind": "ServiceAccount", "name": account, "namespace": "fleet"}] for each in bindings):
        yield "a binding names another account"
    roles = {(each["kind"], each["metadata"]["name"]) for each in documents if each["kind"] in ("Role", "ClusterRole")}
    if {(each["roleRef"]["kind"], each["roleRef"]["name"]) for each in bindings} - ROLES_OF_KUBERNETES != roles:
        yield "roles and bindings do not match"
    if any("hook-succeeded" in str(each["metadata"].get("annotations")) for each in documents):
        yield "a test's pod is deleted before `helm test --logs` reads its log"
    if not documents or {each["metadata"]["labels"]["app.kubernetes.io/part-of"] for each in documents} != {product.PART_OF}:
        yield "an object is not part of the product"


def test_rendered_objects_are_valid_restricted_and_bound_to_their_account() -> None:
    flaws = [
        f"{chart}, {name}: {flaw}"
        for chart, matrix in MATRIX.items()
        for name, values in matrix.items()
        for flaw in flaws_of(render(chart, values))
    ]
    assert not flaws, "\n".join(flaws)


@pytest.mark.parametrize("chart", MATRIX)
def test_chart_is_linted_described_and_as_generated(chart: str) -> None:
    report = helm_python.lint(CHARTS / chart, VALUES[chart], strict=True, namespace="fleet")
    # 1 is "icon is recommended"; everything above it is a finding.
    assert ([message for message in report["messages"] if message["severity"] > 1], report["errors"]) == ([], [])

    described = yaml.safe_load((CHARTS / chart / "Chart.yaml").read_text())
    project = present(re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE))
    assert described["name"] == f"{product.NAME}-{chart}"
    assert described["version"] == described["appVersion"] == project[1]
    schema = json.loads((CHARTS / chart / "values.schema.json").read_text())
    assert set(yaml.safe_load((CHARTS / chart / "values.yaml").read_text())) <= set(schema["properties"])
    stale = [str(path.relative_to(ROOT)) for path, content in generated() if path.read_text() != content]
    assert stale == [], "run `make charts`, and commit what it writes"

    with helm_python.Chart.load(CHARTS / chart) as loaded:
        rendered = loaded.render(FULL[chart], name="muster", namespace="fleet")
    [notes] = [text for path, text in rendered.items() if path.endswith("NOTES.txt")]
    assert ["fleet" in notes, "{{ " in notes, "<no value>" in notes] == [True, False, False]


@pytest.mark.parametrize("chart", MATRIX)
def test_workload_has_probes_selectors_names_and_known_settings(chart: str) -> None:
    documents = render(chart, VALUES[chart])
    [container] = pod_spec(documents)["containers"]
    ports = {port["name"] for port in container["ports"]}
    for probe, path in (("livenessProbe", "/livez"), ("readinessProbe", "/readyz")):
        asked = container[probe]["httpGet"]
        assert (asked["path"], asked["port"] in ports) == (path, True)

    [workload] = [document for document in documents if document["kind"] in {"Deployment", "StatefulSet"}]
    labels = workload["spec"]["template"]["metadata"]["labels"]
    assert workload["spec"]["selector"]["matchLabels"].items() <= labels.items()
    if chart == "hub":
        assert only(documents, "Service")["spec"]["selector"].items() <= labels.items()

    longest = render(chart, VALUES[chart], name="a" * 53)
    names = [each["metadata"]["name"] for each in longest if "namespace" in each["metadata"] and "Role" not in each["kind"]]
    assert [name for name in names if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name)] == []

    fields = set(SETTINGS[chart].model_fields)
    known = {f"{chart.upper()}_{name.upper()}" for name in fields} | {"POD_NAME", "POD_NAMESPACE"}
    assert set(environment(render(chart, FULL[chart]))) <= known
    assert set(settings_schema(chart)["properties"]) == fields - own_of_the_chart(chart)


@pytest.mark.parametrize("chart", MATRIX)
def test_rules_and_dashboards_are_those_of_the_charts_folders_word_by_word(chart: str, tmp_path: Path) -> None:
    copied = shutil.copytree(CHARTS / chart, tmp_path / chart)
    for folder, name, text in (("rules", "more.yaml", RULES), ("dashboards", "more.json", '{"title": "{{ name }}"}')):
        (copied / folder).mkdir(exist_ok=True)
        (copied / folder / name).write_text(text)
    with helm_python.Chart.load(copied) as loaded:
        rendered = loaded.render(MATRIX[chart]["seen"], name="muster", namespace="fleet")
    [text] = [text for path, text in rendered.items() if path.endswith("monitoring.yaml")]
    documents = [document for document in yaml.safe_load_all(text) if document]
    rules = {
        each["metadata"]["name"].removeprefix(f"muster-muster-{chart}-"): each["spec"]
        for each in of_kind(documents, "PrometheusRule")
    }
    shown = {name: json.loads(text) for each in of_kind(documents, "ConfigMap") for name, text in each["data"].items()}
    assert rules == {path.stem: yaml.safe_load(path.read_text()) for path in (copied / "rules").iterdir()}
    assert shown == {path.name: json.loads(path.read_text()) for path in (copied / "dashboards").iterdir()}
    assert {each["metadata"]["labels"]["grafana_dashboard"] for each in of_kind(documents, "ConfigMap")} == {"1"}
    least = render(chart, VALUES[chart])
    assert of_kind(least, "ConfigMap") == of_kind(least, "PrometheusRule") == []


NAMESPACE, ACCOUNT = "fleet", "muster-muster-hub"
PODS, SETS = RestResource("", "v1", "pods"), RestResource("apps", "v1", "statefulsets")
POD = f"{ACCOUNT}-0"
Live = Callable[[KubeClient, KubeClient, dict[str, str]], Awaitable[None]]
"""Makes each call of one part of the hub, with the clients of its account and of an administrator and its environment."""


@asynccontextmanager
async def hosted(values: dict[str, Any], calls: Calls) -> AsyncIterator[tuple[KubeClient, KubeClient]]:
    """Clients of the installed chart's account and of an administrator; the pod of the first replica is there."""
    calls.of(NAMESPACE, ACCOUNT)
    async with HollowCluster(ClusterShape("host"), on_decision=calls.tell) as cluster, AsyncExitStack() as stack:
        kubeconfig = cluster.kubeconfig()
        admin = await stack.enter_async_context(await KubeClient.from_document(kubeconfig))
        await Stage(cluster, admin).install("hub", values)
        found = await admin.get(SETS.path(ACCOUNT, namespace=NAMESPACE))
        owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": ACCOUNT, "uid": found["metadata"]["uid"]}
        metadata = {"name": POD, "ownerReferences": [{**owner, "controller": True}]}
        await admin.create(PODS.path(namespace=NAMESPACE), {"metadata": metadata, "spec": {"containers": []}})
        path = RestResource("", "v1", "serviceaccounts").path(ACCOUNT, namespace=NAMESPACE, subresource="token")
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        kubeconfig["users"][0]["user"] = {"token": (await admin.create(path, asked))["status"]["token"]}
        yield await stack.enter_async_context(await KubeClient.from_document(kubeconfig)), admin


async def keep_the_admin_kubeconfig(client: KubeClient, _admin: KubeClient, settings: dict[str, str]) -> None:
    namespace, _, name = settings["HUB_ADMIN_KUBECONFIG_SECRET"].partition("/")
    secret = ClusterKeySecret(client, namespace, name, pod=POD)
    await secret.read()
    await secret.write({"kubeconfig": b"one"})


async def keep_the_keys_of_its_cas(client: KubeClient, _admin: KubeClient, settings: dict[str, str]) -> None:
    namespace, _, name = settings["HUB_CA_KEY_SECRET"].partition("/")
    secret = ClusterKeySecret(client, namespace, name, pod=POD)
    await secret.write({"ca.key": b"one"})
    await secret.write({"ca.key": b"another"})


async def hold_the_lease(client: KubeClient, _admin: KubeClient, settings: dict[str, str]) -> None:
    name, owner = settings["HUB_LEADER_ELECT_RESOURCE_NAME"], partial(owner_of, client, NAMESPACE, POD)
    lock = LeaseLock(client, NAMESPACE, name, clock=SystemClock(), owner=owner)
    taken = await lock.take(None, Candidate(POD, "first"), timedelta(seconds=15))
    metadata = (await client.get(LEASES.path(name, namespace=NAMESPACE)))["metadata"]
    assert [(each["kind"], each["name"]) for each in metadata["ownerReferences"]] == [("StatefulSet", ACCOUNT)]
    await lock.renew(taken)
    await lock.read()


async def keep_the_bundle(client: KubeClient, _admin: KubeClient, settings: dict[str, str]) -> None:
    namespace, _, name = settings["HUB_AGGREGATION_SERVICE"].partition("/")
    await keep_bundle(client, (namespace, name), b"CA")


async def run_the_cert_agent(client: KubeClient, admin: KubeClient, settings: dict[str, str]) -> None:
    labels = dict(each.split("=") for each in settings["HUB_KUBE_CERT_AGENT_LABELS"].split(","))
    name, image = settings["HUB_KUBE_CERT_AGENT_NAME"], settings["HUB_KUBE_CERT_AGENT_IMAGE"]
    shape = AgentShape(NAMESPACE, name, image, settings["HUB_KUBE_CERT_AGENT_SERVICE_ACCOUNT"], labels)
    second = manager_pod(ClusterShape("host"))
    second["metadata"]["name"] += "-second"
    await admin.create(AGENT_PODS.path(namespace="kube-system"), second)  # so that nodes are looked at
    # in a hollow cluster administrators alone may exec
    client.websocket = admin.websocket  # type: ignore[method-assign]
    host, status = ClusterClient(client, shape, POD), StatusInMemory()
    agent = KubeCertAgent(host, shape, KubernetesIssuer(), status, clock=SystemClock())
    await agent.reconcile(KEY)  # makes the Deployment
    path = DEPLOYMENTS.path(name, namespace=NAMESPACE)
    owners = (await admin.get(path))["metadata"]["ownerReferences"]
    assert [(each["kind"], each["name"]) for each in owners] == [("StatefulSet", ACCOUNT)]
    again = KubeCertAgent(host, replace(shape, image="other"), KubernetesIssuer(), status, clock=SystemClock())
    await again.reconcile(KEY)  # updates it
    [(label, _)] = shape.selector.items()
    old = await admin.get(path)
    await admin.delete(path)
    old["spec"]["selector"]["matchLabels"] = old["spec"]["template"]["metadata"]["labels"] = {label: "v0", **shape.labels}
    await admin.create(DEPLOYMENTS.path(namespace=NAMESPACE), {**old, "metadata": {"name": name}})
    [outdated] = await admin.list(AGENT_PODS.path(namespace=NAMESPACE), {"labelSelector": f"{label}=v0"})
    await OutdatedPods(host, shape, status.leads).reconcile(outdated["metadata"]["name"])
    await agent.reconcile(KEY)  # makes it anew
    async with AsyncExitStack() as stack:
        for mirror in mirrors(client, shape, lambda: None, lambda _name: None).values():
            await mirror._list()
            query = {**mirror._query, "resourceVersion": mirror._revision or ""}
            await stack.enter_async_context(client.watch(mirror.path, query, within=timedelta(seconds=20)))


IDLE = {"kubernetesCA": ["get pods/exec", "create pods/exec"]}
"""Not seen here: exec is a get before Kubernetes 1.35, and a create from then on."""
CASES: dict[str, tuple[dict[str, Any], Live]] = {
    "adminKubeconfig": (VALUES["hub"], keep_the_admin_kubeconfig),
    "ca.keyPlace": (BARE | {"ca": {"keyPlace": "secret"}}, keep_the_keys_of_its_cas),
    "election.lock": (BARE | {"election": {"lock": "kubernetes"}}, hold_the_lease),
    "kubernetesCA": (BARE | {"kubernetesCA": {"enabled": True}}, run_the_cert_agent),
    "aggregation": (BARE | {"aggregation": {"enabled": True}}, keep_the_bundle),
}


@pytest.mark.parametrize("name", CASES)
async def test_every_call_has_its_right_and_every_right_its_call(name: str) -> None:
    values, live = CASES[name]
    documents, calls = render("hub", values), Calls()
    async with hosted(values, calls) as (account, admin):
        await live(account, admin, environment(documents))
    assert list(calls.refused) == []
    assert [f"{right.verb} {right.resource}" for right in calls.idle(rights_of(documents, NAMESPACE))] == IDLE.get(name, [])
    assert calls.allowed


T = TypeVar("T")
RELEASE = "muster"
PLURALS = {"Ingress": "ingresses", "NetworkPolicy": "networkpolicies", "Gateway": "gateways"}
SECRETS = RestResource("", "v1", "secrets")
WALKS = {
    "hub": ("least", "full", "seen", "aggregated", "gateway of its own", "settings", "ingress", "restored"),
    "spoke": ("least", "full", "rights of a hosted one", "several processes", "closed", "seen"),
}  # values, one upgrade after the other: together they have every kind of object, and each leaves some of the ones before


def path_of(document: dict[str, Any]) -> str:
    group, _, version = document["apiVersion"].rpartition("/")
    plural = PLURALS.get(document["kind"], document["kind"].lower() + "s")
    metadata = document["metadata"]
    return RestResource(group, version, plural).path(metadata["name"], namespace=metadata.get("namespace", ""))


def installed(documents: Iterable[dict[str, Any]]) -> set[str]:
    """Those that a release holds: hooks are nobody's."""
    return {path_of(each) for each in documents if "helm.sh/hook" not in each["metadata"].get("annotations", {})}


@dataclass
class Stage:
    cluster: HollowCluster
    admin: KubeClient

    async def helm(self, act: Callable[[helm_python.Config], T]) -> T:
        """On a thread: the library blocks, and the cluster answers on this loop."""

        def acted() -> T:
            kubeconfig = yaml.safe_dump(self.cluster.kubeconfig())
            with helm_python.Config(kubeconfig_content=kubeconfig, namespace=NAMESPACE, qps=1000, burst_limit=1000) as config:
                return act(config)

        return await asyncio.to_thread(acted)

    async def install(self, chart: str, values: dict[str, Any]) -> Any:
        return await self.helm(
            lambda config: config.install(str(CHARTS / chart), RELEASE, values, namespace=NAMESPACE, create_namespace=True)
        )

    async def upgrade(self, chart: str, values: dict[str, Any]) -> Any:
        return await self.helm(lambda config: config.upgrade(str(CHARTS / chart), RELEASE, values, namespace=NAMESPACE))

    async def there(self, paths: Iterable[str]) -> set[str]:
        """Which of the objects the cluster has."""
        return {path for path in paths if await self._exists(path)}

    async def _exists(self, path: str) -> bool:
        try:
            await self.admin.get(path)
        except NotFoundError:
            return False
        return True


ADDONS = "/api/v1/namespaces/open-cluster-management-agent-addon"
CLAIMS = {f"/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims/{name}" for name in (f"{ACCOUNT}-backup", f"data-{POD}")}
KEPT = {ADDONS, *CLAIMS}
RESTORED = {"database": {"restored": True}}  # of a release that may change its kind of database


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with HollowCluster(ClusterShape("host")) as cluster, await KubeClient.from_document(cluster.kubeconfig()) as admin:
        yield Stage(cluster, admin)


@pytest.mark.parametrize("chart", WALKS)
async def test_a_release_holds_what_its_values_say_through_upgrades_a_rollback_and_its_end(stage: Stage, chart: str) -> None:
    values = {name: merged(MATRIX[chart][name], RESTORED if chart == "hub" else {}) for name in WALKS[chart]}
    wanted = {name: installed(render(chart, values[name])) - KEPT for name in values}
    every = set().union(*wanted.values())
    kinds = [{one["kind"] for name in names for one in render(chart, MATRIX[chart][name])} for names in (wanted, MATRIX[chart])]
    assert kinds[0] == kinds[1], "the walk has every kind that the chart can make"
    first, *others = wanted
    await stage.install(chart, values[first])
    assert await stage.there(every) == wanted[first]
    for name in others:
        await stage.upgrade(chart, values[name])
        assert await stage.there(every) == wanted[name], name
    await stage.helm(lambda config: config.rollback(RELEASE, version=1))
    assert await stage.there(every) == wanted[first]
    await stage.helm(lambda config: config.uninstall(RELEASE))
    assert await stage.there(every) == set()
    assert await stage.there(KEPT) == (CLAIMS if chart == "hub" else {ADDONS}), "others may use it, or a hub to come"


async def test_what_the_hub_wrote_outlives_upgrades_and_rollbacks(stage: Stage) -> None:
    values = MATRIX["hub"]["aggregated"]
    await stage.install("hub", values)
    secret = SECRETS.path("muster-muster-hub-admin", namespace=NAMESPACE)
    held = {"kubeconfig": base64.b64encode(b"the operator's").decode()}
    await stage.admin.update(secret, {**await stage.admin.get(secret), "data": held})
    [registered, *_] = sorted(path_of(each) for each in of_kind(render("hub", values), "APIService"))
    found = await stage.admin.get(registered)
    await stage.admin.update(registered, {**found, "spec": {**found["spec"], "caBundle": "Q0E="}})

    await stage.upgrade("hub", values | {"beatInterval": "5s"})
    assert ((await stage.admin.get(secret))["data"], (await stage.admin.get(registered))["spec"]["caBundle"]) == (held, "Q0E=")
    await stage.helm(lambda config: config.rollback(RELEASE))
    assert (await stage.admin.get(secret))["data"] == held


async def test_an_upgrade_that_would_strand_all_agents_is_refused_and_a_move_is_not(stage: Stage) -> None:
    moved = MATRIX["hub"]["moved"]
    shared = {name: value for name, value in moved.items() if name != "restore"}
    await stage.install("hub", VALUES["hub"])
    with pytest.raises(helm_python.HelmError, match=r"hub in SQLite.*restore\.fromSQLite=true"):
        await stage.upgrade("hub", shared)
    await stage.upgrade("hub", moved)
    assert (await stage.admin.get(SETS.path("muster-muster-hub", namespace=NAMESPACE)))["spec"]["replicas"] == 0
    await stage.upgrade("hub", shared)
    with pytest.raises(helm_python.HelmError, match=r"hub in PostgreSQL, and these values name no database"):
        await stage.upgrade("hub", VALUES["hub"])
    await stage.upgrade("hub", VALUES["hub"] | {"database": {"restored": True}})

    path = SECRETS.path("muster-muster-hub-admin", namespace=NAMESPACE)
    await stage.admin.update(path, {**await stage.admin.get(path), "stringData": None, "data": {"ca.crt": "b25lCnR3bwo="}})
    for name, certificate in (("other", "dGhyZWUK"), ("own", "dHdvCg==")):
        secret = {"metadata": {"name": name}, "data": {"ca.crt": certificate}}
        await stage.admin.create(SECRETS.path(namespace=NAMESPACE), secret)
    with pytest.raises(helm_python.HelmError, match=r"the Secret other has another CA than the hub of this release"):
        await stage.upgrade("hub", VALUES["hub"] | {"keys": {"existingSecret": "other"}})
    await stage.upgrade("hub", VALUES["hub"] | {"keys": {"existingSecret": "own"}})
    await stage.upgrade("hub", VALUES["hub"] | {"keys": {"existingSecret": "other"}, "ca": {"keyPlace": "database"}})


@pytest.mark.kubectl
async def test_the_command_of_the_notes_fetches_the_kubeconfig_for_its_user_alone(stage: Stage, tmp_path: Path) -> None:
    await stage.install("hub", VALUES["hub"])
    path = SECRETS.path("muster-muster-hub-admin", namespace=NAMESPACE)
    data = {"kubeconfig": base64.b64encode(b"apiVersion: v1\n").decode()}
    await stage.admin.update(path, {**await stage.admin.get(path), "data": data})
    with helm_python.Chart.load(CHARTS / "hub") as loaded:
        rendered = loaded.render(VALUES["hub"], name=RELEASE, namespace=NAMESPACE)
    [notes] = [text for name, text in rendered.items() if name.endswith("NOTES.txt")]
    [command] = [line.strip() for line in notes.splitlines() if "> admin.kubeconfig" in line]
    (tmp_path / "host.kubeconfig").write_text(yaml.safe_dump(stage.cluster.kubeconfig()))
    ran = await asyncio.to_thread(
        subprocess.run,
        ["sh", "-ec", command],
        cwd=tmp_path,
        env={**os.environ, "KUBECONFIG": str(tmp_path / "host.kubeconfig"), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "admin.kubeconfig").read_bytes() == b"apiVersion: v1\n"
    assert (tmp_path / "admin.kubeconfig").stat().st_mode & 0o077 == 0


def values_of(line: str, before: dict[str, Any]) -> tuple[str, str, dict[str, Any]]:
    """Release, chart and values of `helm install NAME CHART` or `helm upgrade NAME CHART`; `before`: of the release so far."""
    words = deque(shlex.split(line, comments=True)[2:])
    names: list[str] = []
    values: dict[str, Any] = {}
    reuses = False
    while words:
        word = words.popleft()
        if word in ("--namespace", "-n"):
            words.popleft()
        elif word == "--set":
            _merge(values, helm_python.parse_set_string(words.popleft()))
        elif word == "--set-file":
            _merge(values, helm_python.parse_set_string(words.popleft().partition("=")[0] + "=content"))
        elif word in ("--reuse-values", "--reset-then-reuse-values"):
            reuses = True
        elif word != "--create-namespace":
            assert not word.startswith("-"), f"nobody checks {word}"
            names.append(word)
    [name, chart] = names
    return name, chart, merged(before.get(name, {}) if reuses else {}, values)


def merged(values: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    whole = copy.deepcopy(values)
    _merge(whole, more)
    return whole


def _merge(values: dict[str, Any], more: dict[str, Any]) -> None:
    for name, value in more.items():
        if isinstance(value, dict):
            _merge(values.setdefault(name, {}), value)
        else:
            values[name] = value


DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted(CHARTS.rglob("*.md"))]
FIRST = {"advertise": {"grpc": "hub.example.com:8443", "https": "hub.example.com:6443"}}
"""Of the release `hub` on pages that begin with an upgrade."""


def test_values_in_helm_commands_of_documents_are_rendered() -> None:
    flaws, count = [], 0
    for page in DOCUMENTS:
        releases: dict[str, dict[str, Any]] = {"hub": FIRST}
        blocks = "".join(re.findall(r"^```sh\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL))
        for line in blocks.replace("\\\n", " ").splitlines():
            if line.startswith(("helm install ", "helm upgrade ")):
                name, chart, releases[name] = values_of(line, releases)
                count += 1
                try:
                    render(Path(chart).name, releases[name])
                except helm_python.HelmError as error:
                    flaws.append(f"{page.relative_to(ROOT)}: {line}: {error}")
    assert not flaws, "\n".join(flaws)
    assert count


NAMED_OBJECT = re.compile(r"\b(?:deploy|statefulset|cronjob|job|svc|pod)/([a-z0-9-]+)|\b(\w+-muster-(?:hub|spoke)[a-z0-9-]*)")


def test_objects_that_documents_name_are_rendered() -> None:
    rendered = [*render("hub", MATRIX["hub"]["restored"], name="hub"), *render("spoke", VALUES["spoke"], name="spoke")]
    names = {each["metadata"]["name"] for each in rendered} | {"hub-muster-hub-0"}
    named = {(page.name, one or other) for page in DOCUMENTS for one, other in NAMED_OBJECT.findall(page.read_text())}
    assert [each for each in sorted(named) if each[1] not in names] == []
    assert len(named) > 4
