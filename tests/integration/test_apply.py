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
from tests.fakes.managedfields import SCHEMA
from tests.fakes.open_access import AllowEverything
from tests.integration.test_apiserver import Client, running

V1, V2 = "example.com/v1", "example.com/v2"
PATH = "/apis/example.com/v1/examples/a"
APPLY = "application/apply-patch+yaml"
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


async def test_an_apply_makes_what_is_not_there_and_says_created(client: Applier) -> None:
    status, made = await client.apply(example(number=1))
    assert (status, made["number"], made["metadata"]["generation"], held(made)) == (201, 1, 1, {"me": {"f:number": {}}})
    client.clock.advance(timedelta(seconds=5))
    status, again = await client.apply(example(number=1))
    assert (status, again) == (200, made)
    status, changed = await client.apply(yaml.safe_dump(example(names={"a": "1"})).encode())
    assert (status, changed["names"], "number" in changed) == (200, {"a": "1"}, False), "what is applied no longer goes"


@pytest.mark.parametrize("client", [NoCreating()], indirect=True)
async def test_who_may_not_create_creates_nothing_by_applying(client: Applier) -> None:
    status, refusal = await client.apply(example(number=1))
    assert (status, refusal["reason"]) == (403, "Forbidden")
    assert 'cannot create resource "examples" in API group "example.com" at the cluster scope: not here' in refusal["message"]
    assert (await client.get())["code"] == 404


async def test_a_dry_run_answers_and_writes_nothing(client: Applier) -> None:
    status, shown = await client.apply(example(number=1), "fieldManager=me&dryRun=All")
    assert (status, held(shown)) == (201, {"me": {"f:number": {}}})
    assert (await client.get())["code"] == 404
    await client.create(number=1)
    before = await client.get()
    status, shown = await client.apply(example(text="a"), "fieldManager=me&dryRun=All")
    assert (status, shown["text"]) == (200, "a")
    assert await client.get() == before


async def test_the_status_is_applied_on_its_own_path_and_not_through_the_object(client: Applier) -> None:
    assert (await client.apply(example(status={"phase": "A"}), path=f"{PATH}/status"))[0] == 404
    status, document = await client.apply(example(number=1, status={"phase": "A"}))
    assert (status, "status" in document, held(document)) == (201, False, {"me": {"f:number": {}}})
    status, document = await client.apply(example(number=2, status={"phase": "A"}), path=f"{PATH}/status")
    assert (status, document["number"], document["status"]) == (200, 1, {"phase": "A"})
    assert held(document)["me status"] == {"f:status": {"f:phase": {}}}


async def test_what_an_apply_asks_is_checked(client: Applier) -> None:
    wrong = [
        ("", 422, 'PatchOptions.meta.k8s.io "" is invalid: fieldManager: Required value: is required for apply patch'),
        ("fieldManager=" + "x" * 129, 422, "fieldManager: Too long: may not be more than 128 bytes"),
        ("fieldManager=a%07b", 422, "should only contain printable characters (at position 1)"),
        ("fieldManager=me&dryRun=Some", 422, 'Unsupported value: ["Some"]'),
    ]
    for query, status, message in wrong:
        code, refusal = await client.apply(example(number=1), query)
        assert code == status, query
        assert message in refusal["message"]

    await client.create(number=1)
    status, refusal = await client.merge({"number": 2}, f"{PATH}?force=true")
    assert (status, refusal["details"]["causes"][0]["field"]) == (422, "force")
    assert "may not be specified for non-apply patch" in refusal["message"]


async def test_a_configuration_that_does_not_fit_is_refused(client: Applier) -> None:
    wrong: list[tuple[Any, str]] = [
        (example(V2, number=1), "invalid object type: example.com/v2, Kind=Example"),
        ({"kind": "Example", "metadata": {"name": "a"}}, "invalid object type: , Kind=Example"),
        (example(metadata={"name": "b"}), "the name of the object (b) does not match the name on the URL (a)"),
        (example(metadata={"name": ""}), "undeterminable: name must be provided"),
        (example(metadata={"namespace": "x"}), "namespace of the provided object does not match"),
        (example(metadata={"managedFields": []}), "metadata.managedFields must be nil"),
        (
            example(nosuch=1),
            "failed to create typed patch object (/a; example.com/v1, Kind=Example): .nosuch: field not declared",
        ),
        (example(number="1"), ".number: expected integer, got string"),
        (example(inner=[]), ".inner: expected object, got array"),
        (example(list=[{"name": "a"}, {"name": "a"}]), '.list: duplicate entries for key [name="a"]'),
        (
            example(list=[{"value": 1}]),
            '.list[0]: associative list with keys has an element that omits all key fields ["name"]',
        ),
        (b"[1]", "error decoding patch: a configuration is an object"),
        (b"a: [", "error decoding patch: yaml parse error: line 2"),
        (b"{,}", "error decoding patch: it is neither JSON nor YAML"),
        (b'{"apiVersion": "example.com/v1", "kind": "Example", "metadata": 5}', "metadata must be an object"),
    ]
    for config, message in wrong:
        status, refusal = await client.apply(config)
        assert (status, refusal["reason"]) == (400, "BadRequest"), config
        assert message in refusal["message"]
    _, refusal = await client.apply(example(nosuch=1, number="1"))
    together = "errors:\n  .nosuch: field not declared in schema\n  .number: expected integer, got string"
    assert refusal["message"].endswith(together)


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


