"""The spoke's adapters against a hollow cluster, healthy and with faults; and a hosted agent between two clusters."""

import asyncio
import json
from base64 import b64encode
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from hollow.cluster import HollowCluster
from hollow.faults import Faults
from hollow.objects import ClusterShape
from machinery.client.leaselock import LeaseLock
from machinery.client.ownership import Namespace
from machinery.client.rest import KubeClient
from machinery.election import Candidate
from machinery.errors import DeadlineError, ForbiddenError, InvalidError, NotFoundError, UnauthorizedError, UnavailableError
from machinery.identity import AddOnName, ClusterName, HubId
from machinery.meta.timestamps import format_micro_time
from machinery.runtime.clock import ManualClock, SystemClock
from spoke.agent.leader_election import OwnLock
from spoke.agent.loop import SpokeAgent
from spoke.app import addon_secrets_of
from spoke.bootstraps.listing import Bootstraps, BootstrapSecret
from spoke.bootstraps.watch import BootstrapWatch
from spoke.cli.commands import examine
from spoke.cli.findings import DoctorStep
from spoke.cluster import LEASES, NAMESPACES, FollowedKubeconfig, KubeCluster
from spoke.credentials.kubernetes_secrets import SECRETS, KubeRemains, KubeSecrets, OwnedSecrets
from spoke.domain.addon import KUBE_SIGNER, AddOn, AddOnRegistration
from spoke.domain.report import ManagedNamespace
from spoke.observability import probes
from spoke.observability.progress import AgentProgress
from spoke.ports.cluster import ApiServerHealth, RefusedSecretError, SecretPlace, Secrets
from spoke.settings import SpokeSettings
from spoke.settings.fields import FeatureGates
from tests.checks import check_refusal, check_refusal_of
from tests.fakes.hub import MemoryHub
from tests.fakes.stage import Stage, running, until

SHORT = timedelta(milliseconds=100)
AGENT = "open-cluster-management-agent"
OWNER = "hub-kubeconfig-secret"
OURS = {"app.kubernetes.io/part-of": "muster", "app.kubernetes.io/managed-by": "muster-agent"}
A, B = (HubId(f"{letter * 8}-0000-4000-8000-000000000001") for letter in "ab")


@pytest.fixture
async def namespace(client: KubeClient) -> None:
    """A fresh cluster has no namespace for the agent."""
    await client.create("/api/v1/namespaces", {"metadata": {"name": AGENT}})


NO_NAMESPACES = [
    {"apiGroups": [""], "resources": ["secrets"], "verbs": ["*"]},
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["*"]},
]


async def restricted_to(hollow_cluster: HollowCluster, client: KubeClient, rules: list[dict[str, list[str]]]) -> dict[str, Any]:
    """The kubeconfig of a ServiceAccount with these rules alone."""
    roles = "/apis/rbac.authorization.k8s.io/v1"
    account = {"kind": "ServiceAccount", "name": "default", "namespace": "default"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "agent"}
    await client.create(f"{roles}/clusterroles", {"metadata": {"name": "agent"}, "rules": rules})
    await client.create(f"{roles}/clusterrolebindings", {"metadata": {"name": "agent"}, "subjects": [account], "roleRef": role})
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 600}}
    answer = await client.create("/api/v1/namespaces/default/serviceaccounts/default/token", asked)
    kubeconfig = hollow_cluster.kubeconfig()
    kubeconfig["users"][0]["user"] = {"token": answer["status"]["token"]}
    return kubeconfig


