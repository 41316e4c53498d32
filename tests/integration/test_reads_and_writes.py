"""Lists, watches and server-side apply over HTTP as Kubernetes documents them: versions, pages, forms, managedFields."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from yarl import URL

from hub.https_door.storage.storage import ServiceStorage
from machinery.apiserver.access import Attributes, Authorizer, Decision
from machinery.apiserver.kinds.core import CONFIG_MAP, NAMESPACE
from machinery.apiserver.resource import STATUS, ApiGroup, Resource, ServedVersion
from machinery.apiserver.storage import Actor, GroupResource
from machinery.apiserver.storages.memory import MemoryStorage
from machinery.meta.objects import Key, Page, Query
from machinery.runtime.clock import ManualClock
from tests.checks import CASE_FILES
from tests.fakes.golden_hub import ADMIN, HubWorld
from tests.fakes.identity import AllowEverything, EveryoneIsAdmin
from tests.fakes.managedfields import SCHEMA
from tests.fakes.stage import until
from tests.integration.test_apiserver import Client, running

V1, V2 = "example.com/v1", "example.com/v2"
PATH = "/apis/example.com/v1/examples/a"
APPLY, JSON = "application/apply-patch+yaml", "application/json"
STATUS_SCHEMA: dict[str, Any] = {"type": "object", "properties": {"phase": {"type": "string"}}}
_PROPERTIES: dict[str, Any] = {**SCHEMA["properties"], "status": STATUS_SCHEMA, "label": {"type": "string"}}


def _renamed(document: Mapping[str, Any], old: str, new: str) -> dict[str, Any]:
    return {new if name == old else name: value for name, value in document.items()}


EXAMPLE = Resource(
    group="example.com",
    version="v1",
    name="examples",
    kind="Example",
    schema={"type": "object", "properties": {name: part for name, part in _PROPERTIES.items() if name != "label"}},
    subresources=(STATUS,),
    counts_generations=True,
    versions=(
        ServedVersion(
            "v2",
            {"type": "object", "properties": {name: part for name, part in _PROPERTIES.items() if name != "text"}},
            from_stored=lambda stored: _renamed(stored, "text", "label"),
            to_stored=lambda shown: _renamed(shown, "label", "text"),
        ),
    ),
)


class NoCreating(Authorizer):
    """Everything but create."""

    async def authorize(self, _actor: Actor, attributes: Attributes) -> Decision:
        return Decision(attributes.verb != "create", "not here")


@dataclass
class Applier(Client):
    """A client that applies, and its server's clock."""

    clock: ManualClock

    async def apply(self, config: Any, query: str = "fieldManager=me", path: str = PATH) -> tuple[int, Any]:
        return await self("PATCH", f"{path}?{query}", config, Content_Type=APPLY)

    async def merge(self, patch: Any, path: str = PATH, **headers: str) -> tuple[int, Any]:
        return await self("PATCH", path, patch, Content_Type="application/merge-patch+json", **headers)

    async def create(self, **content: Any) -> Any:
        status, answer = await self("POST", PATH.rpartition("/")[0], example(**content), Content_Type="application/json")
        assert status == 201, answer
        return answer

    async def get(self, path: str = PATH) -> Any:
        return (await self("GET", path))[1]


@pytest.fixture
async def client(request: pytest.FixtureRequest) -> AsyncIterator[Applier]:
    clock, groups = ManualClock(), (ApiGroup("", (NAMESPACE, CONFIG_MAP)), ApiGroup("example.com", (EXAMPLE,)))
    authorizer = getattr(request, "param", AllowEverything())
    async with running(MemoryStorage(clock=clock), groups=groups, authorizer=authorizer, clock=clock, namespaces=None) as made:
        yield Applier(made.session, made.listening, made.server, made.storage, clock)


def example(api_version: str = V1, *, metadata: Mapping[str, Any] | None = None, **content: Any) -> dict[str, Any]:
    return {"apiVersion": api_version, "kind": "Example", "metadata": {"name": "a", **(metadata or {})}, **content}


def held(document: Mapping[str, Any]) -> dict[str, Any]:
    """By holder, the fields."""
    entries = document["metadata"].get("managedFields", [])
    return {" ".join((entry["manager"], entry.get("subresource", ""))).strip(): entry["fieldsV1"] for entry in entries}


EXCHANGES: dict[str, list[dict[str, Any]]] = yaml.safe_load((CASE_FILES / "apply.yaml").read_text())


def lacking(wanted: Any, there: Any) -> bool:
    """Whether a part that is wanted is not there; of lists the entries are compared in their order."""
    if isinstance(wanted, dict):
        return not isinstance(there, dict) or any(name not in there or lacking(wanted[name], there[name]) for name in wanted)
    if isinstance(wanted, list):
        return len(wanted) != len(there) or any(map(lacking, wanted, there))
    return bool(wanted != there)


