"""The server as its own client: known by its token, shown a certificate of its own, and nobody else is."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from datetime import timedelta

import aiohttp
import pytest
from aiohttp import web

from machinery.apiserver.access import ANONYMOUS, Attributes, Authenticator, Authorizer, Decision
from machinery.apiserver.draining import Draining
from machinery.apiserver.filters import Filters
from machinery.apiserver.kinds.core import CONFIG_MAP
from machinery.apiserver.loopback import LIFETIME, SERVER_NAME, USER_AGENT, Loopback, LoopbackAuthenticator, LoopbackClient
from machinery.apiserver.memory import MemoryStorage
from machinery.apiserver.resource import Group, selectable_fields
from machinery.apiserver.server import ApiServer
from machinery.apiserver.serving import Listening, serve
from machinery.apiserver.storage import Actor
from machinery.clock import ManualClock, SystemClock
from machinery.errors import ForbiddenError, NotFoundError, UnavailableError
from machinery.tls import client_context, server_context

GROUPS = (Group("", (CONFIG_MAP,)),)
PATH = "/api/v1/namespaces/default/configmaps"


class Nobody(Authenticator):
    async def authenticate(self, request: web.Request) -> Actor:
        del request
        return ANONYMOUS


class OnlyMasters(Authorizer):
    async def authorize(self, actor: Actor, attributes: Attributes) -> Decision:
        del attributes
        return Decision(allowed="system:masters" in actor.groups)


async def every(_namespace: str) -> bool:
    return True


class Stage:
    def __init__(self, listening: Listening, loopback: Loopback, public: Loopback, draining: Draining) -> None:
        self.listening = listening
        self.loopback = loopback
        self.public = public
        self.draining = draining

    def client(self, loopback: Loopback | None = None) -> LoopbackClient:
        return LoopbackClient(loopback or self.loopback, "0.0.0.0", self.listening.port)  # noqa: S104 - as a hub listens


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    now = SystemClock().now()
    loopback, public = Loopback.fresh(now), Loopback.fresh(now)
    draining = Draining(loopback)
    server = ApiServer(
        GROUPS,
        MemoryStorage(selectable_fields(GROUPS)),
        authenticator=LoopbackAuthenticator(loopback, Nobody()),
        authorizer=OnlyMasters(),
        clock=SystemClock(),
        version={"gitVersion": "v0"},
        namespaces=every,
        filters=Filters(gate=(draining.gate,), in_flight=(draining.counted,)),
    )
    context = server_context(public.material)
    loopback.shown_by(context)
    listening = await serve(server.application(), "127.0.0.1", 0, context)
    yield Stage(listening, loopback, public, draining)
    await listening.close(timedelta())


async def test_its_own_client_may_do_everything(stage: Stage) -> None:
    document = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"x": "y"}}
    async with stage.client() as client:
        assert (await client.request("POST", PATH, document))["data"] == {"x": "y"}
        assert (await client.get(f"{PATH}/a"))["metadata"]["name"] == "a"
        with pytest.raises(NotFoundError):
            await client.get(f"{PATH}/b")
        assert await client.get("/readyz") == "ok"


async def test_it_is_answered_also_while_everybody_else_is_refused(stage: Stage) -> None:
    stage.draining.refuse()
    async with stage.client() as client:
        assert (await client.get(PATH))["items"] == []


async def test_another_token_is_nobody(stage: Stage) -> None:
    other = Loopback.fresh(SystemClock().now())
    forged = Loopback(other.token, stage.loopback.material, other.not_after)
    async with stage.client(forged) as client:
        with pytest.raises(ForbiddenError):
            await client.get(PATH)


async def test_a_user_agent_opens_no_door_that_is_closed(stage: Stage) -> None:
    context = client_context(stage.loopback.material.trust)
    url = f"https://127.0.0.1:{stage.listening.port}{PATH}"
    for code in (403, 429):
        async with (
            aiohttp.ClientSession(headers={"User-Agent": f"{USER_AGENT}1"}) as session,
            session.get(url, ssl=context, server_hostname=SERVER_NAME) as response,
        ):
            assert response.status == code
        stage.draining.refuse()


async def test_everybody_else_is_shown_the_public_certificate(stage: Stage) -> None:
    shown = {}
    for name in (SERVER_NAME, "localhost"):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        _, writer = await asyncio.open_connection("127.0.0.1", stage.listening.port, ssl=context, server_hostname=name)
        shown[name] = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.transport.abort()
    assert shown[SERVER_NAME] == ssl.PEM_cert_to_DER_cert(stage.loopback.material.chain.decode())
    assert shown["localhost"] == ssl.PEM_cert_to_DER_cert(stage.public.material.chain.decode())


async def test_it_trusts_no_other_certificate(stage: Stage) -> None:
    stranger = Loopback(stage.loopback.token, stage.public.material, stage.public.not_after)
    async with stage.client(stranger) as client:
        with pytest.raises(UnavailableError):
            await client.get(PATH)


async def test_nothing_of_it_is_in_its_representation(stage: Stage) -> None:
    assert stage.loopback.token not in repr(stage.loopback)
    assert "PRIVATE" not in repr(stage.loopback)


async def test_its_health_check_fails_once_the_certificate_is_over() -> None:
    clock = ManualClock()
    check = Loopback.fresh(clock.now()).check(clock)
    clock.advance(LIFETIME)
    await check()
    clock.advance(timedelta(seconds=1))
    with pytest.raises(RuntimeError, match="ended at"):
        await check()
