"""The generic API server over real sockets: bounds, stops, faults, versions, long lists and wide watches."""

import asyncio
import gzip
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import aiohttp
import pytest
import yaml
from aiohttp import web
from yarl import URL

from machinery.apiserver.access import Authenticator
from machinery.apiserver.http.listener import Listening, serve
from machinery.apiserver.http.responses import LONG, PIECE
from machinery.apiserver.kinds.core import CONFIG_MAP, COORDINATION, NAMESPACE
from machinery.apiserver.resource import ApiGroup, Column, Resource, ServedVersion, TableRow, selectable_fields
from machinery.apiserver.server import ApiServer, RequestBounds
from machinery.apiserver.storage import Actor, Admission, GroupResource, Storage
from machinery.apiserver.storages.memory import MemoryStorage
from machinery.errors import ForbiddenError, UnavailableError
from machinery.meta.objects import Document, Key, Query, WatchEvent
from machinery.runtime.clock import SystemClock
from tests.checks import check_refusal_of
from tests.fakes.identity import AllowEverything, EveryoneIsAdmin, every_namespace
from tests.fakes.stage import until

ADMIN = Actor("admin")
OLD_SCHEMA: dict[str, Any] = {"type": "object", "properties": {"size": {"type": "integer"}}}
NEW_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"spec": {"type": "object", "properties": {"size": {"type": "integer"}, "unit": {"type": "string"}}}},
}
THING = Resource(
    group="example.com",
    version="v1",
    name="things",
    kind="Thing",
    schema=NEW_SCHEMA,
    counts_generations=True,
    columns=(Column("Size", lambda row: row.document["spec"].get("size"), type="integer"),),
    versions=(
        ServedVersion(
            "v1alpha1",
            OLD_SCHEMA,
            from_stored=lambda stored: {
                **{name: part for name, part in stored.items() if name != "spec"},
                "size": stored.get("spec", {}).get("size", 0),
            },
            to_stored=lambda old: {
                **{name: part for name, part in old.items() if name != "size"},
                "spec": {"size": old.get("size", 0), "unit": "metre"},
            },
        ),
    ),
)
GROUPS = (ApiGroup("", (NAMESPACE, CONFIG_MAP)), COORDINATION, ApiGroup("example.com", (THING,)))
THINGS = "/apis/example.com/v1/things"
MISSHAPEN: tuple[dict[str, Any], ...] = (
    *({"spec": []}, {"spec": 5}, {"metadata": []}, {"metadata": {"name": ["a"]}}, {"metadata": {"generateName": 5}}),
    *({"metadata": {"name": "a", "labels": [1]}}, {"metadata": {"name": "a", "namespace": 7}}),
    *({"metadata": {"name": "a", "finalizers": {"x": 1}}}, {"metadata": {"name": "a", "annotations": {"x": 1}}}),
    *({"metadata": {"name": "a", part: no}} for part in ("labels", "annotations", "finalizers") for no in (False, 0)),
)


