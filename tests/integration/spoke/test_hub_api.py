"""An agent's connection to its hub with either driver: failures, proxies, what it writes over the Kubernetes API."""

import asyncio
import copy
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import grpc
import pytest
from aiohttp import web
from grpc import aio

from hub.api.managedclusters.cluster import ACCEPTED
from hub.api.meta.change import ADDONS, EVENTS
from hub.api.meta.document import with_status_condition
from hub.registry.bootstrapcredentials.service import CredentialTerms, create_token
from hub.registry.generic import objects
from hub.registry.managedclusteraddons import service as addons
from hub.registry.managedclusters import service as clusters
from machinery.client.kubeconfig import BearerToken, Credential
from machinery.errors import ForbiddenError, MethodNotAllowedError, MusterError, NotFoundError, UnavailableError
from machinery.identity import AddOnName, CertificateSubject, CredentialId, agent_subject, bootstrap_subject
from machinery.meta.conditions import AVAILABLE, HUB_ACCEPTED, JOINED, TRUE, UNKNOWN, Condition, find
from machinery.meta.objects import Query
from machinery.meta.timestamps import format_time
from machinery.pki import Plan, Usage, build_request, generate_key, parse_certificate, public_key_of, random_serial
from machinery.runtime.clock import Clock, ManualClock, SystemClock
from machinery.runtime.tls import server_context
from spoke.domain.addon import KUBE_SIGNER
from spoke.domain.next_step import SessionLoss
from spoke.domain.report import ClusterReport, ExternalEndpoint, ReportedClaim
from spoke.domain.route import Driver
from spoke.ports.hub import ClientIdentity, Desired, HubAddress, HubClient, HubLostError, HubSession, SessionHello
from spoke.transports.grpc import channel
from spoke.transports.grpc.channel import HubBackoff
from spoke.transports.grpc.client import GrpcHubClient
from spoke.transports.kubernetes.client import ApiHubClient
from spoke.transports.kubernetes.documents import CLUSTER_UID, LEASE_NAME
from tests.checks import awaited_refusal, check_refusal_of, present
from tests.fakes.authority import OtherCA
from tests.fakes.forwarder import ConnectProxy
from tests.fakes.hub import MemoryHub
from tests.fakes.hub_rigs import AGENT, CLUSTER, IDENTITY, UID, ApiRig, rig_of
from tests.fakes.identity import serving_material
from tests.fakes.rpc_stage import rpc_stage, until_found
from tests.fakes.scripted_apiserver import ScriptedApiServer, Seen, scripted_apiserver

WITHIN = 30
BERLIN = [{"url": "https://berlin", "caBundle": "Y2E="}]
GOOD = Condition(AVAILABLE, TRUE, "ManagedClusterAvailable", "fine")
REPORT = ClusterReport(
    conditions=(Condition(JOINED, TRUE, "ManagedClusterJoined", "joined"), GOOD),
    complete=True,
    capacity={"cpu": "4"},
    allocatable={"cpu": "3"},
    kubernetes_version="v1.34.2",
    claims=(ReportedClaim("id.k8s.io", "x"),),
    node_count=1,
    endpoints=(ExternalEndpoint("https://berlin", b"ca"),),
)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[ApiRig]:
    async with rig_of("api", tmp_path) as made:
        assert isinstance(made, ApiRig)
        yield made


@asynccontextmanager
async def session(rig: ApiRig, credential: Credential | None = None) -> AsyncIterator[HubSession]:
    client = rig.client(credential or await rig.agent())
    try:
        async with client.session(SessionHello(UID)) as opened:
            yield opened
    finally:
        await client.close()


async def desired_when(opened: HubSession, condition: Callable[[Desired], bool]) -> Desired:
    async with asyncio.timeout(WITHIN), aclosing(opened.desired()) as following:
        async for desired in following:
            if condition(desired):
                return desired
    raise AssertionError


