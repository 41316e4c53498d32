"""An agent's one connection through an HTTP CONNECT proxy, with either driver."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from machinery.client.kubeconfig import Credential
from machinery.errors import MusterError, UnavailableError
from machinery.runtime.clock import SystemClock
from machinery.runtime.tls import server_context
from spoke.domain.route import Driver
from spoke.ports.hub import ClientIdentity, Greeting, HubAddress, HubClient
from spoke.transports.grpc.client import GrpcHubClient
from spoke.transports.kubernetes.client import ApiHubClient
from tests.fakes.authority import OtherCA
from tests.fakes.connect_proxy import connect_proxy
from tests.fakes.hub_rigs import IDENTITY, UID, ApiRig
from tests.fakes.identity import serving_material
from tests.fakes.rpc_stage import rpc_stage

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
        async with agent.session(Greeting(UID)) as session:
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
    context = server_context(serving_material(authority))
    async with connect_proxy(LOGIN, context) as proxy:
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