@dataclass
class Client:
    """Requests to one server."""

    session: aiohttp.ClientSession
    listening: Listening
    server: ApiServer
    storage: Storage

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.listening.port}"

    async def __call__(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        shown = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.session.request(method, URL(self.url + path, encoded=True), data=data, headers=shown) as response:
            text = await response.text()
            return response.status, json.loads(text) if response.content_type == "application/json" else text

    async def thing(self, name: str, **spec: Any) -> dict[str, Any]:
        status, created = await self("POST", THINGS, thing(name, **spec), Content_Type="application/json")
        assert status == 201, created
        return dict(created)


def thing(name: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": name}, "spec": spec}


@asynccontextmanager
async def running(storage: Storage | None = None, **parts: Any) -> AsyncIterator[Client]:
    chosen = storage or MemoryStorage(selectable_fields(GROUPS))
    defaults: dict[str, Any] = {
        "authenticator": EveryoneIsAdmin(),
        "authorizer": AllowEverything(),
        "clock": SystemClock(),
        "version": {"gitVersion": "v0"},
        "namespaces": every_namespace,
    }
    server = ApiServer(parts.pop("groups", GROUPS), chosen, **{**defaults, **parts})
    listening = await serve(server.application(), "127.0.0.1", 0, shutdown_timeout=timedelta(seconds=2))
    async with aiohttp.ClientSession() as session:
        yield Client(session, listening, server, chosen)
    await listening.close()


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with running() as client:
        yield client


async def test_a_port_is_not_shared_and_a_stopped_listener_finishes_its_connections(client: Client) -> None:
    await client.thing("a")
    port = client.listening.port
    await check_refusal_of(OSError, serve(client.server.application(), "127.0.0.1", port), match="in use")
    await client.listening.stop_listening()
    assert (await client("GET", f"{THINGS}/a"))[0] == 200, "the open connection goes on"
    async with aiohttp.ClientSession() as other:
        await check_refusal_of(aiohttp.ClientConnectorError, other.get(client.url))
    assert client.listening.port == port


async def test_misshapen_bodies_are_refused(client: Client) -> None:
    status, answer = await client("POST", THINGS, b"a: &a [1]\nb: [*a, *a]\n", Content_Type="application/yaml")
    assert (status, answer["message"].partition("; ")[2]) == (400, "yaml parse error: line 1: YAML aliases are not accepted")
    for wrong in MISSHAPEN:
        status, answer = await client("POST", THINGS, {**thing("a"), **wrong}, Content_Type="application/json")
        assert status in (400, 422), (wrong, answer)


async def test_yaml_may_have_numbers_as_keys_and_instants_stay_text(client: Client) -> None:
    head = b"apiVersion: example.com/v1\nkind: Thing\n"
    body = head + b"metadata: {name: a}\nspec: {1: 2, unit: b}\n"
    assert (await client("POST", THINGS, body, Content_Type="application/yaml"))[0] == 201
    body = head + b"metadata: {name: b}\nspec: {unit: 2026-11-21T00:00:00Z}\n"
    status, answer = await client("POST", THINGS, body, Content_Type="application/yaml")
    assert (status, answer["spec"]["unit"]) == (201, "2026-11-21T00:00:00Z")


class Broken(Authenticator):
    """Fails in a way nobody foresaw."""

    async def authenticate(self, request: web.Request) -> Actor:
        raise RuntimeError(f"secret in {request.path}")


class Stuck(MemoryStorage):
    async def get(self, *_given: Any) -> Any:
        await asyncio.Event().wait()


class Away(MemoryStorage):
    async def get(self, *_given: Any) -> Any:
        raise UnavailableError("the database is away", retry_after=timedelta(seconds=2))


async def test_errors_deadlines_and_absent_parts_have_their_status() -> None:
    async with running(authenticator=Broken()) as client:
        status, answer = await client("GET", THINGS)
    assert (status, answer["reason"]) == (500, "InternalError")
    assert "secret" not in json.dumps(answer)
    async with running(Stuck(), limits=RequestBounds(request=timedelta(milliseconds=100))) as client:
        status, answer = await client("GET", f"{THINGS}/a")
    assert (status, answer["reason"]) == (504, "Timeout")
    async with running(Away()) as client, client.session.get(f"{client.url}{THINGS}/a") as response:
        assert (response.status, response.headers["Retry-After"]) == (503, "2")


@asynccontextmanager
async def watching(client: Client, query: str = "") -> AsyncIterator[Callable[[], Awaitable[dict[str, Any]]]]:
    async with client.session.get(f"{client.url}{THINGS}?watch=1{query}") as response:

        async def read() -> dict[str, Any]:
            line = await asyncio.wait_for(response.content.readline(), 5)
            return dict(json.loads(line)) if line else {}

        yield read


async def test_watches_end_with_their_client_a_drain_and_the_listener(client: Client) -> None:
    async with aiohttp.ClientSession() as session, session.get(f"{client.url}{THINGS}?watch=1"):
        await until(lambda: len(client.server.watches) == 1)
    await until(lambda: len(client.server.watches) == 0, within=20)
    async with watching(client) as read:
        await client.thing("a")
        assert (await read())["type"] == "ADDED"
        await client.server.watches.drain(timedelta(seconds=5))
        assert await read() == {}
    assert (await client("GET", "/version"))[0] == 200
    assert (await client("GET", f"{THINGS}?watch=1"))[0] == 503, "a watch that comes now has to go elsewhere"


async def test_a_listener_that_closes_ends_open_watches(client: Client) -> None:
    async with watching(client) as read:
        await client.thing("a")
        assert (await read())["type"] == "ADDED"
        await client.listening.close()
        assert await read() == {}


async def test_a_quiet_watch_tells_bookmarks_to_those_who_want_them() -> None:
    async with (
        running(MemoryStorage(bookmark_every=timedelta(milliseconds=20)), limits=RequestBounds(bookmark=timedelta())) as client,
        watching(client, "&allowWatchBookmarks=true") as read,
    ):
        created = await client("POST", "/api/v1/namespaces", {"metadata": {"name": "other"}}, Content_Type="application/json")
        async with asyncio.timeout(5):
            while True:
                event = await read()
                assert event["type"] == "BOOKMARK"
                if event["object"]["metadata"]["resourceVersion"] == created[1]["metadata"]["resourceVersion"]:
                    break


async def test_a_watcher_that_is_too_slow_learns_that_its_place_expired() -> None:
    async with running(MemoryStorage(queue=1)) as client, watching(client) as read:
        await client.thing("a")
        await read()
        for name in ("b", "c", "d"):
            await client.storage.create(THING.key, Key("", name), {**thing(name), "metadata": {"name": name}}, ADMIN)
        events = [await read() for _ in range(2)]
    assert ([event["type"] for event in events], events[1]["object"]["code"]) == (["ADDED", "ERROR"], 410)


async def test_a_fault_in_a_watch_is_reported_as_an_event() -> None:
    def cell(row: TableRow) -> int:
        return int(row.document["spec"]["size"])

    groups = (ApiGroup("example.com", (replace(THING, columns=(Column("Size", cell),)),)),)
    headers = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
    async with running(groups=groups) as client:
        await client.thing("a")
        async with client.session.get(f"{client.url}{THINGS}?watch=1", headers=headers) as response:
            events = [json.loads(line) for line in (await response.text()).splitlines()]
    assert [(event["type"], event["object"]["reason"]) for event in events] == [("ERROR", "InternalError")]


async def test_pages_and_the_watch_after_them_miss_nothing(client: Client) -> None:
    for name in ("a", "b", "c"):
        await client.thing(name)
    _, first = await client("GET", f"{THINGS}?limit=2")
    await client("DELETE", f"{THINGS}/c")
    _, rest = await client("GET", f"{THINGS}?limit=2&continue={first['metadata']['continue']}")
    assert first["metadata"]["remainingItemCount"] == 1
    assert [item["metadata"]["name"] for item in (*first["items"], *rest["items"])] == ["a", "b", "c"]
    async with watching(client, f"&resourceVersion={rest['metadata']['resourceVersion']}") as read:
        event = await read()
    assert (event["type"], event["object"]["metadata"]["name"]) == ("DELETED", "c")


async def test_table_cells_can_come_from_beside_the_documents() -> None:
    asked: list[list[str]] = []

    async def extras(keys: Any) -> dict[Key, dict[str, Any]]:
        asked.append([key.name for key in keys])
        return {Key("", "a"): {"seen": 5}}

    columns = (Column("Seen", lambda row: row.extras.get("seen"), type="integer"),)
    async with running(groups=(ApiGroup("example.com", (replace(THING, columns=columns, extras=extras),)),)) as client:
        await client.thing("a")
        await client.thing("b")
        _, table = await client("GET", THINGS, Accept="application/json;as=Table;v=v1;g=meta.k8s.io")

    assert [row["cells"] for row in table["rows"]] == [["a", 5], ["b", None]]
    assert asked == [["a", "b"]], "one look-up per table"


async def test_admission_sees_every_write_and_refused_writes_change_nothing() -> None:
    asked: list[tuple[int | None, int]] = []
    reported: list[int] = []

    def admit(write: Admission) -> Document:
        size = write.new["spec"]["size"]
        asked.append((write.old["spec"]["size"] if write.old else None, size))
        if size == 9:
            raise ForbiddenError("not nine")
        return {**write.new, "spec": {"size": size + 1}} if write.old is None else write.new

    async def noted(resource: GroupResource, revision: int) -> None:
        assert resource == THING.key
        reported.append(revision)

    groups = (ApiGroup("example.com", (replace(THING, admit=admit, written=noted, unconditional_update=True),)),)
    async with running(groups=groups) as client:

        async def write(method: str, size: int, query: str = "") -> int:
            path = f"{THINGS}/a" if method == "PUT" else THINGS
            return (await client(method, path + query, thing("a", size=size), Content_Type="application/json"))[0]

        assert [await write("POST", 9, query) for query in ("", "?dryRun=All")] == [403, 403]
        assert ((await client("GET", f"{THINGS}/a"))[0], await write("POST", 1, "?dryRun=All"), reported) == (404, 201, [])
        asked.clear()
        written = [await write(method, size) for method, size in (("POST", 1), ("PUT", 9), ("PUT", 3), ("PUT", 3))]
        assert (written, (await client("GET", f"{THINGS}/a"))[1]["spec"]) == ([201, 403, 200, 200], {"size": 3})
        assert (await client("DELETE", f"{THINGS}/a"))[0] == 200

    assert asked == [(None, 1), (2, 9), (2, 3)], "neither what changes nothing nor a deletion"
    assert (reported, len(set(reported))) == (sorted(reported), 3)


async def test_discovery_is_not_sent_twice_and_the_audit_id_of_the_caller_is_kept(client: Client) -> None:
    accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
    async with client.session.get(f"{client.url}/apis", headers={"Accept": accept, "Audit-Id": "mine"}) as response:
        tag = response.headers["ETag"]
        assert response.headers["Audit-Id"] == "mine"
    async with client.session.get(f"{client.url}/apis", headers={"Accept": accept, "If-None-Match": tag}) as response:
        assert response.status == 304
        assert response.headers["Audit-Id"]


COUNT = 60
BIG = "x" * 50_000
MAPS = "/api/v1/namespaces/default/configmaps"


@pytest.fixture
async def with_maps() -> AsyncIterator[Client]:
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


async def test_long_list_is_whole_sent_in_pieces_and_compressed(with_maps: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    write = web.StreamResponse.write

    async def counted(self: web.StreamResponse, piece: Any) -> None:
        sizes.append(len(piece))
        await write(self, piece)

    monkeypatch.setattr(web.StreamResponse, "write", counted)
    async with with_maps.session.get(with_maps.url + MAPS, headers={"Accept-Encoding": "identity"}) as response:
        body = await response.read()
    assert len(body) > COUNT * len(BIG) > LONG
    assert int(response.headers["Content-Length"]) == len(body)
    check(body)
    assert len(sizes) >= COUNT * len(BIG) // (PIECE + len(BIG))
    assert max(sizes) < PIECE + 2 * len(BIG)

    request = with_maps.session.get(with_maps.url + MAPS, headers={"Accept-Encoding": "gzip"}, auto_decompress=False)
    async with request as response:
        body = await response.read()
    assert response.headers["Content-Encoding"] == "gzip"
    assert len(body) < COUNT * len(BIG) / 10
    check(gzip.decompress(body))


async def test_client_that_leaves_in_the_middle_leaves_no_error(with_maps: Client, capsys: pytest.CaptureFixture[str]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", with_maps.listening.port, limit=1 << 12)
    writer.write(f"GET {MAPS} HTTP/1.1\r\nHost: test\r\n\r\n".encode())
    assert b"200" in await reader.readline()
    writer.transport.abort()
    status, _ = await with_maps("GET", f"{MAPS}/map-000")
    assert status == 200
    await until(lambda: len(with_maps.listening.connections) == 1)
    assert "error" not in capsys.readouterr().out


class Sharing(MemoryStorage):
    """Delivers a change to all watchers as one event, as the hub's feed does."""

    def __init__(self) -> None:
        super().__init__()
        self.events: dict[int, WatchEvent] = {}

    @asynccontextmanager
    async def watch(
        self, resource: GroupResource, query: Query, *, after: int
    ) -> AsyncGenerator[AsyncIterator[WatchEvent | int]]:
        async with super().watch(resource, query, after=after) as inner:
            yield (
                event if isinstance(event, int) else self.events.setdefault(event.stored.revision, event)
                async for event in inner
            )


@pytest.mark.parametrize("table", [False, True])
async def test_change_is_encoded_once_for_all_watches_of_one_form(capsys: pytest.CaptureFixture[str], *, table: bool) -> None:
    converted: list[str] = []

    def convert(stored: Any) -> dict[str, Any]:
        converted.append(stored["metadata"]["name"])
        return {name: part for name, part in stored.items() if name != "spec"}

    other, storage = replace(THING, versions=(replace(THING.versions[0], from_stored=convert),)), Sharing()
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


async def test_a_list_that_is_too_large_for_yaml_is_refused_unless_it_is_what_was_done(with_maps: Client) -> None:
    status, answer = await with_maps("GET", MAPS, Accept="application/yaml")
    assert (status, yaml.safe_load(answer)["reason"]) == (406, "NotAcceptable"), answer
    status, answer = await with_maps("GET", f"{MAPS}?limit=10", Accept="application/yaml")
    assert (status, len(yaml.safe_load(answer)["items"])) == (200, 10)
    many = {"metadata": {"name": "many"}, "spec": {"size": 1}}
    await with_maps.storage.create(THING.key, Key("", "many"), {**thing("many"), **many, "list": [0] * 50_000}, ADMIN)
    status, answer = await with_maps("GET", f"{THINGS}/many", Accept="application/yaml")
    assert (status, yaml.safe_load(answer)["reason"]) == (406, "NotAcceptable"), answer
    status, answer = await with_maps("DELETE", MAPS, Accept="application/yaml")
    assert (status, len(answer["items"])) == (200, COUNT)