async def test_doctor_names_every_missing_permission(hollow_cluster: HollowCluster, client: KubeClient, tmp_path: Path) -> None:
    everything = [*NO_NAMESPACES, {"apiGroups": ["*"], "resources": ["*"], "verbs": ["list", "watch", "create", "patch"]}]
    file = tmp_path / "kubeconfig"
    settings = SpokeSettings(
        bootstrap_kubeconfig=(tmp_path / "none",), kubeconfig=file, attestation_service_account="default/agent"
    )

    async def look() -> DoctorStep:
        async with examine(settings) as steps:
            return {step.name: step async for step in steps()}["permissions"]

    file.write_text(json.dumps(await restricted_to(hollow_cluster, client, everything)))
    assert (step := await look()).said == 'missing: get namespaces "kube-system"', step
    one = {"apiGroups": [""], "resources": ["namespaces"], "resourceNames": ["kube-system"], "verbs": ["get"]}
    for rules, lacked in (
        ([*everything, one], ()),
        (NO_NAMESPACES, ("list, watch nodes", "list, create, patch namespaces", "list, watch clusterclaims.cluster")),
        (NO_NAMESPACES, ("create events in", 'create serviceaccounts/token "agent" in namespace "default"')),
        ([], (f'get, list, watch, create, update, delete secrets in namespace "{AGENT}"', 'leases.coordination.k8s.io "spoke')),
        ([], ('secrets in namespace "open-cluster-management-agent-addon"', "get leases.coordination.k8s.io in")),
    ):
        await client.patch("/apis/rbac.authorization.k8s.io/v1/clusterroles/agent", {"rules": rules})
        step = await look()
        assert (step.ok, [each for each in lacked if each not in step.said]) == (not lacked, []), step


async def test_namespace_is_created_once_for_an_object_or_reported(hollow_cluster: HollowCluster, client: KubeClient) -> None:
    kubeconfig = await restricted_to(hollow_cluster, client, NO_NAMESPACES)

    def lock_of(client: KubeClient) -> OwnLock:
        return OwnLock(LeaseLock(client, AGENT, "spoke-agent", clock=SystemClock()), home=Namespace(client, AGENT))

    def writes(client: KubeClient, name: str) -> tuple[Callable[[], Awaitable[object]], ...]:
        lock, secrets = lock_of(client), KubeSecrets(client, AGENT)
        return (
            lambda: lock.take(None, Candidate(name, name), timedelta(seconds=15)),
            lambda: secrets.write(name, {"a": b"1"}, None),
        )

    async with await KubeClient.from_document(kubeconfig) as restricted:
        for write in writes(restricted, "restricted"):
            with pytest.raises(ForbiddenError, match=rf"{AGENT}.* does not exist .*`kubectl create namespace {AGENT}`"):
                await write()
    for number, write in enumerate(writes(client, "first")):
        await write()
        assert len(await client.list("/api/v1/namespaces")) == 5, number
        await client.delete(f"/api/v1/namespaces/{AGENT}")
        await check_refusal_of(NotFoundError, write(), match=AGENT)

    for write in writes(client, "s"):
        await write()
    lock, secrets = lock_of(client), KubeSecrets(client, AGENT)
    await lock.read()
    await secrets.read("s")
    await client.delete(f"/api/v1/namespaces/{AGENT}")
    for late in (secrets.write("late", {"a": b"1"}, None), lock.take(None, Candidate("b", "b"), timedelta(seconds=15))):
        await check_refusal_of(NotFoundError, late, match=AGENT)


async def test_claims_and_properties_are_reported_by_their_gates(hollow_cluster: HollowCluster, client: KubeClient) -> None:
    hidden = {"labels": {"open-cluster-management.io/spoke-only": ""}}
    properties = "/apis/about.k8s.io/v1alpha1/clusterproperties"
    body = {"apiVersion": "about.k8s.io/v1alpha1", "kind": "ClusterProperty"}
    await client.create(properties, {**body, "metadata": {"name": "id.k8s.io"}, "spec": {"value": "of the property"}})
    await client.create(properties, {**body, "metadata": {"name": "hidden", **hidden}, "spec": {"value": "x"}})

    async def reported(**gates: bool) -> dict[str, str]:
        return {claim.name: claim.value for claim in await KubeCluster(client, gates=FeatureGates(**gates)).claims()}

    both = await reported(cluster_property=True)
    assert (both["id.k8s.io"], len(both)) == ("of the property", hollow_cluster.shape.claims)
    assert await reported(cluster_claim=False, cluster_property=True) == {"id.k8s.io": "of the property"}
    assert (await reported())["id.k8s.io"] != "of the property"
    assert await reported(cluster_claim=False) == {}

    await client.patch("/apis/cluster.open-cluster-management.io/v1alpha1/clusterclaims/id.k8s.io", {"metadata": hidden})
    claims = await reported()
    assert "id.k8s.io" not in claims
    assert claims["kubeversion.open-cluster-management.io"] == hollow_cluster.shape.version
    assert (len(claims), await KubeCluster(client).uid()) == (hollow_cluster.shape.claims - 1, hollow_cluster.shape.cluster_uid)