async def test_the_manager_of_who_does_not_say_is_the_users_program(client: Applier) -> None:
    await client.create(number=1)
    for agent, manager in (("kubectl-neat/v1.2 (linux)", "kubectl-neat"), ("x" * 200, "x" * 128), ("a\tb/1", "ab")):
        _, document = await client.merge({"names": {manager[:9]: "1"}}, User_Agent=agent)
        assert manager in held(document), list(held(document))


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


async def test_a_writer_of_the_status_resets_nothing(client: Applier) -> None:
    await client.apply(example(number=1))
    status, document = await client.merge({"metadata": {"managedFields": [{}]}, "status": {"phase": "A"}}, f"{PATH}/status")
    assert (status, held(document)["me"]) == (200, {"f:number": {}})
    assert held(document)["Python status"] == {"f:status": {".": {}, "f:phase": {}}}


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


async def test_holders_are_told_in_the_version_they_wrote_in(client: Applier) -> None:
    await client.apply(example(text="a", number=1), "fieldManager=one")
    status, refusal = await client.apply(example(V2, label="b"), "fieldManager=two", PATH.replace("v1", "v2"))
    assert (status, refusal["details"]["causes"][0]["field"]) == (409, ".text")
    status, document = await client.apply(example(V2, label="b"), "fieldManager=two&force=true", PATH.replace("v1", "v2"))
    assert (status, document["label"]) == (200, "b")
    assert (await client.get())["text"] == "b"
    versions = {entry["manager"]: (entry["apiVersion"], entry["fieldsV1"]) for entry in document["metadata"]["managedFields"]}
    assert versions == {"one": (V1, {"f:number": {}}), "two": (V2, {"f:label": {}})}


async def test_a_write_that_changes_nothing_leaves_revision_and_time(client: Applier) -> None:
    before = await client.create(number=1, names={"a": "1"})
    client.clock.advance(timedelta(minutes=1))
    for patch in ({}, {"number": 1}, {"metadata": {"managedFields": before["metadata"]["managedFields"]}}):
        assert (await client.merge(patch))[1] == before
    config = example(metadata={"creationTimestamp": None}, text="a")
    _, made = await client.apply(config)
    client.clock.advance(timedelta(minutes=1))
    assert await client.apply(config) == (200, made), "the server takes back the only change"


async def test_finalizers_and_owners_are_held_one_by_one(client: Applier) -> None:
    owner = {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u1"}
    await client.apply(example(metadata={"finalizers": ["x.io/a"], "ownerReferences": [owner]}), "fieldManager=one")
    other = {**owner, "uid": "u2"}
    _, document = await client.apply(
        example(metadata={"finalizers": ["x.io/b"], "ownerReferences": [other]}), "fieldManager=two"
    )
    assert (document["metadata"]["finalizers"], len(document["metadata"]["ownerReferences"])) == (["x.io/a", "x.io/b"], 2)
    assert held(document)["two"] == {
        "f:metadata": {"f:finalizers": {'v:"x.io/b"': {}}, "f:ownerReferences": {'k:{"uid":"u2"}': {}}}
    }


async def test_two_who_apply_at_once_what_is_not_there_both_succeed(client: Applier) -> None:
    path = "/api/v1/namespaces/x/configmaps/c"
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": "1"}}
    assert (await client.apply(config, path=path))[0] == 404
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "x"}}
    assert (await client.apply(namespace, path="/api/v1/namespaces/x"))[0] == 201
    status, made = await client.apply(config, path=path)
    assert (status, made["metadata"]["namespace"]) == (201, "x")
    status, made = await client.apply({**config, "data": {"a": "1", "b": "2"}}, "fieldManager=other", path)
    assert (status, held(made)) == (200, {"me": {"f:data": {"f:a": {}}}, "other": {"f:data": {"f:a": {}, "f:b": {}}}})