async def loss_of(opened: HubSession) -> SessionLoss:
    """How the session ended, which it does by itself."""
    async with asyncio.timeout(WITHIN):
        ended = await opened.ended()
    assert isinstance(ended, HubLostError)
    return ended.loss


async def edited(rig: ApiRig, edit: Callable[[dict[str, Any]], None]) -> None:
    """Somebody else writes our ManagedCluster."""

    def change(tx: Any) -> None:
        old = clusters.find(tx, CLUSTER)
        document = copy.deepcopy(dict(old.document))
        edit(document)
        clusters.put(tx, document, old, "admin")

    await rig.stage.store.run(change)


def status(document: dict[str, Any], kind: str) -> str | None:
    found = find(document.get("status", {}).get("conditions", ()), kind)
    return found.status if found else None


async def test_bearer_tokens_join_and_submit_requests(rig: ApiRig, tmp_path: Path) -> None:
    _, token = await rig.stage.store.run(create_token, CredentialTerms(CLUSTER, None, timedelta(hours=1)), "admin")
    file = tmp_path / "token"
    file.write_text(f"{token}\n")
    inline, from_file = (rig.client_as(ClientIdentity(token=each)) for each in (BearerToken(token), BearerToken(file=file)))
    made = await inline.ensure_cluster(IDENTITY, endpoints=REPORT.endpoints, annotations={"not.ours": "x"})
    assert (made.created, made.accepted) == (True, False)
    document = await rig.stage.cluster(CLUSTER)
    assert document["metadata"]["annotations"] == {CLUSTER_UID: UID}
    assert document["spec"]["managedClusterClientConfigs"] == BERLIN

    first, second = (build_request(agent_subject(CLUSTER, AGENT), generate_key()) for _ in range(2))
    names = []
    for client, request in ((inline, first), (from_file, second), (from_file, first)):
        assert not (await client.ensure_cluster(IDENTITY, endpoints=REPORT.endpoints, annotations={})).created
        names.append(await client.submit_request(IDENTITY, request, duration=timedelta(hours=2)))
    assert names[0] == names[2] != names[1], "a name that another request has taken is not used"
    assert names[0].startswith(f"{CLUSTER}-")
    for client in (inline, from_file):
        await client.close()
        assert token not in repr(client.__dict__)