async def test_health_of_the_cluster_is_that_of_its_api_server(hollow_cluster: HollowCluster, client: KubeClient) -> None:
    cluster, nodes = KubeCluster(client), hollow_cluster.shape.nodes
    hollow_cluster.faults = Faults(no_livez=True)
    assert await cluster.health() == ApiServerHealth(ok=True, status_code=200, detail="ok"), "healthz decides"
    hollow_cluster.faults = Faults(no_livez=True, not_live=True)
    assert (await cluster.health()).status_code == 500
    hollow_cluster.faults = Faults(not_live=True)
    health = await cluster.health()
    assert (health.ok, health.status_code) == (False, 500)
    assert "[-]etcd failed" in health.detail
    assert len(await cluster.nodes()) == nodes
    hollow_cluster.faults = Faults(error=True)
    await check_refusal_of(UnavailableError, cluster.nodes(), match="the fault `error`")
    assert (await cluster.health()).ok is False
    hollow_cluster.faults = Faults(slow=SHORT)
    assert len(await cluster.nodes()) == nodes

    for faults in (Faults(slow=timedelta(seconds=30)), Faults(hang=True)):
        hollow_cluster.faults = faults
        async with await KubeClient.from_document(hollow_cluster.kubeconfig(), within=SHORT) as hasty:
            health = await KubeCluster(hasty, health_timeout=SHORT).health()
            assert (health.ok, health.status_code) == (False, None), faults
            assert "in time" in health.detail, faults
            await check_refusal_of(DeadlineError, KubeCluster(hasty).nodes())

    await hollow_cluster.stop()
    health = await cluster.health()
    assert (health.ok, health.status_code) == (False, None)
    assert hollow_cluster.url in health.detail


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
@pytest.mark.usefixtures("namespace")
async def test_secrets_are_written_whole_or_refused(hollow_cluster: HollowCluster, client: KubeClient) -> None:
    path, secrets = SECRETS.path(namespace=AGENT), KubeSecrets(client, AGENT)
    made = {"metadata": {"name": "s", "labels": {"owner": "somebody"}}, "type": "Opaque", "data": {"a": "MQ=="}}
    await client.create(path, {"apiVersion": "v1", "kind": "Secret", **made})
    written = await secrets.write("s", {"b": b"2"}, (await secrets.read("s")).version)
    document = await client.get(f"{path}/s")
    assert document["metadata"]["labels"] == {"owner": "somebody"}
    assert (document["type"], document["data"]) == ("Opaque", {"b": "Mg=="})
    await check_refusal_of(InvalidError, secrets.write("large", {"a": b"x" * 1_100_000}, None))

    hollow_cluster.faults = Faults(refuse_secret_writes=True)
    for write in (secrets.write("s", {"a": b"2"}, written.version), secrets.write("t", {"a": b"2"}, None), secrets.delete("s")):
        await check_refusal_of(ForbiddenError, write)
    assert await secrets.read("s") == written


async def test_changes_of_a_secret_continue_after_an_outage(hollow_cluster: HollowCluster, client: KubeClient) -> None:
    secrets = KubeSecrets(client, AGENT)
    first = await secrets.write("s", {"a": b"1"}, None)
    async with asyncio.timeout(20), aclosing(secrets.changes("s")) as changes:  # type: ignore[type-var]
        assert await anext(changes) == first
        await hollow_cluster.stop()
        await hollow_cluster.start()
        await hollow_cluster.forget_history()
        second = await secrets.write("s", {"a": b"2"}, first.version)
        assert await anext(changes) == second


