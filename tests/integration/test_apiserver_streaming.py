"""Long lists and wide watches of the generic API server: sent in pieces, made once."""

import asyncio
import gzip
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import yaml
from aiohttp import web

from machinery.apiserver.http.responses import LONG, PIECE
from machinery.apiserver.kinds.core import CONFIG_MAP
from machinery.apiserver.resource import ApiGroup, ServedVersion
from machinery.apiserver.storage import GroupResource
from machinery.apiserver.storages.memory import MemoryStorage
from machinery.meta.objects import Key, Query, WatchEvent
from tests.fakes.stage import until
from tests.integration.test_apiserver import ADMIN, GROUPS, THING, THINGS, Client, running, thing

COUNT = 60
BIG = "x" * 50_000
MAPS = "/api/v1/namespaces/default/configmaps"


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with running() as made:
        kind = {"apiVersion": "v1", "kind": "ConfigMap"}
        for number in range(COUNT):
            key = Key("default", f"map-{number:03}")
            metadata = {"name": key.name, "namespace": key.namespace}
            await made.storage.create(CONFIG_MAP.key, key, {**kind, "metadata": metadata, "data": {"big": BIG}}, ADMIN)
        yield made


def check(body: bytes) -> None:
    found = json.loads(body)
    assert found["kind"] == "ConfigMapList"
    assert [item["metadata"]["name"] for item in found["items"]] == [f"map-{number:03}" for number in range(COUNT)]
    assert {item["data"]["big"] for item in found["items"]} == {BIG}


async def test_a_long_list_is_whole_goes_out_in_pieces_and_is_compressed(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    write = web.StreamResponse.write

    async def counted(self: web.StreamResponse, piece: Any) -> None:
        sizes.append(len(piece))
        await write(self, piece)

    monkeypatch.setattr(web.StreamResponse, "write", counted)
    async with client.session.get(client.url + MAPS, headers={"Accept-Encoding": "identity"}) as response:
        body = await response.read()
    assert len(body) > COUNT * len(BIG) > LONG
    assert int(response.headers["Content-Length"]) == len(body)
    check(body)
    assert len(sizes) >= COUNT * len(BIG) // (PIECE + len(BIG))
    assert max(sizes) < PIECE + 2 * len(BIG)

    request = client.session.get(client.url + MAPS, headers={"Accept-Encoding": "gzip"}, auto_decompress=False)
    async with request as response:
        body = await response.read()
    assert response.headers["Content-Encoding"] == "gzip"
    assert len(body) < COUNT * len(BIG) / 10
    check(gzip.decompress(body))


async def test_a_client_that_leaves_in_the_middle_leaves_no_error(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", client.listening.port, limit=1 << 12)
    writer.write(f"GET {MAPS} HTTP/1.1\r\nHost: test\r\n\r\n".encode())
    assert b"200" in await reader.readline()
    writer.transport.abort()
    status, _ = await client("GET", f"{MAPS}/map-000")
    assert status == 200
    await until(lambda: len(client.listening.connections) == 1)
    assert "error" not in capsys.readouterr().out


class Sharing(MemoryStorage):
    """Tells all watchers of a change by one event, as the hub's feed does."""

    events: dict[int, WatchEvent]

    @asynccontextmanager
    async def watch(
        self, resource: GroupResource, query: Query, *, after: int
    ) -> AsyncGenerator[AsyncIterator[WatchEvent | int]]:
        async with super().watch(resource, query, after=after) as inner:
            yield self._shared(inner)

    async def _shared(self, inner: AsyncIterator[WatchEvent | int]) -> AsyncIterator[WatchEvent | int]:
        async for event in inner:
            yield event if isinstance(event, int) else self.events.setdefault(event.stored.revision, event)


@pytest.mark.parametrize("table", [False, True])
async def test_a_change_is_written_once_for_all_watchers_that_ask_for_the_same_form(
    capsys: pytest.CaptureFixture[str], *, table: bool
) -> None:
    converted: list[str] = []

    def convert(stored: Any) -> dict[str, Any]:
        converted.append(stored["metadata"]["name"])
        return {name: part for name, part in stored.items() if name != "spec"}

    other = replace(THING, versions=(replace(THING.versions[0], from_stored=convert),))
    assert isinstance(THING.versions[0], ServedVersion)
    storage = Sharing()
    storage.events = {}
    accept = "application/json;as=Table;v=v1;g=meta.k8s.io" if table else "application/json"
    async with running(storage, groups=(*GROUPS[:2], ApiGroup("example.com", (other,)))) as client:
        await client.thing("before", size=1)
        url = f"{client.url}{THINGS.replace('/v1/', '/v1alpha1/')}?watch=1&resourceVersion={await storage.revision()}"
        watches = [await client.session.get(url, headers={"Accept": accept}) for _ in range(20)]
        await storage.create(THING.key, Key("", "news"), thing("news", size=2), ADMIN)
        lines = [json.loads(await watch.content.readline()) for watch in watches]
        assert {line["type"] for line in lines} == {"ADDED"}
        if table:
            assert all(line["object"]["columnDefinitions"] for line in lines)
            await storage.create(THING.key, Key("", "more"), thing("more", size=2), ADMIN)
            again = [json.loads(await watch.content.readline()) for watch in watches]
            assert not any(line["object"]["columnDefinitions"] for line in again)
        else:
            assert converted == ["news"]
        for watch in watches:
            watch.close()
    assert "error" not in capsys.readouterr().out  # they went while the server ended their watches


async def test_a_list_that_is_too_large_for_yaml_is_refused_unless_it_is_what_was_done(client: Client) -> None:
    status, answer = await client("GET", MAPS, Accept="application/yaml")
    assert (status, yaml.safe_load(answer)["reason"]) == (406, "NotAcceptable"), answer
    status, answer = await client("GET", f"{MAPS}?limit=10", Accept="application/yaml")
    assert (status, len(yaml.safe_load(answer)["items"])) == (200, 10)
    many = {"metadata": {"name": "many"}, "spec": {"size": 1}}
    await client.storage.create(THING.key, Key("", "many"), {**thing("many"), **many, "list": [0] * 50_000}, ADMIN)
    status, answer = await client("GET", f"{THINGS}/many", Accept="application/yaml")
    assert (status, yaml.safe_load(answer)["reason"]) == (406, "NotAcceptable"), answer
    status, answer = await client("DELETE", MAPS, Accept="application/yaml")
    assert (status, len(answer["items"])) == (200, COUNT)