@pytest.mark.parametrize("steps", list(EXCHANGES.values()), ids=[name.replace(" ", "_") for name in EXCHANGES])
async def test_requests_that_apply_are_answered_as_the_table_has_it(client: Applier, steps: list[dict[str, Any]]) -> None:
    for step in steps:
        path, query = step.get("path", PATH), step.get("query", "fieldManager=me")
        if "get" in step:
            status, answer = await client("GET", path)
        elif "create" in step:
            status, answer = await client("POST", PATH.rpartition("/")[0], example(**step["create"]), Content_Type=JSON)
        elif "put" in step:
            status, answer = await client("PUT", path, {**example(), **step["put"]}, Content_Type=JSON)
        elif "merge" in step:
            named = {"User_Agent": step["agent"]} if "agent" in step else {}
            status, answer = await client.merge(step["merge"], f"{path}?{step.get('query', '')}", **named)
        else:
            whole = step.get("whole") or {**example(), **step["apply"]}
            status, answer = await client.apply(whole.encode() if isinstance(whole, str) else whole, query, path)
        says = step.get("says", [])
        assert status == step["gives"], (step, answer)
        assert not lacking(step.get("has", {}), answer), (step, answer)
        assert not set(step.get("lacks", [])) & set(answer), (step, answer)
        assert all(text in answer["message"] for text in ([says] if isinstance(says, str) else says)), (step, answer)
        assert "held" not in step or held(answer) == step["held"], (step, answer)
        assert not lacking(step.get("holds", {}), held(answer) if "holds" in step else {}), (step, answer)


@pytest.mark.parametrize("client", [NoCreating()], indirect=True)
async def test_who_may_not_create_creates_nothing_by_applying(client: Applier) -> None:
    status, refusal = await client.apply(example(number=1))
    assert (status, refusal["reason"]) == (403, "Forbidden")
    assert 'cannot create resource "examples" in API group "example.com" at the cluster scope: not here' in refusal["message"]
    assert (await client.get())["code"] == 404


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (json.dumps(example(number=1))[:-1].encode() + b', "number": 2}', 'duplicate field "number"'),
        (yaml.safe_dump(example(number=1)).encode() + b"number: 2\n", 'line 6: key "number" already set in map'),
    ],
)
async def test_a_field_that_is_said_twice_is_refused_warned_of_or_ignored(client: Applier, body: bytes, message: str) -> None:
    found = []
    for validation in ("Strict", "Warn", "Ignore"):
        path = f"{client.url}{PATH}?fieldManager=me&fieldValidation={validation}"
        async with client.session.patch(path, data=body, headers={"Content-Type": APPLY}) as response:
            answer, warnings = await response.json(), response.headers.getall("Warning", [])
            warned = [warning.replace("\\", "") for warning in warnings]
            found.append((response.status, answer.get("message", answer.get("number")), warned))
    assert found == [(400, f"error strict decoding patch: {message}", []), (201, 2, [f'299 - "{message}"']), (200, 2, [])]


async def test_an_apply_to_an_object_that_is_gone_or_was_changed_is_a_conflict(client: Applier) -> None:
    made = await client.create(number=1)
    stale = example(metadata={"resourceVersion": made["metadata"]["resourceVersion"]}, text="a")
    await client.merge({"text": "b"})
    status, refusal = await client.apply(stale, "fieldManager=me&force=true")
    assert (status, refusal["reason"]) == (409, "Conflict")
    assert "the object has been modified" in refusal["message"]
    async with client.session.delete(client.url + PATH):
        pass
    status, refusal = await client.apply(example(metadata={"uid": made["metadata"]["uid"]}, number=2))
    assert (status, refusal["reason"]) == (409, "Conflict")
    assert "no existing object was found" in refusal["message"]


async def test_a_writer_of_the_whole_object_may_reset_who_holds_what(client: Applier) -> None:
    resets: tuple[list[Any], ...] = ([], [{}])
    for reset in resets:
        await client.apply(example(number=1))
        changed = await client.get()
        changed["metadata"]["managedFields"] = reset
        status, document = await client("PUT", PATH, changed, Content_Type="application/json")
        assert (status, held(document)) == (200, {})
    status, document = await client.merge({"number": 2})
    assert (status, held(document)) == (200, {})
    _, document = await client.apply(example(text="a"))
    assert held(document) == {"me": {"f:text": {}}, "before-first-apply": {"f:number": {}}}


async def test_a_writer_may_say_who_holds_what_and_nonsense_changes_nothing(client: Applier) -> None:
    await client.apply(example(number=1))
    entry = {"operation": "Apply", "apiVersion": V1, "fieldsType": "FieldsV1", "fieldsV1": {"spec": {}}}
    nonsense: tuple[Any, ...] = ([{"manager": "x"}], "x", 5, [5], [entry])
    for number, each in enumerate(nonsense):
        status, document = await client.merge({"metadata": {"managedFields": each}, "text": str(number)})
        assert status == 200, each
        assert held(document) == {"me": {"f:number": {}}, "Python": {"f:text": {}}}, each
    [own, *_] = (await client.get())["metadata"]["managedFields"]
    _, document = await client.merge({"metadata": {"managedFields": [{**own, "manager": "other"}]}})
    assert held(document) == {"other": {"f:number": {}}}