async def test_burst_of_node_changes_is_one_and_a_heartbeat_is_none(hollow_cluster: HollowCluster, client: KubeClient) -> None:
    cluster = KubeCluster(client, coalesce=timedelta(milliseconds=300))
    claim, marks = "/apis/cluster.open-cluster-management.io/v1alpha1/clusterclaims/id.k8s.io", {"annotations": {"beat": "1"}}
    async with asyncio.timeout(20), aclosing(cluster.changes()) as changes:  # type: ignore[type-var]
        assert {await anext(changes), await anext(changes)} == {"nodes", "claims"}
        for index in range(hollow_cluster.shape.nodes):
            await client.patch(f"/api/v1/nodes/test-node-{index}", {"spec": {"unschedulable": True}})
        assert await anext(changes) == "nodes"
        await client.patch("/api/v1/nodes/test-node-0", {"metadata": marks})
        await client.delete(claim)
        assert await anext(changes) == "claims"


async def put_kubeconfig(client: KubeClient, name: str, kubeconfig: bytes) -> None:
    """As an operator does, with kubectl and none of our labels."""
    data = {"kubeconfig": b64encode(kubeconfig).decode()}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": AGENT}, "data": data}
    if (await KubeSecrets(client, AGENT).read(name)).version is None:
        await client.create(SECRETS.path(namespace=AGENT), secret)
    else:
        await client.patch(SECRETS.path(name, namespace=AGENT), {"data": data})


def kubeconfig(hub: HubId) -> bytes:
    return MemoryHub(ManualClock(), hub_id=hub).bootstrap_kubeconfig()


@pytest.mark.usefixtures("namespace")
async def test_bootstrap_secrets_are_followed(client: KubeClient) -> None:
    secrets = KubeSecrets(client, AGENT)
    await put_kubeconfig(client, "east", kubeconfig(A))
    watch = BootstrapWatch(Bootstraps([BootstrapSecret(secrets, "east"), BootstrapSecret(secrets, "west")]))

    def lists(*hubs: HubId) -> Callable[[], bool]:
        return lambda: [hub.hub_id for hub in watch.read().hubs] == list(hubs)

    async with watch.watching():
        assert lists(A)(), "read before anything else is done"
        await put_kubeconfig(client, "west", kubeconfig(B))
        await until(lists(A, B))
        await put_kubeconfig(client, "west", b"nonsense: [")
        await until(lambda: watch.read().errors)
        assert lists(A, B)(), "the last hub stays while a source cannot be read"
        await secrets.delete("east")
        await until(lists(B))
        assert "there is no secret" in str(watch.listing.error)


async def put_secret(client: KubeClient, namespace: str, name: str, labels: dict[str, str], **held: str) -> None:
    data = {key.replace("_", "-"): b64encode(value.encode()).decode() for key, value in held.items()}
    body = {"metadata": {"name": name, "namespace": namespace, "labels": labels}, "data": data}
    await client.create(SECRETS.path(namespace=namespace), body)


async def test_addon_secret_of_others_is_left_alone_and_one_of_ocm_adopted_on_demand(client: KubeClient) -> None:
    secrets, path = OwnedSecrets(client, "default"), SECRETS.path(namespace="default")
    own = await secrets.write("own", {"a": b"1"}, None)
    assert await secrets.write("own", {"a": b"2"}, own.version) == await secrets.read("own")
    await put_secret(client, "default", "chart", {"app.kubernetes.io/part-of": "muster"}, cluster_name="c1", tls_key="k")
    await put_secret(client, "default", "ocm", {}, **{"cluster-name": "c1", "tls.crt": "c", "tls.key": "k"})
    foreign = {each["metadata"]["name"]: each for each in await client.list(path)}
    for name in ("chart", "ocm"):
        version = foreign[name]["metadata"]["resourceVersion"]
        for touch in (secrets.read(name), secrets.write(name, {"a": b"1"}, version), secrets.delete(name)):
            await check_refusal_of(RefusedSecretError, touch, match=f'"{name}" in namespace "default".*--adopt-addon-secrets')
        assert await client.get(f"{path}/{name}") == foreign[name]
    adopting = OwnedSecrets(client, "default", adopts=True)
    await check_refusal_of(RefusedSecretError, adopting.read("chart"))
    await adopting.write("ocm", {"a": b"1"}, (await adopting.read("ocm")).version)
    assert (await secrets.read("ocm")).contents == {"a": b"1"}, "it is the agent's own now"
    await secrets.delete("ocm")
    await secrets.delete("ocm")

    settings = SpokeSettings(bootstrap_kubeconfig=(Path("b"),), component_namespace=AGENT, addon_namespaces=("default", "more"))
    secrets_of = addon_secrets_of(settings, client, client)
    for namespace in settings.addon_namespaces:
        secrets_of(AddOn(AddOnName("logs"), namespace))
    for namespace in ("", AGENT, "kube-system"):
        check_refusal(RefusedSecretError, secrets_of, AddOn(AddOnName("logs"), namespace), match="default, more")
    with pytest.raises(ValidationError, match="the agent's own"):
        SpokeSettings(bootstrap_kubeconfig=(Path("b"),), component_namespace="default", addon_namespaces=("default",))


