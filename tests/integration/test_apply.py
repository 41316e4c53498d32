"""Server-side apply and managedFields over HTTP: what is asked, what is refused, what is written and what is not."""

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
import yaml

from machinery.apiserver.access import Attributes, Authorizer, Decision
from machinery.apiserver.kinds.core import CONFIG_MAP, NAMESPACE
from machinery.apiserver.resource import STATUS, ApiGroup, Resource, ServedVersion
from machinery.apiserver.storage import Actor
from machinery.apiserver.storages.memory import MemoryStorage
from machinery.runtime.clock import ManualClock
from tests.checks import CASE_FILES
from tests.fakes.managedfields import SCHEMA
from tests.fakes.open_access import AllowEverything
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

    async def authorize(self, actor: Actor, attributes: Attributes) -> Decision:
        del actor
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
    ("body", "told"),
    [
        (json.dumps(example(number=1))[:-1].encode() + b', "number": 2}', 'duplicate field "number"'),
        (yaml.safe_dump(example(number=1)).encode() + b"number: 2\n", 'line 6: key "number" already set in map'),
    ],
)
async def test_a_field_that_is_said_twice_is_refused_warned_about_or_ignored(client: Applier, body: bytes, told: str) -> None:
    found = []
    for validation in ("Strict", "Warn", "Ignore"):
        path = f"{client.url}{PATH}?fieldManager=me&fieldValidation={validation}"
        async with client.session.patch(path, data=body, headers={"Content-Type": APPLY}) as response:
            answer, warnings = await response.json(), response.headers.getall("Warning", [])
            warned = [warning.replace("\\", "") for warning in warnings]
            found.append((response.status, answer.get("message", answer.get("number")), warned))
    assert found == [(400, f"error strict decoding patch: {told}", []), (201, 2, [f'299 - "{told}"']), (200, 2, [])]


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