async def test_a_write_that_changes_nothing_leaves_revision_and_time(client: Applier) -> None:
    before = await client.create(number=1, names={"a": "1"})
    client.clock.advance(timedelta(minutes=1))
    for patch in ({}, {"number": 1}, {"metadata": {"managedFields": before["metadata"]["managedFields"]}}):
        assert (await client.merge(patch))[1] == before
    config = example(metadata={"creationTimestamp": None}, text="a")
    _, made = await client.apply(config)
    client.clock.advance(timedelta(minutes=1))
    assert await client.apply(config) == (200, made), "the server takes back the only change"


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
        answers = await server.ask(**query)
        assert answers.names == list(names), query
        assert answers.document["metadata"]["resourceVersion"] == str(revisions[1] if of == "asked" else revisions[2]), query


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

    answers = await asyncio.gather(*(events(version, initial) for version, initial, _ in WATCHES))
    for case, reported in zip(WATCHES, answers, strict=True):
        assert reported == [tuple(event) for event in case[2]], case


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
    without, plain, *answers = await asyncio.gather(
        server.ask(**STREAMED), server.ask(**STREAMED, allowWatchBookmarks="true"), *asked
    )
    assert without.events == ADDED
    mark = json.loads(plain.body.splitlines()[-1])["object"]
    assert mark["metadata"] == {"resourceVersion": str(revisions[2]), "annotations": {END: "true"}}
    assert (mark["kind"], mark["apiVersion"]) == ("ConfigMap", "v1")
    for accept, answer in zip(FORMS, answers, strict=True):
        objects = [json.loads(line)["object"] for line in answer.body.splitlines()]
        assert [each["kind"] for each in objects] == [FORMS[accept]] * 4, accept
        assert END in json.dumps(objects[-1])
        assert json.dumps(str(revisions[2])) in json.dumps(objects[-1])


@pytest.mark.usefixtures("revisions")
async def test_a_watched_table_defines_its_columns_once_and_other_media_types_are_not_acceptable(server: Server) -> None:
    answers = await server.ask(accept=TABLE, watch="1", timeoutSeconds=1, includeObject="Object")
    tables = [json.loads(line)["object"] for line in answers.body.splitlines()]
    assert [bool(table["columnDefinitions"]) for table in tables] == [True, False, False]
    assert tables[0]["rows"][0]["object"]["data"] == {"a": "1"}
    for accept in ("application/yaml", "application/cbor", "application/vnd.kubernetes.protobuf", "text/html"):
        answers = await server.ask(accept=accept, watch="1", timeoutSeconds=1)
        assert (answers.status, yaml.safe_load(answers.body)["reason"]) == (406, "NotAcceptable"), accept
    answers = await server.ask(accept=TABLE, includeObject="Everything")
    assert (answers.status, answers.document["reason"]) == (400, "BadRequest")


async def test_methods_and_media_types_that_kubernetes_does_not_know(server: Server, revisions: list[int]) -> None:
    head = await server.ask(method="HEAD")
    watched = await asyncio.wait_for(server.ask(method="HEAD", watch="true"), 5)
    for method in ("OPTIONS", "TRACE", "PROPFIND"):
        answers = await server.ask(method=method)
        assert (answers.status, answers.document["reason"]) == (405, "MethodNotAllowed")
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
    assert (await server.ask(method="POST", body={"metadata": {"name": "big"}, "data": {"a": "x" * 140_000}})).status == 201
    async with aiohttp.ClientSession(auto_decompress=False) as session:
        for name, taken, encoding in (("big", "gzip", "gzip"), ("big", "gzip;q=0", None), ("", "deflate", None)):
            url = f"{server.world.url}{MAPS}/{name}".rstrip("/")
            async with session.get(url, headers={"Accept-Encoding": taken}) as answer:
                assert answer.headers.get("Content-Encoding") == encoding
                assert (len(await answer.read()) < 140_000) == (encoding is not None)
        async with session.get(f"{server.world.url}/api/v1/namespaces/default", headers={"Accept-Encoding": "gzip"}) as answer:
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
            answers = await server.ask(path, method="DELETE", body=options)
            assert (answers.status, answers.document["reason"]) == (400, "BadRequest"), options
    assert (await server.ask(f"{MAPS}/kept")).status == 200

    answers = await server.ask(MAPS, method="DELETE", body={"preconditions": {"uid": "another"}})
    assert (answers.status, answers.document["reason"]) == (409, "Conflict")
    assert '"kept": the UID in the precondition (another)' in answers.document["message"]
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