@pytest.mark.usefixtures("namespace")
async def test_only_secrets_of_this_clusters_agent_are_found_and_removed(client: KubeClient) -> None:
    remains = KubeRemains(client, client, AGENT, lease="spoke-agent", addon_namespaces=("default", "nowhere"))
    for name in (OWNER, f"{OWNER}-0f1e2d3c", "work-hub-kubeconfig-0f1e2d3c"):
        await put_secret(client, AGENT, name, OURS, cluster_name="c1", agent_name="a")
    await put_secret(client, AGENT, f"{OWNER}-of-somebody", {}, cluster_name="c1")
    await put_secret(client, "default", "work-hub-kubeconfig", OURS, cluster_name="c1")
    await put_secret(client, "default", "of-another-cluster", OURS, cluster_name="c2")
    await put_secret(client, "default", "of-another-agent", OURS, cluster_name="c1", agent_name="b")
    await put_secret(client, "default", "of-the-hub", OURS, key="k")
    await put_secret(client, "default", "of-nobody", {}, cluster_name="c1")
    await put_secret(client, "default", "of-a-chart", {"app.kubernetes.io/part-of": "muster"}, cluster_name="c1")
    await put_secret(client, "kube-public", "not-listed", OURS, cluster_name="c1")
    assert await remains.slots() == [f"{OWNER}-0f1e2d3c"]
    found = await remains.addons(ClusterName("c1"))
    assert found == [SecretPlace("default", "work-hub-kubeconfig"), SecretPlace(AGENT, "work-hub-kubeconfig-0f1e2d3c")]
    for place in found:
        await remains.remove(place)
        await remains.remove(place)
    assert not await remains.addons(ClusterName("c1"))
    await remains.forget_lease()


async def test_running_agent_takes_over_a_replaced_kubeconfig_of_the_same_cluster_only(
    tmp_path: Path, client: KubeClient, hollow_cluster: HollowCluster
) -> None:
    file, uid, document = tmp_path / "spoke.kubeconfig", hollow_cluster.shape.cluster_uid, hollow_cluster.kubeconfig()
    wrong_token = {**document, "users": [{**document["users"][0], "user": {"token": "wrong"}}]}
    for content in ("", "not: [yaml", "apiVersion: v1", yaml.safe_dump(wrong_token)):
        file.write_text(content)
        assert not await FollowedKubeconfig(client, file).reload(), content
        assert await KubeCluster(client).uid() == uid
    async with await KubeClient.from_file(file) as wrong:
        await check_refusal_of(UnauthorizedError, KubeCluster(wrong).uid())

    followed, server = FollowedKubeconfig(client, file), client.server
    following = asyncio.create_task(followed.run(timedelta(milliseconds=10)))
    file.write_text(yaml.safe_dump(document).replace("127.0.0.1", "localhost"))  # the same server by another name
    await until(lambda: client.server != server)
    following.cancel()
    assert await KubeCluster(client).uid() == uid

    followed = FollowedKubeconfig(client, file)
    async with HollowCluster(ClusterShape("other")) as other:
        file.write_text(yaml.safe_dump(other.kubeconfig()))
        assert await followed.reload()
    assert await KubeCluster(client).uid() == uid


