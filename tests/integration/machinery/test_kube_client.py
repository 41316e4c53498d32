from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from aiohttp import web

from machinery.errors import (
    AlreadyExistsError,
    ConflictError,
    DeadlineError,
    ExpiredError,
    ForbiddenError,
    InvalidError,
    MusterError,
    NotFoundError,
    TooManyRequestsError,
    UnauthorizedError,
    UnavailableError,
)
from machinery.kube.client import JSON_PATCH, KubeClient, Resource
from tests.fakes.scripted_apiserver import ScriptedApiServer, Seen, Send, kubeconfig, scripted_apiserver


@pytest.fixture
async def server() -> AsyncIterator[ScriptedApiServer]:
    async with scripted_apiserver() as running:
        yield running


@pytest.fixture
async def client(server: ScriptedApiServer) -> AsyncIterator[KubeClient]:
    async with await server.client() as connected:
        yield connected


def answering(server: ScriptedApiServer, status: int, body: Any, **headers: str) -> None:
    async def answer(_seen: Seen) -> web.Response:
        if isinstance(body, str):
            return web.Response(status=status, text=body, headers=headers)
        return web.json_response(body, status=status, headers=headers)

    server.answer = answer


def test_paths_are_built_as_kubernetes_has_them() -> None:
    assert Resource("", "v1", "nodes").path() == "/api/v1/nodes"
    assert Resource("", "v1", "secrets").path("a", namespace="ns") == "/api/v1/namespaces/ns/secrets/a"
    assert Resource("x.io", "v2", "things").path("a/../b", subresource="status") == "/apis/x.io/v2/things/a%2F..%2Fb/status"


async def test_requests_carry_the_credential_the_agent_and_the_query(server: ScriptedApiServer, client: KubeClient) -> None:
    await client.get("/api/v1/things", {"labelSelector": "a=b,!c", "watching": False, "limit": 3})
    seen = server.seen[0]
    assert seen.headers["Authorization"] == "Bearer opaque"
    assert seen.headers["User-Agent"].startswith("muster/")
    assert seen.query == {"labelSelector": "a=b,!c", "watching": "false", "limit": "3"}


@pytest.mark.parametrize(
    ("reason", "code", "error"),
    [
        ("NotFound", 404, NotFoundError),
        ("AlreadyExists", 409, AlreadyExistsError),
        ("Conflict", 409, ConflictError),
        ("Expired", 410, ExpiredError),
        ("Gone", 410, ExpiredError),
        ("Forbidden", 403, ForbiddenError),
        ("Unauthorized", 401, UnauthorizedError),
        ("Invalid", 422, InvalidError),
        ("ServerTimeout", 500, DeadlineError),
        ("InternalError", 500, UnavailableError),
        ("", 404, NotFoundError),
    ],
)
async def test_a_refusal_is_raised_by_its_reason(
    server: ScriptedApiServer, client: KubeClient, reason: str, code: int, error: type[MusterError]
) -> None:
    answering(server, code, {"kind": "Status", "code": code, "reason": reason, "message": "because"})
    with pytest.raises(MusterError, match="because") as refused:
        await client.get("/api/v1/things/a")
    assert type(refused.value) is error


async def test_details_of_a_refusal_are_kept(server: ScriptedApiServer, client: KubeClient) -> None:
    causes = [{"reason": "FieldValueInvalid", "message": "no", "field": "spec.x"}]
    details = {"name": "a", "kind": "things", "group": "x.io", "retryAfterSeconds": 7, "causes": causes}
    answering(server, 429, {"kind": "Status", "code": 429, "reason": "TooManyRequests", "message": "m", "details": details})
    with pytest.raises(TooManyRequestsError) as refused:
        await client.create("/api/v1/things", {})
    assert refused.value.retry_after == timedelta(seconds=7)
    assert refused.value.subject
    assert refused.value.subject.name == "a"
    assert refused.value.causes[0].field == "spec.x"


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (403, ForbiddenError),
        (404, NotFoundError),
        (429, TooManyRequestsError),
        (500, UnavailableError),
        (503, UnavailableError),
    ],
)
async def test_a_refusal_that_is_no_status_document_is_raised_by_its_code(
    server: ScriptedApiServer, client: KubeClient, code: int, error: type[MusterError]
) -> None:
    answering(server, code, "plain words", **{"Retry-After": "3"})
    with pytest.raises(error, match=f"answered {code}: plain words") as refused:
        await client.get("/x")
    assert refused.value.retry_after == timedelta(seconds=3)


async def test_an_answer_that_is_no_json_object_is_an_unavailable_server(server: ScriptedApiServer, client: KubeClient) -> None:
    answering(server, 200, "<html>a proxy's login page</html>")
    with pytest.raises(UnavailableError, match="something else than a JSON object"):
        await client.get("/api/v1/things")


async def test_patches_say_what_kind_they_are(server: ScriptedApiServer, client: KubeClient) -> None:
    await client.patch("/api/v1/things/a", {"spec": {}})
    await client.patch("/api/v1/things/a", [{"op": "remove", "path": "/spec"}], content_type=JSON_PATCH)
    assert [seen.headers["Content-Type"] for seen in server.seen] == [
        "application/merge-patch+json",
        "application/json-patch+json",
    ]
    assert [seen.body for seen in server.seen] == ['{"spec": {}}', '[{"op": "remove", "path": "/spec"}]']


async def test_raw_returns_every_answer(server: ScriptedApiServer, client: KubeClient) -> None:
    answering(server, 418, "short and stout")
    answer = await client.raw("GET", "/livez", accept="*/*")
    assert (answer.status, answer.body) == (418, b"short and stout")


async def test_a_server_that_is_not_there_is_unavailable_and_named() -> None:
    async with scripted_apiserver() as gone:
        url = gone.url
    async with await KubeClient.from_document(kubeconfig(url)) as client:
        with pytest.raises(UnavailableError, match=f"cannot reach {url}"):
            await client.get("/version")


async def test_a_watch_that_is_refused_raises_on_entering(server: ScriptedApiServer, client: KubeClient) -> None:
    server.refuse_watches = web.HTTPForbidden
    with pytest.raises(ForbiddenError):
        async with client.watch("/api/v1/things", {}, within=timedelta(seconds=5)):
            raise AssertionError


@pytest.mark.parametrize("line", [b"no json\n", b'{"type": "ADDED"}\n', b'{"type": "ADDED", "object": {"metadata": 1}}\n'])
async def test_a_watch_that_sends_nonsense_is_an_unavailable_server(
    server: ScriptedApiServer, client: KubeClient, line: bytes
) -> None:
    async def stream(_seen: Seen, send: Send) -> None:
        await send(line)

    server.stream = stream
    async with client.watch("/api/v1/things", {}, within=timedelta(seconds=5)) as events:
        with pytest.raises(UnavailableError, match="something else than watch events"):
            await anext(events)


async def test_an_event_is_read_whatever_pieces_it_arrives_in(server: ScriptedApiServer, client: KubeClient) -> None:
    async def stream(_seen: Seen, send: Send) -> None:
        event = b'{"type": "ADDED", "object": {"metadata": {"name": "long"}, "spec": "' + b"x" * 300_000 + b'"}}\n'
        for piece in (
            event[:10],
            event[10:200_000],
            event[200_000:] + b'{"type": "BOOKMARK", "object": {"metadata": {}}}\n{"ty',
        ):
            await send(piece)

    server.stream = stream
    async with client.watch("/api/v1/things", {}, within=timedelta(seconds=5)) as events:
        assert [event.type async for event in events] == ["ADDED", "BOOKMARK"]
