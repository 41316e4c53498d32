"""Open watches end with the credential that they were opened with, and nobody else's do."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

import aiohttp
import pytest

from hub.apiserver.storage import ServiceStorage
from hub.services import credentials
from hub.services.credentials import Terms
from machinery.apiserver.access import AllowEverything
from machinery.apiserver.filters import Filters
from machinery.apiserver.kinds.core import SERVICE_ACCOUNT
from machinery.apiserver.resource import Group
from machinery.apiserver.server import ApiServer
from machinery.apiserver.serving import serve
from machinery.clock import SystemClock
from machinery.product import GROUP_SUFFIX
from tests.integration.door.conftest import HubUnderTest
from tests.integration.door.test_access import holder
from tests.integration.door.test_service_accounts import ACCOUNTS, make, token_of


@pytest.fixture
async def open_to_all(hub: HubUnderTest) -> AsyncIterator[str]:
    """A server that allows everything to whoever comes through the hub's entrance."""
    entrance = hub.door.entrance
    server = ApiServer(
        (Group("", (SERVICE_ACCOUNT,)),),
        ServiceStorage(hub.store, hub.door.feed, GROUP_SUFFIX),
        authenticator=entrance.authenticator,
        authorizer=AllowEverything(),
        clock=SystemClock(),
        version={},
        filters=Filters(impersonation=(entrance.presence,)),
    )
    listening = await serve(server.application(), "127.0.0.1", 0)
    yield f"http://127.0.0.1:{listening.port}"
    await listening.close()


@dataclass
class Watch:
    """An open watch of the ServiceAccounts that are."""

    response: aiohttp.ClientResponse

    async def event(self) -> str:
        return str(json.loads(await self.response.content.readline())["type"])

    async def broken(self) -> None:
        async with asyncio.timeout(10):
            with pytest.raises(aiohttp.ClientError):
                while await self.response.content.readline():
                    pass


@asynccontextmanager
async def watching(url: str, token: str) -> AsyncIterator[Watch]:
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        headers = {"Authorization": f"Bearer {token}"}
        asked = session.get(f"{url}{ACCOUNTS}?watch=1", headers=headers)
        response = await stack.enter_async_context(asked)
        assert response.status == 200
        yield Watch(response)


async def bootstrap(hub: HubUnderTest, lifetime: timedelta = timedelta(hours=1)) -> tuple[str, Callable[[], Awaitable[None]]]:
    """A bootstrap token, and what revokes it."""
    record, token = await hub.store.run(credentials.create_token, Terms(None, None, lifetime), "ann")

    async def revoke() -> None:
        await hub.store.run(credentials.revoke, record.id)

    return token, revoke


async def test_a_revoked_bootstrap_token_ends_its_watches(hub: HubUnderTest, open_to_all: str) -> None:
    await make(holder(hub, await hub.admin()))
    (token, revoke), (other, _) = await bootstrap(hub), await bootstrap(hub)
    async with watching(open_to_all, token) as mine, watching(open_to_all, other) as theirs:
        assert [await mine.event(), await theirs.event()] == ["ADDED", "ADDED"]
        await revoke()
        await mine.broken()
        assert not theirs.response.content.at_eof()


async def test_a_bootstrap_token_that_expires_ends_its_watches(hub: HubUnderTest, open_to_all: str) -> None:
    await make(holder(hub, await hub.admin()))
    token, _ = await bootstrap(hub, timedelta(seconds=2))
    async with watching(open_to_all, token) as mine:
        assert await mine.event() == "ADDED"
        await mine.broken()


async def test_a_deleted_service_account_ends_its_watches(hub: HubUnderTest, open_to_all: str) -> None:
    admin = holder(hub, await hub.admin())
    await make(admin)
    token, (other, _) = await token_of(admin), await bootstrap(hub)
    async with watching(open_to_all, token) as mine, watching(open_to_all, other) as theirs:
        assert [await mine.event(), await theirs.event()] == ["ADDED", "ADDED"]
        assert (await admin.ask("DELETE", f"{ACCOUNTS}/metrics"))[0] == 200
        await mine.broken()
        assert await theirs.event() == "DELETED"
