"""An agent as a program, with either driver and with several hubs: its commands, faults and reports of its cluster."""

import json
import re
import socket
from base64 import b64decode
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from machinery.apiserver.kinds.certificates import CERTIFICATE_SIGNING_REQUEST
from machinery.apiserver.kinds.core import LEASE
from machinery.apiserver.kinds.events import EVENTS_V1
from machinery.client.rest import KubeClient, RestResource
from tests.e2e import processes
from tests.e2e.conftest import print_when_failed
from tests.e2e.hubs import HERE, Hubs, hub_id_of, hubs_in, now
from tests.fakes.ocm_hub import CLUSTER, OcmHub, ocm_hub
from tests.programs import STDOUT, run, unread

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

NAMESPACE = "open-cluster-management-agent"


async def test_doctor_names_the_next_step_and_leave_takes_the_cluster_out_of_its_hub(bench: processes.Bench) -> None:
    async def says(command: str, code: int, *sentences: str, flags: tuple[str, ...] = ()) -> str:
        files = (f"--bootstrap-kubeconfig={bench.folder / 'c1.bootstrap'}", f"--kubeconfig={bench.folder / 'c1.kubeconfig'}")
        ended = await run("spoke", command, *files, *flags, stderr=STDOUT)
        assert ended.returncode == code, ended.stdout
        if command in ("doctor", "status"):
            with unread() as output:
                assert (await run("spoke", command, *files, *flags, stdout=output, stderr=output)).returncode == code
        assert [sentence for sentence in sentences if sentence not in ended.stdout] == [], ended.stdout
        return ended.stdout

    hub, agent = await bench.hub(), await bench.spoke("c1", None)
    await processes.until(bench.requests, what="the agent has asked for its certificate")
    await says("doctor", 1, "ok   hub: it answers", "-> approve its request on the hub: hubctl get csr")
    await bench.hubctl("accept", "c1")
    await bench.available("c1")
    await says("doctor", 0, 'of cluster "c1", until ')
    assert await hub.stop() == 0
    await says("doctor", 1, "FAIL connection: ", "-> check that the hub runs")
    await bench.hub("--auto-approve=*", name="again")
    await agent.says("session.opened", 2)

    status = json.loads(await says("status", 0, flags=("-o", "json")))
    assert (status["cluster"], status["process"]["state"], status["hubs"][0]["state"]) == ("c1", "works", "ready")
    await says("leave", 0, "has released this cluster")

    await processes.until(lambda: processes.is_gone(bench.cluster("c1")), what="the hub has forgotten the cluster")
    async with bench.kubernetes("c1") as client:
        secrets = await client.list(RestResource("", "v1", "secrets").path(namespace=NAMESPACE))
        assert [(each["metadata"]["name"], set(each["data"])) for each in secrets] == [("hub-kubeconfig-secret", {"left"})]
        assert not await client.list(RestResource("coordination.k8s.io", "v1", "leases").path(namespace=NAMESPACE))
    await says("status", 0, "stays away: this cluster has left its hubs")
    assert agent.running
    assert agent.output.count("session.opened") == 2

    assert await agent.stop() == 0
    agent.arguments = (*agent.arguments, "--rejoin", "--bootstrap-kubeconfig", str(await bench.bootstrap("c1")))
    await agent.start()
    await agent.says("session.opened", 3)
    await bench.available("c1")


QUICK = ("--default-lease-duration=4s", "--auto-approve=*")


async def in_state(port: int, state: str) -> dict[str, Any]:
    async def reached() -> dict[str, Any] | None:
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/statusz") as answer:
            document = dict(json.loads(await answer.text()))
        return document if [hub["state"] for hub in document["hubs"]] == [state] else None

    found: dict[str, Any] = await processes.until(reached, what=f"the agent says that it is {state}")
    return found


