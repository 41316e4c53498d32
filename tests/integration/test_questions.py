"""Creates whose answer is computed: a kind that has nothing else, and a subresource that takes another kind."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import aiohttp
import pytest

from machinery.apiserver.access import AllowEverything, EveryoneIsAdmin
from machinery.apiserver.kinds.core import SERVICE_ACCOUNT
from machinery.apiserver.memory import MemoryStorage
from machinery.apiserver.resource import Group, Question, Resource, Subresource
from machinery.apiserver.server import ApiServer
from machinery.apiserver.serving import serve
from machinery.apiserver.storage import Document
from machinery.clock import SystemClock
from machinery.errors import Cause, NotFoundError

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "spec": {"type": "object", "properties": {"number": {"type": "integer"}, "times": {"type": "integer", "default": 2}}},
        "status": {"type": "object", "properties": {"product": {"type": "integer"}}},
    },
}


async def _multiplied(question: Question) -> Document:
    spec = question.document["spec"]
    if question.name == "nobody":
        raise NotFoundError('serviceaccounts "nobody" not found')
    return {**question.document, "status": {"product": spec["number"] * spec["times"], "for": question.name}}


def _positive(new: Document, _old: Document | None) -> list[Cause]:
    return [Cause("FieldValueInvalid", "Invalid value: -1: too small", "spec.number")] if new["spec"]["number"] < 0 else []


SUM = Resource(
    group="sums.k8s.io",
    version="v1",
    name="sums",
    kind="Sum",
    custom=False,
    verbs=("create",),
    schema=SCHEMA,
    validate=_positive,
    answers=_multiplied,
)
ACCOUNT = replace(
    SERVICE_ACCOUNT, subresources=(Subresource("sum", verbs=("create",), question=replace(SUM, namespaced=True)),)
)


@pytest.fixture
async def url() -> AsyncIterator[str]:
    groups = (Group("", (ACCOUNT,)), Group("sums.k8s.io", (SUM,)))
    server = ApiServer(
        groups,
        MemoryStorage(),
        authenticator=EveryoneIsAdmin(),
        authorizer=AllowEverything(),
        clock=SystemClock(),
        version={"gitVersion": "v1"},
    )
    listening = await serve(server.application(), "127.0.0.1", 0)
    yield f"http://127.0.0.1:{listening.port}"
    await listening.close()


async def _post(url: str, body: dict[str, Any]) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as session, session.post(url, json=body) as response:
        return response.status, await response.json()


async def _get(url: str) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status, await response.json()


async def test_a_question_is_answered_in_its_own_kind_without_a_name_and_stored_nowhere(url: str) -> None:
    status, answer = await _post(f"{url}/apis/sums.k8s.io/v1/sums", {"spec": {"number": 21}})

    assert status == 201
    assert (answer["kind"], answer["apiVersion"], answer["metadata"]) == ("Sum", "sums.k8s.io/v1", {})
    assert answer["status"]["product"] == 42
    assert (await _get(f"{url}/apis/sums.k8s.io/v1/sums"))[0] == 405
    assert (await _get(f"{url}/apis/sums.k8s.io/v1/sums/x"))[0] == 405


async def test_a_question_that_breaks_a_rule_is_refused(url: str) -> None:
    path = f"{url}/apis/sums.k8s.io/v1/sums"

    invalid = await _post(path, {"spec": {"number": -1}})
    mistyped = await _post(path, {"spec": {"number": "1"}})
    other = await _post(path, {"kind": "Other", "apiVersion": "sums.k8s.io/v1", "spec": {"number": 1}})

    assert (invalid[0], invalid[1]["reason"]) == (422, "Invalid")
    assert (mistyped[0], mistyped[1]["reason"]) == (400, "BadRequest")
    assert (other[0], other[1]["reason"]) == (400, "BadRequest")


async def test_a_subresource_takes_a_question_of_another_kind(url: str) -> None:
    path = f"{url}/api/v1/namespaces/home/serviceaccounts"

    status, answer = await _post(f"{path}/robot/sum", {"kind": "Sum", "apiVersion": "sums.k8s.io/v1", "spec": {"number": 3}})

    assert (status, answer["kind"], answer["status"]) == (201, "Sum", {"product": 6, "for": "robot"})
    assert (await _post(f"{path}/nobody/sum", {"spec": {"number": 3}}))[0] == 404


async def test_discovery_and_openapi_tell_that_it_can_only_be_created(url: str) -> None:
    listed = (await _get(f"{url}/apis/sums.k8s.io/v1"))[1]["resources"]
    core = (await _get(f"{url}/api/v1"))[1]["resources"]
    paths = (await _get(f"{url}/openapi/v3/apis/sums.k8s.io/v1"))[1]["paths"]
    core_paths = (await _get(f"{url}/openapi/v3/api/v1"))[1]["paths"]

    assert listed == [{"name": "sums", "singularName": "sum", "namespaced": False, "kind": "Sum", "verbs": ["create"]}]
    part = next(entry for entry in core if entry["name"] == "serviceaccounts/sum")
    assert (part["group"], part["version"], part["kind"], part["verbs"]) == ("sums.k8s.io", "v1", "Sum", ["create"])
    methods = {path: sorted(set(item) & {"get", "post", "put", "patch", "delete"}) for path, item in paths.items()}
    assert methods == {"/apis/sums.k8s.io/v1/": ["get"], "/apis/sums.k8s.io/v1/sums": ["post"]}
    asked = core_paths["/api/v1/namespaces/{namespace}/serviceaccounts/{name}/sum"]
    assert sorted(set(asked) - {"parameters"}) == ["post"]
