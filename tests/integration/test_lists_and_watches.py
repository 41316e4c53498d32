"""Lists and watches as Kubernetes documents them: what resourceVersion and its match mean, pages, streaming lists, forms."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from yarl import URL

from hub.https_door.storage.storage import ServiceStorage
from machinery.apiserver.kinds.core import CONFIG_MAP
from machinery.apiserver.storage import GroupResource
from machinery.meta.objects import Key, Page, Query
from tests.checks import CASE_FILES
from tests.fakes.golden_hub import ADMIN, HubWorld
from tests.fakes.open_access import EveryoneIsAdmin
from tests.fakes.stage import until

TABLES = yaml.safe_load((CASE_FILES / "lists.yaml").read_text())

MAPS = "/api/v1/namespaces/default/configmaps"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
PARTIAL = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
END = "k8s.io/initial-events-end"


@dataclass(frozen=True, slots=True)
class Said:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)

    @property
    def names(self) -> list[str]:
        return [item["metadata"]["name"] for item in self.document["items"]]

    @property
    def events(self) -> list[tuple[str, str]]:
        lines = [json.loads(line) for line in self.body.splitlines()]
        return [(line["type"], line["object"].get("metadata", {}).get("name", "")) for line in lines]


@dataclass
class Server:
    """A hub, spoken to with raw requests."""

    world: HubWorld
    session: aiohttp.ClientSession

    async def ask(
        self, path: str = MAPS, *, method: str = "GET", accept: str = "*/*", agent: str = "", body: Any = None, **query: Any
    ) -> Said:
        headers = {"Accept": accept, "User-Agent": agent}
        url = URL(self.world.url + path, encoded=True)
        async with self.session.request(method, url, params=query, headers=headers, json=body) as answer:
            return Said(answer.status, answer.headers, await answer.read())

    async def make(self, name: str) -> int:
        """The revision of a new config map."""
        made = await self.ask(method="POST", body={"metadata": {"name": name}, "data": {"a": "1"}})
        assert made.status == 201
        return int(made.document["metadata"]["resourceVersion"])


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    world = HubWorld(tmp_path, EveryoneIsAdmin())
    await world.start()
    async with aiohttp.ClientSession() as session:
        yield Server(world, session)
    await world.close()


@pytest.fixture
async def revisions(server: Server) -> list[int]:
    """Of the config maps a, b and c, made one after the other."""
    return [await server.make(name) for name in "abc"]


async def test_what_a_list_is_of(server: Server, revisions: list[int]) -> None:
    for version, match, limit, names, of in TABLES["lists"]:
        query: dict[str, Any] = {"resourceVersionMatch": match} if match else {}
        if limit:
            query["limit"] = limit
        if version is not None:
            query["resourceVersion"] = revisions[1] if version == "b" else version
        said = await server.ask(**query)
        assert said.names == list(names), query
        assert said.document["metadata"]["resourceVersion"] == str(revisions[1] if of == "asked" else revisions[2]), query


async def test_what_is_compacted_has_expired(server: Server, revisions: list[int]) -> None:
    first = await server.ask(limit=1)
    await server.make("d")
    await server.world.forget()
    expired = await server.ask(limit=1, **{"continue": first.document["metadata"]["continue"]})
    assert (expired.status, expired.document["reason"]) == (410, "Expired")
    rest = await server.ask(**{"continue": expired.document["metadata"]["continue"]})
    assert rest.names == ["b", "c", "d"], "the refusal says how to go on without consistency"
    exact = await server.ask(resourceVersion=revisions[0], resourceVersionMatch="Exact")
    assert (exact.status, exact.document["reason"]) == (410, "Expired")
    watch = await server.ask(watch="1", resourceVersion=revisions[0], timeoutSeconds=1)
    line = json.loads(watch.body)
    assert (watch.status, line["type"], line["object"]["code"]) == (200, "ERROR", 410)


ADDED = [("ADDED", "a"), ("ADDED", "b"), ("ADDED", "c")]
WATCHES = TABLES["watches"]


async def test_what_a_watch_begins_with(server: Server, revisions: list[int]) -> None:
    async def events(version: str | None, initial: str | None) -> list[tuple[str, str]]:
        query: dict[str, Any] = {"watch": "true", "timeoutSeconds": 1, "allowWatchBookmarks": "true"}
        if initial is not None:
            query |= {"sendInitialEvents": initial, "resourceVersionMatch": "NotOlderThan"}
        if version is not None:
            query["resourceVersion"] = {"0": 0, "b": revisions[1], "c": revisions[2]}[version]
        return (await server.ask(**query)).events

    said = await asyncio.gather(*(events(version, initial) for version, initial, _ in WATCHES))
    for case, told in zip(WATCHES, said, strict=True):
        assert told == [tuple(event) for event in case[2]], case


@pytest.mark.usefixtures("revisions")
async def test_timeout_of_a_watch_counts_from_the_first_answer_of_the_store(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = ServiceStorage.list

    async def slow(self: ServiceStorage, resource: GroupResource, query: Query) -> Page:
        await asyncio.sleep(1.5)
        return await prompt(self, resource, query)

    monkeypatch.setattr(ServiceStorage, "list", slow)
    assert (await server.ask(watch="1", timeoutSeconds=1)).events == ADDED


STREAMED: dict[str, Any] = {
    "watch": "1",
    "sendInitialEvents": "true",
    "resourceVersionMatch": "NotOlderThan",
    "timeoutSeconds": 1,
}
FORMS = TABLES["forms"]


async def test_streaming_lists_end_with_a_bookmark_and_come_in_every_form(server: Server, revisions: list[int]) -> None:
    asked = (server.ask(accept=accept, allowWatchBookmarks="true", **STREAMED) for accept in FORMS)
    without, plain, *said = await asyncio.gather(
        server.ask(**STREAMED), server.ask(**STREAMED, allowWatchBookmarks="true"), *asked
    )
    assert without.events == ADDED
    mark = json.loads(plain.body.splitlines()[-1])["object"]
    assert mark["metadata"] == {"resourceVersion": str(revisions[2]), "annotations": {END: "true"}}
    assert (mark["kind"], mark["apiVersion"]) == ("ConfigMap", "v1")
    for accept, answer in zip(FORMS, said, strict=True):
        objects = [json.loads(line)["object"] for line in answer.body.splitlines()]
        assert [each["kind"] for each in objects] == [FORMS[accept]] * 4, accept
        assert END in json.dumps(objects[-1])
        assert json.dumps(str(revisions[2])) in json.dumps(objects[-1])


@pytest.mark.usefixtures("revisions")
async def test_a_watched_table_defines_its_columns_once_and_other_media_types_are_not_acceptable(server: Server) -> None:
    said = await server.ask(accept=TABLE, watch="1", timeoutSeconds=1, includeObject="Object")
    tables = [json.loads(line)["object"] for line in said.body.splitlines()]
    assert [bool(table["columnDefinitions"]) for table in tables] == [True, False, False]
    assert tables[0]["rows"][0]["object"]["data"] == {"a": "1"}
    for accept in ("application/yaml", "application/cbor", "application/vnd.kubernetes.protobuf", "text/html"):
        said = await server.ask(accept=accept, watch="1", timeoutSeconds=1)
        assert (said.status, yaml.safe_load(said.body)["reason"]) == (406, "NotAcceptable"), accept
    said = await server.ask(accept=TABLE, includeObject="Everything")
    assert (said.status, said.document["reason"]) == (400, "BadRequest")


async def test_methods_and_media_types_that_kubernetes_does_not_know(server: Server, revisions: list[int]) -> None:
    head = await server.ask(method="HEAD")
    watched = await asyncio.wait_for(server.ask(method="HEAD", watch="true"), 5)
    for method in ("OPTIONS", "TRACE", "PROPFIND"):
        said = await server.ask(method=method)
        assert (said.status, said.document["reason"]) == (405, "MethodNotAllowed")
    assert (head.status, head.body, int(head.headers["Content-Length"]) > 100) == (200, b"", True)
    assert (watched.status, watched.body) == (200, b"")
    assert revisions
    async with aiohttp.ClientSession() as session:
        headers = {"Content-Type": "application/cbor"}
        async with session.post(server.world.url + MAPS, data=b"\xd9\xd9\xf7\xa0", headers=headers) as answer:
            assert (answer.status, (await answer.json())["reason"]) == (415, "UnsupportedMediaType")


async def test_people_and_their_tools_get_it_printed(server: Server, revisions: list[int]) -> None:
    async def size(agent: str, **query: str) -> int:
        return (await server.ask(agent=agent, **query)).body.count(b"\n")

    assert await size("client") == 0
    assert await size("client", pretty="true") > 10
    assert await size("curl/8.1") > 10
    assert await size("curl/8.1", pretty="false") == 0
    assert revisions


async def test_big_answers_are_compressed_for_whom_takes_it(server: Server) -> None:
    big = {"metadata": {"name": "big"}, "data": {"a": "x" * 140_000}}
    assert (await server.ask(method="POST", body=big)).status == 201
    async with aiohttp.ClientSession(auto_decompress=False) as session:
        for name, taken, encoding in (("big", "gzip", "gzip"), ("big", "gzip;q=0", None), ("", "deflate", None)):
            url = f"{server.world.url}{MAPS}/{name}".rstrip("/")
            async with session.get(url, headers={"Accept-Encoding": taken}) as answer:
                assert answer.headers.get("Content-Encoding") == encoding
                assert (len(await answer.read()) < 140_000) == (encoding is not None)
        small = f"{server.world.url}/api/v1/namespaces/default"
        async with session.get(small, headers={"Accept-Encoding": "gzip"}) as answer:
            assert "Content-Encoding" not in answer.headers


async def test_a_warning_repeats_what_was_sent_without_breaking_the_answer(server: Server) -> None:
    odd = 'line\r\nend: 1", \\ é'
    body = {"metadata": {"name": "odd"}, odd: 1, **{f"x{number:03d}" + "y" * 300: 1 for number in range(40)}}
    async with aiohttp.ClientSession() as session, session.post(server.world.url + MAPS, json=body) as answer:
        warnings = answer.headers.getall("Warning")
    assert (answer.status, "end" in answer.headers) == (201, False)
    assert warnings[0] == '299 - "unknown field \\"line\ufffd\ufffdend: 1\\", \\\\ é\\""'
    assert all(len(warning) < 300 for warning in warnings)
    assert 10 < len(warnings) < 20, "all of them together are bounded"


async def test_options_of_a_delete_are_checked(server: Server) -> None:
    await server.make("kept")
    for options in TABLES["deletes"]:
        for path in (MAPS, f"{MAPS}/kept"):
            said = await server.ask(path, method="DELETE", body=options)
            assert (said.status, said.document["reason"]) == (400, "BadRequest"), options
    assert (await server.ask(f"{MAPS}/kept")).status == 200

    said = await server.ask(MAPS, method="DELETE", body={"preconditions": {"uid": "another"}})
    assert (said.status, said.document["reason"]) == (409, "Conflict")
    assert '"kept": the UID in the precondition (another)' in said.document["message"]
    uid = (await server.ask(f"{MAPS}/kept")).document["metadata"]["uid"]
    assert (await server.ask(MAPS, method="DELETE", body={"preconditions": {"uid": uid}})).status == 200
    assert (await server.ask(f"{MAPS}/kept")).status == 404


async def test_a_watch_that_nobody_reads_is_cut_off_when_it_has_ended(server: Server) -> None:
    document = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "x" * 500_000}}
    for number in range(40):  # more than the machine keeps for a connection
        key = Key("default", f"m{number}")
        named = {**document, "metadata": {"name": key.name, "namespace": key.namespace}}
        await server.world.storage.create(CONFIG_MAP.key, key, named, ADMIN)
    loop, url = asyncio.get_running_loop(), URL(server.world.url)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)  # noqa: FBT003 - as it is called
        await loop.sock_connect(client, (url.host or "", url.port or 0))
        query = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&timeoutSeconds=1"
        await loop.sock_sendall(client, f"GET {MAPS}?{query} HTTP/1.1\r\nHost: hub\r\n\r\n".encode())
        await until(lambda: server.world.connections == 1)
        await until(lambda: server.world.connections == 0, within=60)