async def test_an_agent_acts_differently_on_each_and_never_restarts(bench: processes.Bench) -> None:
    await bench.hub(*QUICK)
    port = processes.free_port()
    spoke = await bench.spoke("c1", None, f"--health-listen=127.0.0.1:{port}")
    await bench.available("c1")
    process, first = spoke.pid, bench.certificate("c1").serial
    old_bootstrap = (bench.folder / "c1.bootstrap").read_bytes()

    answer = await bench.hubctl("revoke", "cluster", "c1", "--reason", "KeyCompromise")
    assert "revoked: 3 certificates, 1 bootstrap credential" in answer
    await in_state(port, "revoked")
    assert bench.certificate("c1").serial == first, "it is kept, and not shown"
    assert "the hub has revoked the stored credential" in spoke.output
    assert (bench.folder / "c1.bootstrap").read_bytes() == old_bootstrap
    assert (await bench.bootstrap("c1")).read_bytes() != old_bootstrap
    await processes.until(
        lambda: bench.certificate("c1").serial != first, what="the agent has come back with a new bootstrap kubeconfig"
    )
    await in_state(port, "ready")
    second = bench.certificate("c1").serial

    await bench.hubctl("delete", "cluster", "c1")
    await bench.bootstrap("c1")
    await processes.until(lambda: bench.certificate("c1").serial != second, what="the deleted cluster has registered anew")
    assert "the hub has revoked" not in spoke.output.rpartition("KeyCompromise")[2]
    assert spoke.pid == process
    assert spoke.running


AUTO = ("--auto-approve=*", *processes.SHORT_LEASE)
CLAIM_VERSION = "cluster.open-cluster-management.io/v1alpha1"
CLAIMS = f"/apis/{CLAIM_VERSION}/clusterclaims"


async def test_a_slow_api_server_that_refuses_secrets_delays_a_join_and_does_not_fail_it(bench: processes.Bench) -> None:
    await bench.hub(*AUTO)
    kubeconfig = await bench.hollow("c1")
    await bench.fault("c1", "refuse-secret-writes")
    spoke = await bench.spoke("c1")
    await spoke.says("the fault `refuse-secret-writes`")
    assert await bench.requests() == []  # what is not written down first is not asked for
    await bench.fault("c1", "slow=100ms")
    await bench.available("c1")
    assert len(await bench.requests()) == 1
    assert spoke.running
    async with await KubeClient.from_file(kubeconfig) as cluster:
        secret = await cluster.get("/api/v1/namespaces/open-cluster-management-agent/secrets/hub-kubeconfig-secret")
    assert {"kubeconfig", "tls.crt", "tls.key", "cluster-name", "agent-name"} <= set(secret["data"])
    assert {file.name for file in (bench.folder / "c1.credentials").iterdir()} >= {"kubeconfig", "tls.crt", "tls.key"}


SETS = "/apis/cluster.open-cluster-management.io/v1beta2/managedclustersets"
ADDONS = "/apis/addon.open-cluster-management.io/v1beta1/namespaces/c1/managedclusteraddons"
WHO_AM_I = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
SECRET = "/api/v1/namespaces/addons/secrets/logs-hub-kubeconfig"  # noqa: S105 - the path of a secret


