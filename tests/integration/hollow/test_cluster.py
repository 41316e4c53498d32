"""A hollow cluster: users, roles, faults and restarts, kubectl and our reflector against it; and a load at a whole hub."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from io import StringIO
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from hollow.cluster import HollowCluster
from hollow.faults import ADMIN_PATH, HEALTHY, Faults
from hollow.load.fleet import Fleet, dial_over_grpc, read_bootstrap
from hollow.load.report import LoadResult, Verdict
from hollow.load.run import Progress, measure
from hollow.load.settings import Limits, LoadSettings, Profile
from hollow.objects import ClusterShape
from machinery.apiserver.access import Attributes, Decision
from machinery.apiserver.storage import Actor
from machinery.client.kubeconfig import ClusterEntry, HubEndpoint, write_kubeconfig
from machinery.client.reflector import ObjectKey, Reflector, mirrored
from machinery.client.rest import KubeClient, Object, RestResource
from machinery.errors import ForbiddenError, InvalidError, NotFoundError, UnauthorizedError, UnavailableError
from machinery.runtime.backoff import Backoff
from machinery.runtime.clock import SystemClock
from machinery.runtime.tasks import cancel_and_wait
from tests.checks import check_refusal_of
from tests.fakes.inprocess_hub import HUB
from tests.fakes.rpc_stage import RpcStage, rpc_stage
from tests.programs import command, run
from tests.trials import repeated

NODES = "/api/v1/nodes"
LONG = timedelta(seconds=30)
ACCOUNTS = RestResource("", "v1", "serviceaccounts")
SECRETS = RestResource("", "v1", "secrets")
ROLES = RestResource("rbac.authorization.k8s.io", "v1", "roles")
BINDINGS = RestResource("rbac.authorization.k8s.io", "v1", "rolebindings")
CLUSTER_BINDINGS = RestResource("rbac.authorization.k8s.io", "v1", "clusterrolebindings")
USER = "system:serviceaccount:default:reader"


@dataclass
class Stage:
    cluster: HollowCluster
    admin: KubeClient
    recorded: list[tuple[str, str, str, bool]] = field(default_factory=list)

    async def token(self) -> str:
        spec = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 600}}
        path = ACCOUNTS.path("reader", namespace="default", subresource="token")
        return str((await self.admin.create(path, spec))["status"]["token"])

    async def account(self) -> KubeClient:
        return await KubeClient.from_document(as_user(self.cluster, {"token": await self.token()}))

    async def grant(self, *rules: dict[str, Any]) -> None:
        await self.admin.create(ROLES.path(namespace="default"), {"metadata": {"name": "reader"}, "rules": list(rules)})
        await self.bind(BINDINGS.path(namespace="default"), "Role", "reader")

    async def bind(self, path: str, kind: str, name: str) -> None:
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}
        subjects = [{"kind": "ServiceAccount", "name": "reader", "namespace": "default"}]
        await self.admin.create(path, {"metadata": {"name": "reader"}, "roleRef": role, "subjects": subjects})


@pytest.fixture
async def account_stage() -> AsyncIterator[Stage]:
    recorded: list[tuple[str, str, str, bool]] = []

    def tell(actor: Actor, asked: Attributes, decision: Decision) -> None:
        recorded.append((actor.user, asked.verb, asked.resource, decision.allowed))

    async with (
        HollowCluster(ClusterShape("roles"), on_decision=tell) as cluster,
        await KubeClient.from_document(cluster.kubeconfig()) as admin,
    ):
        await admin.create(ACCOUNTS.path(namespace="default"), {"metadata": {"name": "reader"}})
        yield Stage(cluster, admin, recorded)


def as_user(hollow_cluster: HollowCluster, user: dict[str, Any]) -> dict[str, Any]:
    document = hollow_cluster.kubeconfig()
    document["users"][0]["user"] = user
    return document


async def test_an_account_may_do_what_its_role_says_until_it_is_deleted(account_stage: Stage) -> None:
    async with await account_stage.account() as account:
        with pytest.raises(ForbiddenError, match=f'User "{USER}" cannot list resource "secrets"'):
            await account.list(SECRETS.path(namespace="default"))
        await account_stage.grant({"apiGroups": [""], "resources": ["secrets"], "verbs": ["list"]})
        assert await account.list(SECRETS.path(namespace="default")) == ()
        await check_refusal_of(ForbiddenError, account.list(SECRETS.path(namespace="kube-system")))
        await check_refusal_of(ForbiddenError, account.get(SECRETS.path("one", namespace="default")))
        assert (await account.raw("GET", "/livez")).status == 200
        await account_stage.bind(CLUSTER_BINDINGS.path(), "ClusterRole", "cluster-admin")  # exists, as in every cluster
        assert await account.list(SECRETS.path(namespace="kube-system")) == ()
    mine = [entry[1:] for entry in account_stage.recorded if entry[0] == USER and entry[2]]
    expected = [("list", False), ("list", True), ("list", False), ("get", False), ("list", True)]
    assert [(verb, allowed) for verb, _, allowed in mine] == expected

    async with await account_stage.account() as account:
        assert (await account.raw("GET", "/apis")).status == 200
        await account_stage.admin.delete(ACCOUNTS.path("reader", namespace="default"))
        await check_refusal_of(UnauthorizedError, account.get("/apis"))


async def test_wrong_foreign_and_missing_credentials_open_nothing(hollow_cluster: HollowCluster, account_stage: Stage) -> None:
    async with await KubeClient.from_document(as_user(hollow_cluster, {"token": "guessed"})) as client:
        for path in (NODES, ADMIN_PATH, "/version"):
            await check_refusal_of(UnauthorizedError, client.get(path))

    async with await KubeClient.from_document(as_user(hollow_cluster, {"username": "nobody", "password": "x"})) as client:
        client._api.configuration.api_key.clear()
        assert (await client.raw("GET", "/livez")).status == 200
        assert (await client.get("/version"))["gitVersion"] == hollow_cluster.shape.version
        for path in (NODES, ADMIN_PATH):
            await check_refusal_of(ForbiddenError, client.get(path))

    async with HollowCluster(hollow_cluster.shape) as twin:
        foreign = as_user(hollow_cluster, twin.kubeconfig()["users"][0]["user"])
        async with await KubeClient.from_document(foreign) as client:
            await check_refusal_of(UnavailableError, client.get(NODES))

    async with (
        HollowCluster(ClusterShape("other")) as other,
        await KubeClient.from_document(as_user(other, {"token": await account_stage.token()})) as stranger,
    ):
        await check_refusal_of(UnauthorizedError, stranger.get("/apis"))


async def test_every_credential_of_a_kubeconfig_opens_the_cluster(hollow_cluster: HollowCluster, tmp_path: Path) -> None:
    async with await KubeClient.from_document(hollow_cluster.kubeconfig(token=True)) as client:
        assert (len(await client.list(NODES)), await client.get(ADMIN_PATH)) == (3, {})

    document = hollow_cluster.kubeconfig(token=True)
    (tmp_path / "token").write_text(document["users"][0]["user"]["token"])
    (tmp_path / "ca.crt").write_bytes(base64.b64decode(document["clusters"][0]["cluster"]["certificate-authority-data"]))
    host, _, port = hollow_cluster.url.removeprefix("https://").rpartition(":")
    pod = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
    async with KubeClient.in_cluster(account=tmp_path, environment=pod) as client:
        assert len(await client.list(NODES)) == 3
    (tmp_path / "token").unlink()
    with pytest.raises(InvalidError, match="Service token file does not exist"):
        KubeClient.in_cluster(account=tmp_path, environment=pod)

    document = hollow_cluster.kubeconfig(token=True)
    token = document["users"][0]["user"].pop("token")
    (tmp_path / "token").write_text("not yet\n")
    document["users"][0]["user"]["tokenFile"] = "token"
    async with await KubeClient.from_document(document, base=tmp_path) as client:
        await check_refusal_of(UnauthorizedError, client.get(NODES))
        (tmp_path / "token").write_text(f"{token}\n")
        client._api.configuration.refresh_api_key_hook._due = 0.0
        assert len(await client.list(NODES)) == 3

    version = {"apiVersion": "client.authentication.k8s.io/v1"}
    answer = {**version, "kind": "ExecCredential", "status": {"token": token, "expirationTimestamp": "2000-01-01T00:00:00Z"}}
    plugin = tmp_path / "plugin"
    plugin.write_text(f"#!/bin/sh\necho asked >> {tmp_path}/asked\necho '{json.dumps(answer)}'\n")
    plugin.chmod(0o700)
    document["users"][0]["user"] = {"exec": {**version, "command": str(plugin), "interactiveMode": "Never"}}
    async with await KubeClient.from_document(document) as client:
        assert len(await client.list(NODES)) == 3
    assert len((tmp_path / "asked").read_text().split()) > 1  # its token was over: it is asked again


async def test_faults_are_switched_over_the_admin_path_alone(hollow_cluster: HollowCluster, client: KubeClient) -> None:
    assert (await client.update(ADMIN_PATH, {"hang": True}), hollow_cluster.faults) == ({"hang": True}, Faults(hang=True))
    assert (await client.get(ADMIN_PATH), await client.update(ADMIN_PATH, {})) == ({"hang": True}, {})
    assert hollow_cluster.faults == HEALTHY

    hollow_cluster.faults = Faults(hang=True)
    await check_refusal_of(InvalidError, client.update(ADMIN_PATH, {"tired": True}), match='no fault is called "tired"')
    assert (await client.raw("PUT", ADMIN_PATH, body="words", content_type="text/plain")).status == 422
    hanging = asyncio.create_task(client.list(NODES))
    assert await client.get(ADMIN_PATH) == {"hang": True}
    assert not hanging.done()
    hollow_cluster.faults = HEALTHY
    assert len(await hanging) == 3


@pytest.mark.parametrize(("faults", "done"), [(Faults(stall_before_write=2), 1), (Faults(stall_after_write=2), 2)])
async def test_the_nth_write_of_a_secret_stalls_and_later_ones_with_it(
    hollow_cluster: HollowCluster, client: KubeClient, faults: Faults, done: int
) -> None:
    hollow_cluster.faults = faults
    path = "/api/v1/namespaces/default/secrets"

    async def create(name: str) -> object:
        return await client.create(path, {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}})

    await create("first")
    stalling = [asyncio.create_task(create(name)) for name in ("second", "third")]
    await hollow_cluster.stalled()
    assert (len(await client.list(path)), len(await client.list(NODES))) == (done, 3)
    for task in stalling:
        task.cancel()  # who waits is killed
    hollow_cluster.faults = HEALTHY
    assert len(await client.list(path)) == done


async def test_failing_server_drops_its_watches(hollow_cluster: HollowCluster, client: KubeClient) -> None:
    for faults in (Faults(error=True), Faults(hang=True)):
        hollow_cluster.faults = HEALTHY
        query = {"resourceVersion": (await client.get(NODES))["metadata"]["resourceVersion"]}
        async with client.watch(NODES, query, within=LONG) as events:
            following = asyncio.create_task(_drain(events))
            await client.patch(f"{NODES}/test-node-0", {"spec": {"unschedulable": True}})
            hollow_cluster.faults = faults
            await check_refusal_of(UnavailableError, following)


async def _drain(events: AsyncIterator[object]) -> None:
    async for _ in events:
        pass


async def test_stop_waits_neither_for_watches_nor_hanging_requests(hollow_cluster: HollowCluster, client: KubeClient) -> None:
    async with client.watch(NODES, {"resourceVersion": (await client.get(NODES))["metadata"]["resourceVersion"]}, within=LONG):
        hollow_cluster.faults = Faults(hang=True)
        hanging = asyncio.create_task(client.list(NODES))
        await client.get(ADMIN_PATH)
        await hollow_cluster.stop()
    await asyncio.gather(hanging, return_exceptions=True)


async def test_restarted_cluster_keeps_its_identity_and_objects(hollow_cluster: HollowCluster, client: KubeClient) -> None:
    before = hollow_cluster.kubeconfig()
    await client.patch(f"{NODES}/test-node-0", {"spec": {"unschedulable": True}})
    await hollow_cluster.stop()
    await check_refusal_of(UnavailableError, client.get(NODES))
    await hollow_cluster.start()
    assert hollow_cluster.kubeconfig() == before
    assert (await client.get(f"{NODES}/test-node-0"))["spec"]["unschedulable"] is True

    system = "/api/v1/namespaces/kube-system"
    first = (await client.get(system))["metadata"]["uid"]
    async with (
        HollowCluster(ClusterShape("test", nodes=1)) as again,
        await KubeClient.from_document(again.kubeconfig()) as other,
    ):
        assert (await other.get(system))["metadata"]["uid"] == first
    await client.delete(system)
    await client.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-system"}})
    assert (await client.get(system))["metadata"]["uid"] != first


async def test_advertised_address_is_usable_or_refused(subtests: pytest.Subtests, hollow_cluster: HollowCluster) -> None:
    for host, advertise, server in (
        ("0.0.0.0", "127.0.0.1", "https://127.0.0.1:"),  # noqa: S104 - what a container does
        ("127.0.0.1", "localhost", "https://localhost:"),
        ("localhost", "", "https://localhost:"),
        ("::1", "", "https://[::1]:"),
    ):
        async with HollowCluster(ClusterShape("test"), host=host, advertise=advertise) as cluster:
            assert cluster.url.startswith(server), (host, advertise)
            async with await KubeClient.from_document(cluster.kubeconfig()) as client:
                assert len(await client.list(NODES)) == 3, (host, advertise)

    for host, text in (
        ("0.0.0.0", "--advertise"),  # noqa: S104 - refused
        ("::", "--advertise"),
        ("no host", "neither an address nor a host name"),
    ):
        with subtests.test(host=host, text=text), pytest.raises(InvalidError, match=text):
            HollowCluster(ClusterShape("test"), host=host)

    port = int(hollow_cluster.url.rpartition(":")[2])
    with pytest.raises(UnavailableError, match=f":{port} is in use"):
        await HollowCluster(ClusterShape("other"), port=port).start()


@pytest.mark.kubectl
async def test_kubectl_shows_and_changes_nodes_and_empties_namespaces(hollow_cluster: HollowCluster, tmp_path: Path) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text(yaml.safe_dump(hollow_cluster.kubeconfig()))

    async def kubectl(*words: str) -> str:
        ended = await command("kubectl", f"--kubeconfig={file}", f"--cache-dir={tmp_path / 'cache'}", *words)
        return ended.stdout or ended.stderr

    rows = [line.split() for line in (await kubectl("get", "nodes")).splitlines()]
    assert (rows[0], rows[1][:3]) == (["NAME", "STATUS", "ROLES", "AGE", "VERSION"], ["test-node-0", "Ready", "control-plane"])
    assert (rows[2][:3], rows[2][4]) == (["test-node-1", "Ready", "<none>"], "v1.34.2")
    wide = await kubectl("get", "nodes", "-o", "wide")
    assert ("CONTAINER-RUNTIME" in wide, "172.18.0.2" in wide) == (True, True)
    assert json.loads(await kubectl("version", "-o", "json"))["serverVersion"]["gitVersion"] == "v1.34.2"
    names = (await kubectl("api-resources", "-o", "name")).split()
    assert {"nodes", "leases.coordination.k8s.io", "clusterclaims.cluster.open-cluster-management.io"} <= set(names)
    assert "test-node-1 cordoned" in await kubectl("cordon", "test-node-1")
    assert "Ready,SchedulingDisabled" in await kubectl("get", "node", "test-node-1")
    described = await kubectl("describe", "node", "test-node-1")
    assert ("KubeletReady" in described, "cpu:                8" in described) == (True, True)

    await kubectl("create", "namespace", "team-a")
    assert (await kubectl("get", "ns", "team-a", "--no-headers")).split()[:2] == ["team-a", "Active"]
    await kubectl("-n", "team-a", "create", "configmap", "c", "--from-literal=a=1")
    await kubectl("delete", "namespace", "team-a")
    await kubectl("create", "namespace", "team-a")
    assert await kubectl("-n", "team-a", "get", "configmaps", "-o", "name") == ""
    assert "not found" in await kubectl("-n", "nowhere", "create", "configmap", "c")


MAPS = RestResource("", "v1", "configmaps")
QUICK = timedelta(milliseconds=20)


def value_of(item: Object) -> str:
    return str(item["data"]["value"])


async def change(client: KubeClient, name: str, value: int, random: Random) -> None:
    """Makes, changes or deletes the config map."""
    path = MAPS.path(name, namespace="default")
    try:
        if random.random() < 0.3:
            await client.delete(path)
        else:
            await client.patch(path, {"data": {"value": str(value)}})
    except NotFoundError:
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"value": str(value)}}
        await client.create(MAPS.path(namespace="default"), body)


@repeated(3, 40)
async def test_mirror_ends_with_what_the_cluster_holds(hollow_cluster: HollowCluster, client: KubeClient, trial: int) -> None:
    random = Random(trial)
    objects: dict[ObjectKey, Any] = {}
    settled = asyncio.Event()

    def take(key: ObjectKey, value: str | None) -> None:
        assert objects.get(key) != value
        objects[key] = value
        if key.name == "last":
            settled.set()

    maps, quick = MAPS.path(namespace="default"), Backoff(QUICK, QUICK)
    reflector: Reflector[str] = Reflector(
        client, maps, value_of, on_change=take, on_failure=lambda _error: None, page_size=4, backoff=quick
    )
    async with mirrored(reflector) as wait:
        await wait(reflector.synced)
        for step in range(120):
            await change(client, f"map-{random.randrange(12)}", step, random)
            match random.randrange(20):
                case 0:
                    hollow_cluster.cut_watches()
                case 1:
                    await hollow_cluster.forget_history()
                    hollow_cluster.cut_watches()
                case 2:
                    await hollow_cluster.stop()
                    await hollow_cluster.start()
        await change(client, "last", 0, random)
        await wait(settled)
    present = {item["metadata"]["name"]: value_of(item) for item in await client.list(MAPS.path(namespace="default"))}
    assert {key.name: value for key, value in reflector.items.items()} == present
    assert {key.name: value for key, value in objects.items() if value is not None} == present


AGENTS = 30
LIMITS = Limits(errors=0, lag=60.0)
"""A busy machine delays beats and generator; that it would be noticed is a unit test."""


async def bootstrap_kubeconfig(stage: RpcStage) -> bytes:
    door = HubEndpoint(f"localhost:{stage.door.port}", HUB)
    entry = ClusterEntry("hub", "https://localhost:6443", stage.issuer.trust_bundle, door)
    return write_kubeconfig(entry, await stage.bootstrap(None), user="load")


async def test_thirty_agents_join_stay_and_come_back_from_a_storm_and_the_program_does_the_same(tmp_path: Path) -> None:
    state, file = tmp_path / "state", tmp_path / "load.bootstrap"
    state.mkdir()
    paces = {
        "beat_interval": timedelta(milliseconds=500),
        "default_lease_duration": timedelta(seconds=2),
        "beats_per_second": 0.0,
    }
    async with rpc_stage(tmp_path / "hub", leads=True, auto_approve=("*",), **paces) as stage:
        file.write_bytes(await bootstrap_kubeconfig(stage))
        bootstrap = str(file)
        settings = LoadSettings(Profile.JOIN, bootstrap, str(state), AGENTS, ramp=0.5, limits=LIMITS)
        clock = SystemClock()
        fleet = Fleet(settings, 0, read_bootstrap(bootstrap), partial(dial_over_grpc, clock), clock)
        shown = StringIO()

        async def ran(profile: Profile, **more: float) -> LoadResult:
            async def pause(seconds: float) -> bool:
                await asyncio.wait({running}, timeout=min(seconds, 0.2))
                return running.done()

            run_settings = LoadSettings.read({**settings.document(), "profile": profile, **more})
            return await measure(fleet, run_settings, pause, Progress(run_settings, shown))

        running = asyncio.create_task(fleet.run())
        try:
            joined, steady = await ran(Profile.JOIN), await ran(Profile.STEADY, duration=2.0)
            storm = await ran(Profile.STORM, duration=4.0, every=60.0)
        finally:
            await cancel_and_wait(running)
        for result in (joined, steady, storm):
            assert result.verdict is Verdict.PASSED, result.document
        assert joined.document["counts"]["joins"] == joined.document["latencies"]["join"]["count"] == AGENTS
        assert steady.document["counts"]["beats_acknowledged"] >= AGENTS * 3
        assert "joins" not in steady.document["counts"]
        back = storm.document["counts"]["open"]
        assert storm.document["latencies"]["reconnect"]["count"] == back > 0, "all were away, and a busy machine is slow"
        assert f"sessions {AGENTS}/{AGENTS}" in shown.getvalue()

        options = (f"--bootstrap-kubeconfig={bootstrap}", f"--state-dir={state}", "--agents=6", "--processes=2", "--ramp=100ms")
        report = tmp_path / "report.json"
        further = ("--duration=2500ms", "--max-lag=1m", f"--report={report}", "--max-latency=1ms")
        ended = await run("hollow", "load", "steady", *options, *further)
        assert ended.returncode == 3, ended.stderr
        document = json.loads(report.read_text())
        assert (document["verdict"], document["counts"]["open"], document["counts"].get("joins")) == ("failed", 6, None)
        assert [reason.partition(" is ")[0] for reason in document["reasons"]] == ["the p99 of the latency beat"]
        assert "verdict: failed; the p99 of the latency beat is" in ended.stdout
        assert "PRIVATE KEY" not in report.read_text() + ended.stdout + ended.stderr
