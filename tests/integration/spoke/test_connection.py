"""An agent's connection to its hub: what is reported when it fails, and the way through a proxy, with either driver."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import grpc
import pytest
from grpc import aio

from machinery.client.kubeconfig import Credential
from machinery.errors import MethodNotAllowedError, MusterError, UnavailableError
from machinery.identity import AgentId, CertificateSubject, ClusterName, CredentialId, bootstrap_subject
from machinery.meta.timestamps import format_time
from machinery.pki import Plan, Usage, generate_key, public_key_of, random_serial
from machinery.runtime.clock import Clock, ManualClock, SystemClock
from machinery.runtime.tls import server_context
from spoke.domain.names import AgentIdentity, AgentNames
from spoke.domain.next_step import SessionEnd
from spoke.domain.route import Driver
from spoke.ports.hub import ClientIdentity, HubAddress, HubClient, HubLostError, SessionHello
from spoke.transports.grpc import channel, client as client_module
from spoke.transports.grpc.channel import AddressRotation
from spoke.transports.grpc.client import GrpcHubClient
from spoke.transports.kubernetes.client import ApiHubClient
from tests.fakes.authority import OtherCA
from tests.fakes.forwarder import connect_proxy
from tests.fakes.hub import MemoryHub
from tests.fakes.hub_rigs import IDENTITY, UID, ApiRig
from tests.fakes.identity import serving_material
from tests.fakes.rpc_stage import rpc_stage


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
        with pytest.raises(UnavailableError) as unary:
            await client.info()
        with pytest.raises(HubLostError) as stream:
            async with client.session(SessionHello("uid")):
                pass
    assert stream.value.message == unary.value.message
    return unary.value.message


async def test_failed_connection_is_reported_with_its_cause() -> None:
    clock = ManualClock(SystemClock().now())
    hub, other, day = MemoryHub(clock), MemoryHub(clock), timedelta(days=1)
    trust, spent = (
        hub.authority.certificate,
        hub.credential(bootstrap_subject(CredentialId("x")), lifetime=timedelta(minutes=-1)),
    )
    behind = ("the clock of this machine is behind", format_time(clock.now()), format_time(clock.now() + day))
    remedy = "make a new bootstrap kubeconfig there with hubctl create bootstrap-kubeconfig"
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
        with pytest.raises(MethodNotAllowedError):
            await client.stand_by(
                AgentIdentity(AgentNames(ClusterName("berlin"), AgentId("abcde")), "uid"), owner=None, epoch=1
            )
        with pytest.raises(MethodNotAllowedError):
            await client.leave(AgentIdentity(AgentNames(ClusterName("berlin"), AgentId("abcde")), "uid"))


async def test_replica_that_accepts_and_stays_silent_is_left_after_five_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert timedelta(seconds=5) == client_module.WELCOME_TIMEOUT
    monkeypatch.setattr(client_module, "WELCOME_TIMEOUT", timedelta(milliseconds=300))
    monkeypatch.setattr(channel, "DIAGNOSIS_TIMEOUT", timedelta(milliseconds=300))
    loop = asyncio.get_running_loop()

    async def two(_host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (place, port)) for place in ("127.0.0.1", "127.0.0.2")]

    monkeypatch.setattr(loop, "getaddrinfo", two)
    hub, turns = MemoryHub(ManualClock(SystemClock().now())), AddressRotation()
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        port = frozen.getsockname()[1]
        address, credential = HubAddress(f"127.0.0.1:{port}", hub.authority.certificate), hub.credential()
        async with bare_server(hub, place=f"127.0.0.2:{port}"):
            losses = []
            for _ in range(2):
                client = GrpcHubClient(address, ClientIdentity(credential.chain, credential.key), hub.clock, turns=turns)
                with pytest.raises(HubLostError) as lost:
                    async with client.session(SessionHello("uid")):
                        pass
                losses.append(lost.value.loss)
                await client.close()
    assert losses[0] is SessionEnd.SILENT
    assert losses[1] is not SessionEnd.SILENT, "the other replica has answered: it knows no such method"
    assert (await turns.dialled(address))[0] == f"ipv4:127.0.0.2:{port},127.0.0.1:{port}"
    turns.silent(address.target)
    assert (await turns.dialled(address))[0] == f"ipv4:127.0.0.1:{port},127.0.0.2:{port}"


DAY = timedelta(days=1)


@asynccontextmanager
async def bare_server(hub: MemoryHub, *, begins_in: timedelta = -DAY, place: str = "127.0.0.1:0") -> AsyncIterator[int]:
    """Listens there with a certificate of the CA of `hub`, for 127.0.0.1, which begins so long after its present time."""
    key, begin = generate_key(), hub.clock.now() + begins_in
    local = ("127.0.0.1",)
    plan = Plan(
        CertificateSubject("hub"),
        public_key_of(key),
        random_serial(),
        begin,
        begin + 30 * DAY,
        Usage.SERVER,
        ip_addresses=local,
    )
    certificate = hub.authority.certificate
    server = aio.server(options=[("grpc.so_reuseport", 0)])
    credentials = grpc.ssl_server_credentials(
        [(key, hub.authority.sign(plan))], root_certificates=certificate, require_client_auth=True
    )
    port = server.add_secure_port(place, credentials)
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

    async with connect_proxy(LOGIN) as proxy:
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

    with pytest.raises(UnavailableError) as away:
        await info(named)
    assert f"through the proxy http://127.0.0.1:{proxy.port}" in away.value.message
    assert "hush" not in away.value.message
    async with connect_proxy("agent:right") as proxy:
        with pytest.raises(UnavailableError) as refused:
            await info(f"http://{LOGIN}@127.0.0.1:{proxy.port}")
        assert f"http://127.0.0.1:{proxy.port}" in refused.value.message
        assert "hush" not in refused.value.message
        assert proxy.refused


@pytest.mark.parametrize("way", [Driver.CSR], indirect=True)
async def test_certificate_of_a_proxy_is_verified_by_the_authorities_of_the_machine(
    way: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = OtherCA("proxies").authority
    (tmp_path / "authority.pem").write_bytes(authority.certificate)
    async with connect_proxy(LOGIN, server_context(serving_material(authority))) as proxy:
        url = f"https://{LOGIN}@127.0.0.1:{proxy.port}"
        stranger = way.client(await way.rig.bootstrap(), url)
        with pytest.raises(MusterError):
            await stranger.info()
        await stranger.close()
        assert not proxy.tunnels
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
        client = way.client(await way.rig.bootstrap(), url)
        assert (await client.info()).trust_bundle == way.rig.trust
        await client.close()
        assert proxy.tunnels == [way.target.removeprefix("https://")]