async def test_claims_nodes_namespaces_and_a_token_for_an_add_on_reach_the_other_side(
    bench: processes.Bench, tmp_path: Path
) -> None:
    await bench.hub(*AUTO)
    kubeconfig = await bench.hollow("c1", "--nodes=3")
    await bench.spoke("c1", None, "--addon-kubeclient-registration-auth=token", "--addon-namespaces=addons")
    await bench.available("c1")
    async with await KubeClient.from_file(kubeconfig) as cluster, await KubeClient.from_file(bench.admin) as hub:
        claim = {"metadata": {"name": "region.example"}, "spec": {"value": "north"}}
        await cluster.create(CLAIMS, {"apiVersion": CLAIM_VERSION, "kind": "ClusterClaim", **claim})
        await cluster.delete("/api/v1/nodes/c1-node-2")
        await hub.patch(f"{SETS}/default", {"spec": {"managedNamespaces": [{"name": "team-a"}]}})
        addon = {"apiVersion": "addon.open-cluster-management.io/v1beta1", "kind": "ManagedClusterAddOn"}
        await hub.create(ADDONS, {**addon, "metadata": {"name": "logs"}, "spec": {}})
        status = {"namespace": "addons", "registrations": [{"type": "kubeClient", "kubeClient": {}}]}
        await hub.patch(f"{ADDONS}/logs/status", {"status": status})

        document = await bench.cluster_when("c1", applied, what="reports its namespace")

        def is_changed(found: Mapping[str, Any]) -> bool:
            status = found["status"]
            return {"name": "region.example", "value": "north"} in status["clusterClaims"] and status["capacity"]["cpu"] == "16"

        await bench.cluster_when("c1", is_changed, what="reports the new claim and one node less")
        assert document["status"]["managedNamespaces"][0]["clusterSet"] == "default"
        labels = (await cluster.get("/api/v1/namespaces/team-a"))["metadata"]["labels"]
        assert [value for key, value in labels.items() if key.startswith("clusterset.open-cluster-management.io/")] == ["true"]

        held = (await processes.until(lambda: cluster.get(SECRET), what="the add-on has its secret"))["data"]
        async with await KubeClient.from_file(unpacked(held, tmp_path)) as add_on:
            answer = await add_on.create(WHO_AM_I, {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"})
        assert answer["status"]["userInfo"]["username"] == "system:serviceaccount:c1:logs-agent"

        async def reported() -> bool:
            conditions = (await hub.get(f"{ADDONS}/logs"))["status"]["conditions"]
            return {"TokenInfrastructureReady", "TokenRefreshed"} <= {each["type"] for each in conditions}

        await processes.until(reported, what="both sides tell of the token")  # the agent once it has stored it


def applied(document: Any) -> bool:
    wanted = document.get("status", {}).get("managedNamespaces") or [{}]
    return any(each.get("reason") == "NamespaceApplied" for each in wanted[0].get("conditions", ()))


def unpacked(contents: dict[str, str], folder: Path) -> Path:
    """The secret as files, as an add-on mounts it."""
    for name, content in contents.items():
        (folder / f"mounted-{name}").write_bytes(b64decode(content))
    document = yaml.safe_load((folder / "mounted-kubeconfig").read_text())
    assert document["users"][0]["user"] == {"tokenFile": "token"}
    document["users"][0]["user"]["tokenFile"] = "mounted-token"
    (folder / "mounted-kubeconfig").write_text(yaml.safe_dump(document))
    return folder / "mounted-kubeconfig"


JOINED = "ManagedClusterJoined"


def connections(pid: int, port: int) -> int:
    """Open TCP connections of a process to a local port."""
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            inodes.add(link.readlink().name)
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    wanted = f"{int.from_bytes(socket.inet_aton('127.0.0.1'), 'little'):08X}:{port:04X}"
    return sum(f"socket:[{line[9]}]" in inodes for line in lines if line[2] == wanted)


async def test_a_token_and_the_https_door_are_all_it_takes_to_join_and_to_outlive_kills(bench: processes.Bench) -> None:
    hub = await bench.hub(*processes.SHORT_LEASE)
    spoke = await bench.spoke("c1", await bench.bootstrap("c1", "--token"))
    await spoke.says("request.waiting")
    (request,) = await bench.requests()
    assert processes.status_of(await bench.cluster("c1"), JOINED) is None
    await bench.hubctl("certificate", "approve", request["metadata"]["name"])
    await spoke.says("hub.not_accepted")
    assert "hubctl accept" in (await spoke.probe("/readyz"))[1]
    await bench.hubctl("accept", "c1")
    document = await bench.available("c1")
    assert processes.status_of(document, JOINED) == "True"
    async with bench.kubernetes("c1") as client:
        assert document["status"]["capacity"]["nodes"] == str(len(await client.list("/api/v1/nodes")))
    assert {claim["name"] for claim in document["status"]["clusterClaims"]} >= {"id.k8s.io"}
    assert "true" in (await bench.hubctl("get", "clusters", "c1")).lower()
    assert connections(spoke.pid, bench.grpc_port) == 0, "not one connection to the gRPC door"

    async def ready() -> bool:
        return (await spoke.probe("/readyz"))[0] == 200

    await processes.until(ready, what="the agent is ready")

    async with await KubeClient.from_file(bench.admin) as operator:
        await operator.patch(f"{processes.CLUSTERS}/c1", {"spec": {"leaseDurationSeconds": 1}})
    await hub.kill()
    await spoke.says("reconnecting")
    assert (await spoke.probe("/livez"))[0] == 200
    await hub.start()
    await spoke.says("session.opened", 2)
    await bench.available("c1")
    await spoke.kill()
    await bench.cluster_when("c1", lambda one: processes.status_of(one, processes.AVAILABLE) == "Unknown", what="is silent")
    await spoke.start()
    await bench.available("c1")
    assert len(await bench.requests()) == 1


async def ocm_available(hub: OcmHub) -> dict[str, Any]:
    async def seen() -> Any:
        document = await hub.cluster("c1")
        return document if processes.is_available(document) else None

    return dict(await processes.until(seen, what="c1 is Available"))


async def test_it_joins_waits_reports_renews_and_is_denied_and_deleted_like_any_agent(
    bench: processes.Bench, tmp_path: Path
) -> None:
    async with ocm_hub(lifetime=timedelta(seconds=8)) as hub:
        file = tmp_path / "ocm.bootstrap"
        file.write_bytes(hub.bootstrap_kubeconfig())
        spoke = await bench.spoke("c1", file, "--cluster-annotations=agent.open-cluster-management.io/site=b")
        await spoke.says("request.waiting")
        (request,) = await hub.found(CERTIFICATE_SIGNING_REQUEST)
        assert request["metadata"]["name"].startswith("c1-")
        assert request["spec"]["signerName"] == "kubernetes.io/kube-apiserver-client"
        assert request["metadata"]["labels"] == {"open-cluster-management.io/cluster-name": "c1"}
        assert (await hub.cluster("c1"))["spec"]["hubAcceptsClient"] is False

        await hub.approve(request["metadata"]["name"])
        await spoke.says("hub.not_accepted")
        await hub.add_on("c1", "logs")
        await hub.accept("c1")
        document = await ocm_available(hub)
        assert processes.status_of(document, JOINED) == "True"
        assert processes.status_of(document, "HubAcceptedManagedCluster") == "True", "the hub's own condition stays"
        assert document["metadata"]["annotations"]["agent.open-cluster-management.io/site"] == "b"

        async def renewals() -> list[str]:
            leases = await hub.found(LEASE, "c1")
            return [one["spec"]["renewTime"] for one in leases if one["metadata"]["name"] == "managed-cluster-lease"]

        before = await renewals()

        async def beaten() -> bool:
            return await renewals() > before

        await processes.until(beaten, what="the lease is renewed")

        async def reported() -> bool:
            return [event["reason"] for event in await hub.found(EVENTS_V1, "c1")] == ["Available"]

        await processes.until(reported, what="one Event reports it")

        await hub.fall_silent("c1")
        await ocm_available(hub)

        serial = bench.certificate("c1").serial
        await processes.until(
            lambda: bench.certificate("c1").serial != serial, what="the certificate is renewed without a person"
        )
        await processes.until(lambda: _add_on_secret(bench), what="the add-on has its kubeconfig")

        await hub.accept("c1", accepted=False)
        await processes.until(lambda: _last_word(spoke, "hub.not_accepted"), what="the agent knows that it is denied")
        await hub.accept("c1")
        await processes.until(lambda: _last_word(spoke, "hub.accepted"), what="the agent knows that it is accepted")

        await hub.remove(CLUSTER, "c1")
        hub.accepted.clear()

        async def made_again() -> bool:
            return (await hub.cluster("c1"))["spec"]["hubAcceptsClient"] is False

        await processes.until(made_again, what="a deleted cluster registers again")
        assert not [asked for asked in hub.refused if asked.verb not in {"get", "list", "watch", "update", "create", "patch"}]


async def _last_word(spoke: processes.Program, event: str) -> bool:
    """What the agent last said of its acceptance; a renewed certificate may have begun another session meanwhile."""
    words = [word for word in re.findall(r'"event": "(hub\.[a-z_]+)"', spoke.output) if "accepted" in word]
    return bool(words) and words[-1] == event


async def _add_on_secret(bench: processes.Bench) -> bool:
    async with bench.kubernetes("c1") as client:
        path = "/api/v1/namespaces/open-cluster-management-agent-addon/secrets/logs-hub-kubeconfig"
        return set((await client.get(path))["data"]) >= {"kubeconfig", "tls.crt", "tls.key"}


@pytest.fixture(scope="module")
async def shared_hubs(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Hubs]:
    """Two hubs that nobody has used; who wants a third starts it."""
    async with hubs_in(tmp_path_factory.mktemp("hubs")) as hubs:
        await hubs.start(2)
        yield hubs


@pytest.fixture
async def hubs(shared_hubs: Hubs, request: pytest.FixtureRequest) -> AsyncIterator[Hubs]:
    """All hubs run and are reached, and no agent does; each test has clusters of its own names."""
    yield shared_hubs
    print_when_failed(request, [*shared_hubs.programs, *(hub.serving for hub in shared_hubs.all)])
    await shared_hubs.raise_epoch_above()
    assert "PRIVATE KEY" not in shared_hubs.logs


async def test_with_all_bootstrap_credentials_revoked_a_killed_owner_is_left_for_the_next_hub(hubs: Hubs) -> None:
    await hubs.spoke("night")
    await hubs.reserve("night")
    for hub in hubs.all[:2]:
        listed = json.loads(await hub.hubctl("get", "bootstrap-credentials", "-o", "json"))["items"]
        (own,) = [each["metadata"]["name"] for each in listed if '"night"' in json.dumps(each["spec"])]
        await hub.hubctl("revoke", "bootstrap-credential", own)
    before = hubs[0].row("night").epoch
    began = now()
    await hubs[0].kill()
    await hubs.beats("night", hubs[1], began)
    assert hubs[1].row("night").epoch > before
    assert hub_id_of(await hubs.secret("night")) == hubs[1].id
    await hubs[0].start()
    await hubs.reserve("night", owner=1)
    assert hubs[0].row("night").epoch == hubs[1].row("night").epoch
    assert "taints" not in (await hubs[0].cluster("night"))["spec"]


async def test_frozen_replica_behind_a_balancer_is_left_by_a_new_connection(hubs: Hubs) -> None:
    """One address, so that only the balancer can choose another replica, and only for a new connection.

    The agent is silent for 5 s until its beat counts as lost, 5 s for each such connection, and a pause: below 20 s with one.
    """
    agent, path = await hubs.spoke("balanced", "--hub-silence=2s", count=1), hubs[0].path
    await hubs[0].shows("balanced", HERE)
    opened, real = agent.output.count("session.opened"), hubs[0].grpc_port
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        silent = frozen.getsockname()[1]
        path.targets = [silent]
        path.silence()
        path.reroute()
        await processes.until(lambda: path.taken[silent], what="the balancer gives the agent the frozen replica again")
        path.targets = [real]
        await agent.says("session.opened", opened + 1)
        assert (path.taken[silent], agent.output.count("did not answer with Welcome in time")) == (1, 1)
    await hubs.beats("balanced", hubs[0], now())