NEAR, FAR = AddOnName("near"), AddOnName("far")


async def test_hosted_agent_keeps_its_secrets_at_the_management_cluster(hollow_cluster: HollowCluster, tmp_path: Path) -> None:
    registration = (AddOnRegistration(KUBE_SIGNER, "user", driver="csr"),)
    async with (
        HollowCluster(ClusterShape("management", nodes=1)) as hosting,
        await KubeClient.from_document(hosting.kubeconfig()) as management,
        await KubeClient.from_document(hollow_cluster.kubeconfig()) as managed,
    ):
        for client in (management, managed):
            await client.create(NAMESPACES.path(), {"metadata": {"name": "addons"}})
        await lease(managed, NEAR)
        await lease(management, FAR)
        clock = ManualClock(SystemClock().now())
        hub, file = MemoryHub(clock), tmp_path / "bootstrap.kubeconfig"
        file.write_text(hub.bootstrap_kubeconfig().decode())
        stage = Stage(hub, clock, file)
        stage.hub.namespaces = (ManagedNamespace("blue", "team"),)
        stage.hub.addons = (
            AddOn(NEAR, "addons", registrations=registration),
            AddOn(FAR, "addons", hosting_cluster_name="management", registrations=registration),
        )

        def of_addon(addon: AddOn) -> Secrets:
            return KubeSecrets(management if addon.hosted else managed, addon.namespace)

        world = replace(stage.world(), managed_cluster=KubeCluster(managed), management=KubeCluster(management), directory=None)
        world = replace(world, secrets=KubeSecrets(management, AGENT), addon_secrets=of_addon)
        async with running(SpokeAgent(stage.options, world)):
            await until(
                lambda: addon_events(stage) >= {(NEAR, "Updated"), (FAR, "Updated"), (NEAR, "Rotated"), (FAR, "Rotated")}, 30
            )
            await until(lambda: stage.hub.session.reports and stage.hub.session.reports[-1].namespaces, 30)
        assert "hub-kubeconfig-secret" in await secret_names(management, AGENT)
        assert (await secret_names(managed, AGENT), await secret_names(managed, "addons")) == (set(), {"near-hub-kubeconfig"})
        assert await secret_names(management, "addons") == {"far-hub-kubeconfig"}
        assert stage.hub.session.reports[-1].node_count == hollow_cluster.shape.nodes
        assert next(iter(stage.hub.clusters.values())).cluster_uid == hollow_cluster.shape.cluster_uid
        assert await managed.get(NAMESPACES.path("blue"))
        assert "blue" not in {item["metadata"]["name"] for item in await management.list(NAMESPACES.path())}


async def lease(client: KubeClient, name: str) -> None:
    renewed = format_micro_time(SystemClock().now())
    body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}, "spec": {"renewTime": renewed}}
    await client.create(LEASES.path(namespace="addons"), body)


def addon_events(stage: Stage) -> set[tuple[str, str]]:
    """An add-on and the event that was received for it."""
    words = {"ManagedClusterAddOnLeaseUpdated": "Updated", "ClientCertificateUpdated": "Rotated"}
    reports = [report for session in stage.hub.sessions for report in session.addon_reports]
    return {(name, words.get(entry.reason, entry.reason)) for name, entries in reports for entry in entries}


async def secret_names(client: KubeClient, namespace: str) -> set[str]:
    return {item["metadata"]["name"] for item in await client.list(SECRETS.path(namespace=namespace))}


async def test_a_probe_with_a_request_that_is_too_long_is_closed_without_an_answer(caplog: pytest.LogCaptureFixture) -> None:
    async with probes.serve(AgentProgress(SystemClock()), "127.0.0.1", 0) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"x" * (4 * probes.LONGEST_REQUEST))
        async with asyncio.timeout(10):
            with suppress(ConnectionError):  # closed with unread bytes
                assert await reader.read() == b""
        writer.close()
    assert [record for record in caplog.records if record.name == "asyncio"] == [], "an error that nobody handles"