async def test_reports_are_stored_beside_what_others_write(rig: ApiRig) -> None:
    credential = await rig.agent()
    await rig.stage.store.run(
        clusters.set_condition, CLUSTER, Condition(HUB_ACCEPTED, TRUE, "HubClusterAdminAccepted", "m"), "hub"
    )
    async with session(rig, credential) as opened:
        assert await opened.report(REPORT) > 0
        document = await rig.stage.cluster(CLUSTER)
        assert [status(document, kind) for kind in (HUB_ACCEPTED, JOINED, AVAILABLE)] == [TRUE] * 3
        assert document["status"]["capacity"] == {"cpu": "4", "nodes": "1"}
        assert document["status"]["version"] == {"kubernetes": "v1.34.2"}
        assert document["spec"]["managedClusterClientConfigs"] == BERLIN
        assert await opened.report(REPORT) == int(document["metadata"]["resourceVersion"])
        assert await rig.stage.cluster(CLUSTER) == document, "the same report writes nothing"

        await opened.beat(available=True)  # without a recent beat, the hub keeps Unknown
        await rig.stage.store.run(clusters.set_condition, CLUSTER, Condition(AVAILABLE, UNKNOWN, "Silent", "m"), "hub")
        assert status(await rig.stage.cluster(CLUSTER), AVAILABLE) == UNKNOWN

        async def corrected() -> bool:
            return status(await rig.stage.cluster(CLUSTER), AVAILABLE) == TRUE

        await until_found(corrected)
        for number in range(20):
            claims = (ReportedClaim("id.k8s.io", str(number // 2)),)
            report = ClusterReport((GOOD,), complete=True, capacity={"cpu": str(number)}, claims=claims)
            labelled = edited(rig, lambda document: document["metadata"].update(labels={"n": str(number)}))  # noqa: B023
            await asyncio.gather(labelled, opened.report(report))
        document = await rig.stage.cluster(CLUSTER)
        assert document["status"]["clusterClaims"] == [{"name": "id.k8s.io", "value": "9"}]
        assert document["metadata"]["labels"] == {"n": "19"}


async def test_events_annotations_and_ca_bundle_follow_the_reports(rig: ApiRig) -> None:
    credential = await rig.agent()
    await edited(rig, lambda it: it["spec"].update(managedClusterClientConfigs=[{"url": "https://berlin", "caBundle": "b2xk"}]))
    notes = {"agent.open-cluster-management.io/site": "b"}
    address, identity = HubAddress(rig.server, rig.trust, Driver.CSR), ClientIdentity(credential.chain, credential.key)
    client = ApiHubClient(address, identity, SystemClock(), notes)
    bad = Condition(AVAILABLE, "False", "ManagedClusterKubeAPIServerUnavailable", "down")
    async with client.session(SessionHello(UID)) as opened:
        await opened.report(REPORT)
        for condition in (bad, replace(bad, message="still down")):
            await opened.report(ClusterReport((condition,), complete=False))
    await client.close()
    document = await rig.stage.cluster(CLUSTER)
    assert document["spec"]["managedClusterClientConfigs"] == BERLIN
    assert document["metadata"]["annotations"] == {**notes, CLUSTER_UID: UID}
    assert document["spec"]["hubAcceptsClient"] is True
    found = (await rig.stage.store.read(lambda tx: tx.objects.find(EVENTS, Query(namespace=CLUSTER)))).items
    events = [one.document for one in found if one.document.get("involvedObject", {}).get("kind") == "ManagedCluster"]
    assert sorted(one["reason"] for one in events) == ["Available", "Unavailable"]


async def test_add_ons_are_followed_and_unknown_while_the_cluster_is_denied(rig: ApiRig) -> None:
    credential = await rig.agent()
    async with session(rig, credential) as opened:
        assert (await desired_when(opened, lambda one: one.addons_known)).addons == ()
        await rig.add_on("logs")
        known = await desired_when(opened, lambda one: bool(one.addons))
        (addon,) = known.addons
        assert (addon.name, [entry.signer_name for entry in addon.registrations]) == ("logs", [KUBE_SIGNER])
        condition = Condition("Available", TRUE, "r", "m")
        assert await opened.report_addon(AddOnName("logs"), (condition,)) > 0
        await check_refusal_of(NotFoundError, opened.report_addon(AddOnName("other"), (condition,)))
        found = await rig.stage.store.read(lambda tx: addons.find(tx, CLUSTER, AddOnName("logs")))
        assert status(dict(found.document), "Available") == TRUE
        await rig.accept(accepted=False)
        await desired_when(opened, lambda one: not one.accepted)
    async with session(rig, credential) as opened:
        assert not (await desired_when(opened, lambda one: not one.accepted)).addons_known
        await rig.accept(accepted=True)
        await edited(rig, lambda one: one.update(with_status_condition(one, ACCEPTED, datetime.now(UTC))))  # as the leader does
        assert (await desired_when(opened, lambda one: one.accepted and one.addons_known)).addons == known.addons
        await rig.stage.store.run(
            lambda tx: objects.remove(tx, ADDONS, addons.find(tx, CLUSTER, AddOnName("logs")), "admin", generations=True)
        )
        await desired_when(opened, lambda one: not one.addons)


# --- hubs that are not ours


def refusal(code: int, reason: str) -> web.Response:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code, "message": reason}
    return web.json_response(body, status=code)


class OcmHub:
    """A hub that lets an agent see nothing until it is accepted, as OCM's does."""

    def __init__(self, server: ScriptedApiServer, certificate_ends: datetime) -> None:
        self.server = server
        self.certificate_ends = certificate_ends
        self.accepted = False
        self.cluster: dict[str, Any] = {
            "apiVersion": "cluster.open-cluster-management.io/v1",
            "kind": "ManagedCluster",
            "metadata": {"name": CLUSTER, "uid": "u", "resourceVersion": "1"},
            "spec": {"hubAcceptsClient": True, "leaseDurationSeconds": 60},
        }
        self.lease: dict[str, Any] | None = None
        self.conflicts = 0
        server.answer = self.answer

    async def answer(self, seen: Seen) -> web.StreamResponse:
        if seen.path == "/version":
            return web.json_response({"gitVersion": "v1.34.2"})
        if not self.accepted:
            return refusal(403, "Forbidden")
        if "/leases/" in seen.path:
            return await self._lease(seen)
        if seen.path.endswith("/managedclusters"):
            items = {"items": [self.cluster], "metadata": {"resourceVersion": "1"}}
            return web.json_response({"kind": "ManagedClusterList", **items})
        if "/addon.open" in seen.path:
            return refusal(404, "NotFound")
        return web.json_response(self.cluster)

    async def _lease(self, seen: Seen) -> web.StreamResponse:
        if self.lease is None:
            return refusal(404, "NotFound")
        if seen.method == "PUT" and self.conflicts:
            self.conflicts -= 1
            return refusal(409, "Conflict")
        return web.json_response(self.lease)


@asynccontextmanager
async def ocm_hub() -> AsyncIterator[tuple[OcmHub, ApiHubClient]]:
    authority = MemoryHub(SystemClock())
    credential = authority.credential(agent_subject(CLUSTER, AGENT))
    async with scripted_apiserver(tls=server_context(serving_material(authority.authority))) as server:
        address = HubAddress(server.url, authority.authority.certificate, Driver.CSR)
        client = ApiHubClient(address, ClientIdentity(credential.chain, credential.key), SystemClock())
        try:
            yield OcmHub(server, parse_certificate(credential.chain).not_after), client
        finally:
            await client.close()


async def test_session_at_a_hub_that_shows_nothing_before_acceptance() -> None:
    deleted = asyncio.Event()
    async with ocm_hub() as (hub, client):

        async def stream(_seen: Seen, send: Any) -> None:
            await deleted.wait()
            last = {**hub.cluster, "metadata": {**hub.cluster["metadata"], "resourceVersion": "2"}}
            await send({"type": "DELETED", "object": last})
            await asyncio.Event().wait()

        hub.server.stream = stream
        async with client.session(SessionHello(UID)) as opened:
            assert not (await desired_when(opened, lambda _: True)).accepted
            hub.accepted = True
            desired = await desired_when(opened, lambda one: one.accepted and one.addons_known)
            assert desired.addons == (), "this hub serves no add-ons"

            beat = asyncio.ensure_future(opened.beat(available=True))
            await hub.server.until(lambda: any("/leases/" in seen.path for seen in hub.server.seen))
            hub.conflicts = 2
            hub.lease = {"metadata": {"name": LEASE_NAME, "resourceVersion": "1"}, "spec": {"holderIdentity": LEASE_NAME}}
            async with asyncio.timeout(WITHIN):
                await beat
            assert not hub.conflicts
            methods = {seen.method for seen in hub.server.seen if "/leases/" in seen.path}
            assert methods == {"GET", "PUT"}, "the agent never creates the lease"

            hub.accepted = False
            beat = asyncio.ensure_future(opened.beat(available=True))
            await desired_when(opened, lambda one: not one.accepted)
            hub.accepted = True
            await desired_when(opened, lambda one: one.accepted)
            async with asyncio.timeout(WITHIN):
                await beat
            deleted.set()
            assert await loss_of(opened) is SessionLoss.FORGOTTEN


async def test_session_ends_with_its_certificate_although_its_connection_stays_open() -> None:
    async with ocm_hub() as (hub, client):

        async def at_its_end(seen: Seen) -> web.StreamResponse:
            answer = await hub.answer(seen)
            answer.headers["Date"] = format_datetime(hub.certificate_ends, usegmt=True)
            return answer

        hub.server.answer = at_its_end
        async with client.session(SessionHello(UID)) as opened:
            assert await loss_of(opened) is SessionLoss.UNAUTHENTICATED


def with_token(server: ScriptedApiServer, clock: Clock) -> ApiHubClient:
    return ApiHubClient(HubAddress(server.url, b"", Driver.CSR), ClientIdentity(token=BearerToken("opaque")), clock)


async def test_expired_watch_is_listed_anew_and_no_change_is_missed() -> None:
    async with scripted_apiserver() as server:
        request: dict[str, Any] = {"metadata": {"name": "c1-x", "resourceVersion": "5"}, "spec": {}, "status": {}}
        denied = {"conditions": [{"type": "Denied", "status": "True", "reason": "r", "message": "no"}]}
        rounds: list[str] = []

        async def answer(seen: Seen) -> web.StreamResponse:
            if seen.path.endswith("/c1-x"):
                return web.json_response(request)
            return web.json_response({"items": [request], "metadata": {"resourceVersion": "5"}})

        async def stream(seen: Seen, send: Any) -> None:
            rounds.append(seen.query["resourceVersion"])
            request["status"] = denied  # while nobody watched
            await send({"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}})

        server.answer, server.stream = answer, stream
        client = with_token(server, SystemClock())
        async with asyncio.timeout(WITHIN):
            states = [state.state async for state in client.follow_request("c1-x")]
        await client.close()
        assert (states, rounds) == (["pending", "denied"], ["5"])


async def test_bootstrap_credential_that_may_read_nothing_creates_its_cluster_and_learns_the_time() -> None:
    async with scripted_apiserver() as server:
        client = with_token(server, ManualClock())  # of another year
        assert abs((await client.info()).time - SystemClock().now()) < timedelta(minutes=1)
        await client.close()
        codes = {"GET": (403, "Forbidden"), "POST": (409, "AlreadyExists")}

        async def answer(seen: Seen) -> web.StreamResponse:
            return refusal(*codes[seen.method])

        server.answer = answer
        client = with_token(server, SystemClock())
        assert not (await client.ensure_cluster(IDENTITY, endpoints=(), annotations={})).created
        codes["POST"] = (403, "Forbidden")
        await check_refusal_of(ForbiddenError, client.ensure_cluster(IDENTITY, endpoints=(), annotations={}))
        await client.close()


@asynccontextmanager
async def dialled(address: HubAddress, credential: Credential, clock: Clock) -> AsyncIterator[GrpcHubClient]:
    client = GrpcHubClient(address, ClientIdentity(credential.chain, credential.key), clock)
    try:
        yield client
    finally:
        await client.close()


async def trouble(clock: Clock, port: int, trust: bytes, credential: Credential) -> str:
    """The message of a call and of a session, which name the same time of the agent's clock."""
    async with dialled(HubAddress(f"127.0.0.1:{port}", trust), credential, clock) as client:
        unary = present(await awaited_refusal(UnavailableError, client.info()))
        with pytest.raises(HubLostError) as stream:
            async with client.session(SessionHello("uid")):
                pass
    assert stream.value.message == unary.message
    return unary.message


async def test_failed_connection_is_reported_with_its_cause() -> None:
    clock = ManualClock(SystemClock().now())
    hub, other, day = MemoryHub(clock), MemoryHub(clock), timedelta(days=1)
    trust = hub.authority.certificate
    spent = hub.credential(bootstrap_subject(CredentialId("x")), lifetime=timedelta(minutes=-1))
    behind = ("the clock of this machine is behind", format_time(clock.now()), format_time(clock.now() + day))
    remedy = "make a new bootstrap kubeconfig at the hub with hubctl create bootstrap-kubeconfig"
    rows = (
        (day, trust, hub.credential(), behind),
        (-day, other.authority.certificate, other.credential(), ("is not the hub that the kubeconfig names", remedy)),
        (-day, trust, spent, ("refused our client certificate", "expired at")),
        (-day, trust, other.credential(), ("refused our client certificate",)),
    )
    wrong = []
    for begins_in, trusted, credential, words in rows:
        async with bare_server(hub, begins_in=begins_in) as port:
            message = await trouble(clock, port, trusted, credential)
        if not all(word in message for word in words):
            wrong.append((words, message))
    assert not wrong
    assert f"the hub at 127.0.0.1:{port} cannot be reached" in await trouble(clock, port, trust, hub.credential())


async def test_hub_of_a_release_without_standby_is_recognized_by_its_missing_methods() -> None:
    """It knows no such method: so does a server without any."""
    hub = MemoryHub(ManualClock(SystemClock().now()))
    async with (
        bare_server(hub) as port,
        dialled(HubAddress(f"127.0.0.1:{port}", hub.authority.certificate), hub.credential(), hub.clock) as client,
    ):
        await check_refusal_of(MethodNotAllowedError, client.stand_by(IDENTITY, owner=None, epoch=1))
        await check_refusal_of(MethodNotAllowedError, client.leave(IDENTITY))


async def test_replica_that_accepts_and_stays_silent_is_left_after_five_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert timedelta(seconds=5) == channel.WELCOME_TIMEOUTS[0]
    monkeypatch.setattr(channel, "WELCOME_TIMEOUTS", (timedelta(seconds=0.3), timedelta(seconds=5), timedelta(seconds=6)))
    monkeypatch.setattr(channel, "DIAGNOSIS_TIMEOUT", timedelta(milliseconds=300))
    loop = asyncio.get_running_loop()

    async def two(_host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (place, port)) for place in ("127.0.0.1", "127.0.0.2")]

    monkeypatch.setattr(loop, "getaddrinfo", two)
    hub, backoff = MemoryHub(ManualClock(SystemClock().now())), HubBackoff()
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        port = frozen.getsockname()[1]
        address, credential = HubAddress(f"127.0.0.1:{port}", hub.authority.certificate), hub.credential()
        async with bare_server(hub, place=f"127.0.0.2:{port}"):
            losses = []
            for _ in range(2):
                client = GrpcHubClient(address, ClientIdentity(credential.chain, credential.key), hub.clock, backoff=backoff)
                with pytest.raises(HubLostError) as lost:
                    async with client.session(SessionHello("uid")):
                        pass
                losses.append((lost.value.loss, lost.value.retry_after))
                await client.close()
    assert losses[0][0] is SessionLoss.SILENT
    assert present(losses[0][1]) <= timedelta(seconds=2), "an overloaded hub is also silent: the pauses grow"
    assert losses[1][0] is not SessionLoss.SILENT, "the other replica has answered: it knows no such method"
    assert (await backoff.dialled(address))[0] == f"ipv4:127.0.0.2:{port},127.0.0.1:{port}"
    backoff.silent(address.target)
    assert (await backoff.dialled(address))[0] == f"ipv4:127.0.0.1:{port},127.0.0.2:{port}"
    backoff.silent(address.target)
    assert backoff.timeout(address.target) == channel.WELCOME_TIMEOUTS[-1], "a slow hub gets more time"


DAY = timedelta(days=1)


@asynccontextmanager
async def bare_server(hub: MemoryHub, *, begins_in: timedelta = -DAY, place: str = "127.0.0.1:0") -> AsyncIterator[int]:
    """Listens there with a certificate of the CA of `hub`, for 127.0.0.1, which begins so long after its present time."""
    key, begin = generate_key(), hub.clock.now() + begins_in
    subject, public, serial = CertificateSubject("hub"), public_key_of(key), random_serial()
    plan = Plan(subject, public, serial, begin, begin + 30 * DAY, Usage.SERVER, ip_addresses=("127.0.0.1",))
    shown, trusted = [(key, hub.authority.sign(plan))], hub.authority.certificate
    server = aio.server(options=[("grpc.so_reuseport", 0)])
    port = server.add_secure_port(
        place, grpc.ssl_server_credentials(shown, root_certificates=trusted, require_client_auth=True)
    )
    await server.start()
    try:
        yield port
    finally:
        await server.stop(0)


LOGIN = "agent:hush-hush"


@dataclass
class Way:
    """A hub that is dialled through the proxy that is asked for."""

    rig: ApiRig
    driver: Driver

    @property
    def target(self) -> str:
        return self.rig.server if self.driver is Driver.CSR else f"127.0.0.1:{self.rig.stage.door.port}"

    def client(self, credential: Credential, proxy: str) -> HubClient:
        address = HubAddress(self.target, self.rig.trust, self.driver, proxy)
        client = ApiHubClient if self.driver is Driver.CSR else GrpcHubClient
        return client(address, ClientIdentity(credential.chain, credential.key), SystemClock())


@pytest.fixture(params=[Driver.GRPC, Driver.CSR])
async def way(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Way]:
    async with rpc_stage(tmp_path) as stage:
        yield Way(ApiRig(stage), request.param)


async def test_agent_uses_the_proxy_that_is_named_and_no_other(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    credential = await way.rig.bootstrap()

    async def info(proxy: str) -> None:
        client = way.client(credential, proxy)
        try:
            await client.info()
        finally:
            await client.close()

    async with ConnectProxy(LOGIN).serving() as proxy:
        named = f"http://{LOGIN}@127.0.0.1:{proxy.port}"
        bootstrap = way.client(credential, named)
        await bootstrap.ensure_cluster(IDENTITY, endpoints=(), annotations={})
        await bootstrap.close()
        agent = way.client(await way.rig.agent(), named)
        async with agent.session(SessionHello(UID)) as session:
            await session.beat(available=True)
        await agent.close()
        assert set(proxy.tunnels) == {way.target.removeprefix("https://")}
        assert not proxy.refused

        used = len(proxy.tunnels)
        with monkeypatch.context() as patched:
            for name in ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "grpc_proxy"):
                patched.setenv(name, named)
            await info("")
        assert len(proxy.tunnels) == used, "the environment names no proxy"
        with monkeypatch.context() as patched:
            for name in ("NO_PROXY", "no_proxy"):
                patched.setenv(name, "127.0.0.1")
            await info(named)
        assert len(proxy.tunnels) > used, "the environment excepts no hub"

    away = present(await awaited_refusal(UnavailableError, info(named)))
    assert f"through the proxy http://127.0.0.1:{proxy.port}" in away.message
    assert "hush" not in away.message
    async with ConnectProxy("agent:right").serving() as proxy:
        refused = present(await awaited_refusal(UnavailableError, info(f"http://{LOGIN}@127.0.0.1:{proxy.port}")))
        assert f"http://127.0.0.1:{proxy.port}" in refused.message
        assert "hush" not in refused.message
        assert proxy.refused


@pytest.mark.parametrize("way", [Driver.CSR], indirect=True)
async def test_certificate_of_a_proxy_is_verified_by_the_authorities_of_the_machine(
    way: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = OtherCA("proxies").authority
    (tmp_path / "authority.pem").write_bytes(authority.certificate)
    async with ConnectProxy(LOGIN, server_context(serving_material(authority))).serving() as proxy:
        url = f"https://{LOGIN}@127.0.0.1:{proxy.port}"
        stranger = way.client(await way.rig.bootstrap(), url)
        await check_refusal_of(MusterError, stranger.info())
        await stranger.close()
        assert not proxy.tunnels
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
        client = way.client(await way.rig.bootstrap(), url)
        assert (await client.info()).trust_bundle == way.rig.trust
        await client.close()
        assert proxy.tunnels == [way.target.removeprefix("https://")]
