"""The Kubernetes client and its reflector against a scripted API server."""

import asyncio
import json
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Any, cast

import pytest
from aiohttp import web

from machinery.client.reflector import ANSWER_MARGIN, WATCH_SECONDS, ObjectKey, Reflector, mirrored
from machinery.client.rest import KubeClient, Object, RestResource
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
from machinery.runtime.backoff import Backoff
from tests.checks import check_refusal_of
from tests.fakes.scripted_apiserver import CutError, ScriptedApiServer, Seen, Send, kubeconfig, scripted_apiserver
from tests.fakes.virtual_time import in_virtual_time_with_sockets

LONG = timedelta(seconds=60)


@pytest.fixture
async def server() -> AsyncIterator[ScriptedApiServer]:
    async with scripted_apiserver() as running:
        yield running


@pytest.fixture
async def client(server: ScriptedApiServer) -> AsyncIterator[KubeClient]:
    async with await server.client() as connected:
        yield connected


async def sending(line: bytes, _seen: Seen, send: Send) -> None:
    await send(line)


def answering(server: ScriptedApiServer, status: int, body: Any, **headers: str) -> None:
    async def answer(_seen: Seen) -> web.Response:
        if isinstance(body, str):
            return web.Response(status=status, text=body, headers=headers)
        return web.json_response(body, status=status, headers=headers)

    server.answer = answer


async def test_requests_carry_credential_agent_query_and_patch_type(server: ScriptedApiServer, client: KubeClient) -> None:
    await client.get("/api/v1/things", {"labelSelector": "a=b,!c", "watching": False, "limit": 3})
    seen = server.seen[0]
    assert seen.headers["Authorization"] == "Bearer opaque"
    assert seen.headers["User-Agent"].startswith("muster/")
    assert seen.query == {"labelSelector": "a=b,!c", "watching": "false", "limit": "3"}

    server.seen.clear()
    await client.patch("/api/v1/things/a", {"spec": {}})
    json_patch = [{"op": "remove", "path": "/spec"}]
    await client.raw("PATCH", "/api/v1/things/a", body=json_patch, content_type="application/json-patch+json")
    assert [(seen.headers["Content-Type"], seen.body) for seen in server.seen] == [
        ("application/merge-patch+json", '{"spec": {}}'),
        ("application/json-patch+json", '[{"op": "remove", "path": "/spec"}]'),
    ]

    answering(server, 418, "short and stout")
    answer = await client.raw("GET", "/livez", accept="*/*")
    assert (answer.status, answer.body) == (418, b"short and stout")

    assert RestResource("", "v1", "nodes").path() == "/api/v1/nodes"
    assert RestResource("", "v1", "secrets").path("a", namespace="ns") == "/api/v1/namespaces/ns/secrets/a"
    assert RestResource("x.io", "v2", "things").path("a/../b", subresource="status") == "/apis/x.io/v2/things/a%2F..%2Fb/status"


async def test_api_server_needs_no_authority_key_identifier_with_any_python(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = ssl.create_default_context

    def as_of_python_3_13(*args: Any, **named: Any) -> ssl.SSLContext:
        context = usual(*args, **named)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", as_of_python_3_13)
    async with await KubeClient.from_document(kubeconfig("http://127.0.0.1:1")) as client:
        assert not cast("Any", client)._api.rest_client.ssl_context.verify_flags & ssl.VERIFY_X509_STRICT


async def test_refusal_is_raised_by_its_reason_or_code_with_its_details(server: ScriptedApiServer, client: KubeClient) -> None:
    rows: list[tuple[str, int, type[MusterError]]] = [
        *(("NotFound", 404, NotFoundError), ("AlreadyExists", 409, AlreadyExistsError), ("Conflict", 409, ConflictError)),
        *(("Expired", 410, ExpiredError), ("Gone", 410, ExpiredError), ("Forbidden", 403, ForbiddenError)),
        *(("Unauthorized", 401, UnauthorizedError), ("Invalid", 422, InvalidError), ("ServerTimeout", 500, DeadlineError)),
        *(("InternalError", 500, UnavailableError), ("", 404, NotFoundError), ("", 409, ConflictError)),
    ]
    for reason, code, error in rows:
        answering(server, code, {"kind": "Status", "code": code, "reason": reason, "message": "because"})
        with pytest.raises(MusterError, match="because") as refused:
            await client.get("/api/v1/things/a")
        assert type(refused.value) is error, (reason, code)

    plain = {403: ForbiddenError, 404: NotFoundError, 429: TooManyRequestsError, 500: UnavailableError, 503: UnavailableError}
    for code, error in plain.items():
        answering(server, code, "plain words", **{"Retry-After": "3"})
        with pytest.raises(error, match=f"answered {code}: plain words") as refused:
            await client.get("/x")
        assert refused.value.retry_after == timedelta(seconds=3), (code, error)

    causes = [{"reason": "FieldValueInvalid", "message": "no", "field": "spec.x"}]
    details = {"name": "a", "kind": "things", "group": "x.io", "retryAfterSeconds": 7, "causes": causes}
    answering(server, 429, {"kind": "Status", "code": 429, "reason": "TooManyRequests", "message": "m", "details": details})
    with pytest.raises(TooManyRequestsError) as refused:
        await client.create("/api/v1/things", {})
    assert refused.value.subject
    reported = refused.value.retry_after, refused.value.subject.name, refused.value.causes[0].field
    assert reported == (timedelta(seconds=7), "a", "spec.x")

    answering(server, 200, "<html>a proxy's login page</html>")
    await check_refusal_of(UnavailableError, client.get("/api/v1/things"), match="something that is not a JSON object")


async def test_a_server_that_is_not_there_is_unavailable_and_named() -> None:
    async with scripted_apiserver() as gone:
        url = gone.url
    async with await KubeClient.from_document(kubeconfig(url)) as client:
        await check_refusal_of(UnavailableError, client.get("/version"), match=f"cannot reach {url}")


async def test_watch_reads_events_in_any_pieces_and_rejects_nonsense(server: ScriptedApiServer, client: KubeClient) -> None:
    async def stream(_seen: Seen, send: Send) -> None:
        event = b'{"type": "ADDED", "object": {"metadata": {"name": "long"}, "spec": "' + b"x" * 300_000 + b'"}}\n'
        sent = event + b'{"type": "BOOKMARK", "object": {"metadata": {}}}\n{"ty'
        for piece in (sent[:10], sent[10:200_000], sent[200_000:]):
            await send(piece)

    server.stream = stream
    async with client.watch("/api/v1/things", {}, within=LONG) as events:
        assert [event.type async for event in events] == ["ADDED", "BOOKMARK"]

    for line in (b"no json\n", b'{"type": "ADDED"}\n', b'{"type": "ADDED", "object": {"metadata": 1}}\n'):
        server.stream = partial(sending, line)
        async with client.watch("/api/v1/things", {}, within=LONG) as events:
            await check_refusal_of(UnavailableError, anext(events), match="something that is not a watch event")

    server.refuse_watches = web.HTTPForbidden
    with pytest.raises(ForbiddenError):
        async with client.watch("/api/v1/things", {}, within=LONG):
            raise AssertionError


THINGS = "/api/v1/things"
QUICK = timedelta(milliseconds=5)


def thing(name: str, revision: int, value: str = "") -> Object:
    return {"metadata": {"name": name, "resourceVersion": str(revision)}, "spec": {"value": value}}


def listing(revision: int, *items: Object, more: str = "") -> web.Response:
    return web.json_response({"metadata": {"resourceVersion": str(revision), "continue": more}, "items": list(items)})


def gone() -> dict[str, Any]:
    return {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}


class Mirror:
    """A running reflector and its events."""

    def __init__(self, client: KubeClient, backoff: Backoff | None) -> None:
        self.recorded: list[tuple[str, str | None]] = []
        self.failures: list[MusterError] = []
        self._news = asyncio.Event()
        self.reflector = Reflector(
            client,
            THINGS,
            lambda item: str(item["spec"]["value"]),
            on_change=self._take,
            on_failure=self._fail,
            page_size=2,
            backoff=backoff,
        )

    def _take(self, key: ObjectKey, value: str | None) -> None:
        self.recorded.append((key.name, value))
        self._news.set()

    def _fail(self, error: MusterError) -> None:
        self.failures.append(error)
        self._news.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._news.clear()
            await self._news.wait()

    async def until_recorded(self, *expected: tuple[str, str | None]) -> None:
        """Returns when exactly these events were received, in any order."""
        await self.until(lambda: sorted(self.recorded, key=str) == sorted(expected, key=str))


@asynccontextmanager
async def mirroring(server: ScriptedApiServer, backoff: Backoff | None = None) -> AsyncIterator[Mirror]:
    async with await server.client() as client:
        mirror = Mirror(client, backoff or Backoff(QUICK, QUICK))
        running = asyncio.create_task(mirror.reflector.run())
        try:
            yield mirror
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def test_long_list_is_read_by_pages_before_it_is_synced_and_watched_from_there(server: ScriptedApiServer) -> None:
    release = asyncio.Event()

    async def answer(seen: Seen) -> web.Response:
        if seen.query.get("continue") == "b":
            await release.wait()
            return listing(7, thing("c", 3, "3"))
        return listing(7, thing("a", 1, "1"), thing("b", 2, "2"), more="b")

    server.answer = answer
    async with mirroring(server) as mirror:
        await server.until(lambda: len(server.lists) == 2)
        assert not mirror.reflector.synced.is_set()
        release.set()
        await mirror.reflector.synced.wait()
        await server.until(lambda: len(server.watches) == 1)
    assert [seen.query.get("limit") for seen in server.lists] == ["2", "2"]
    assert {key.name: value for key, value in mirror.reflector.items.items()} == {"a": "1", "b": "2", "c": "3"}
    watch = server.watches[0].query
    assert (watch["resourceVersion"], watch["allowWatchBookmarks"]) == ("7", "true")
    assert WATCH_SECONDS[0] <= int(watch["timeoutSeconds"]) <= WATCH_SECONDS[1]
    assert timedelta(0) < ANSWER_MARGIN


async def test_changed_values_are_reported_once_and_a_cut_watch_resumes_at_its_bookmark(server: ScriptedApiServer) -> None:
    async def stream(seen: Seen, send: Send) -> None:
        if seen.query["resourceVersion"] == "1":
            for number, (kind, value) in enumerate([("ADDED", "1"), ("MODIFIED", "1"), ("MODIFIED", "2"), ("DELETED", "2")]):
                await send({"type": kind, "object": thing("a", 2 + number, value)})
            await send({"type": "ADDED", "object": thing("b", 6, "9")})
            await send({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "40"}}})
            raise CutError
        await asyncio.Event().wait()

    server.stream = stream
    async with mirroring(server) as mirror:
        await mirror.until_recorded(("a", "1"), ("a", "2"), ("a", None), ("b", "9"))
        await server.until(lambda: len(server.watches) == 2)
    assert (server.watches[1].query["resourceVersion"], len(server.lists)) == ("40", 1)
    assert [type(failure) for failure in mirror.failures] == [UnavailableError]


async def test_a_forgotten_revision_means_one_new_list_at_once_and_tells_what_went_unseen(server: ScriptedApiServer) -> None:
    states = iter([listing(1, thing("a", 1, "1"), thing("b", 1, "1")), listing(9, thing("b", 8, "2"), thing("c", 9, "1"))])

    async def answer(_seen: Seen) -> web.Response:
        return next(states)

    async def stream(seen: Seen, send: Send) -> None:
        if seen.query["resourceVersion"] == "1":
            await send({"type": "ERROR", "object": gone()})
            return
        await asyncio.Event().wait()

    server.answer, server.stream = answer, stream
    async with mirroring(server, Backoff(timedelta(seconds=60))) as mirror:
        await mirror.until_recorded(("a", "1"), ("b", "1"), ("a", None), ("b", "2"), ("c", "1"))
        await server.until(lambda: len(server.watches) == 2)
    assert mirror.failures == []


async def test_list_that_expires_between_pages_is_begun_again_and_not_taken_for_synced(server: ScriptedApiServer) -> None:
    expired = web.json_response(gone(), status=410)

    async def answer(seen: Seen) -> web.StreamResponse:
        return expired if seen.query.get("continue") else listing(3, thing("a", 1), more="x")

    server.answer = answer
    async with mirroring(server, Backoff(QUICK, timedelta(seconds=60))) as mirror:
        await server.until(lambda: len(server.lists) >= 4)
        assert not mirror.reflector.synced.is_set()
    assert all(isinstance(failure, ExpiredError) for failure in mirror.failures)


async def requests_within(window: float, *, at_least: int, **script: Any) -> int:
    """How many requests come in so many virtual seconds to a server with this script; more come later."""
    async with scripted_apiserver() as server:
        vars(server).update(script)
        async with mirroring(server, Backoff(timedelta(milliseconds=800), timedelta(seconds=30))):
            await asyncio.sleep(window)
            came = len(server.seen)
            await server.until(lambda: len(server.seen) >= at_least)
    return came


def test_failing_server_is_not_asked_in_a_tight_loop() -> None:
    async def ends_at_once(_seen: Seen, _send: Send) -> None:
        return

    async def forgets(_seen: Seen, send: Send) -> None:
        await send({"type": "ERROR", "object": gone()})

    async def fails(_seen: Seen) -> web.Response:
        return web.Response(status=500, text="boom")

    scripts: list[tuple[dict[str, Any], int, int]] = [({"stream": ends_at_once}, 2, 5), ({"stream": forgets}, 4, 8)]
    for script, least, most in [*scripts, ({"answer": fails}, 2, 4)]:
        assert in_virtual_time_with_sockets(requests_within(1.5, at_least=least, **script)) <= most, script


async def test_a_server_that_went_away_and_came_back_is_mirrored_again() -> None:
    async with scripted_apiserver() as first:
        port = int(first.url.rpartition(":")[2])
        answering(first, 200, {"metadata": {"resourceVersion": "1"}, "items": [thing("a", 1, "1")]})
        client = await first.client()
        mirror = Mirror(client, Backoff(QUICK, QUICK))
        running = asyncio.create_task(mirror.reflector.run())
        await first.until(lambda: len(first.watches) == 1)
    await mirror.until(lambda: any("cannot reach" in failure.message for failure in mirror.failures))
    async with scripted_apiserver(port) as second:

        async def stream(seen: Seen, send: Send) -> None:
            assert seen.query["resourceVersion"] == "1"
            await send({"type": "MODIFIED", "object": thing("a", 2, "2")})
            await asyncio.Event().wait()

        second.stream = stream
        await mirror.until_recorded(("a", "1"), ("a", "2"))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await client.close()


async def test_server_that_accepts_and_never_answers_is_given_up_in_time(server: ScriptedApiServer, client: KubeClient) -> None:
    async def answer(_seen: Seen) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    server.answer = answer
    await check_refusal_of(DeadlineError, client.raw("GET", THINGS, within=timedelta(milliseconds=50)), match=server.url)


async def test_reflector_that_fails_by_a_defect_is_not_waited_for(server: ScriptedApiServer, client: KubeClient) -> None:
    answering(server, 200, {"metadata": {"resourceVersion": "1"}, "items": [thing("a", 1)]})
    broken: Reflector[Any] = Reflector(client, THINGS, lambda item: item["no such field"])
    async with mirrored(broken) as wait:
        await check_refusal_of(KeyError, wait(asyncio.Event()))


_PROGRAM = """
import json, pathlib, sys
import machinery.client.rest, machinery.client.reflector
memory = dict(line.split()[:2] for line in pathlib.Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
modules = list(sys.modules)

import kubernetes
from kubernetes import watch
from kubernetes.aio import dynamic, stream
import kubernetes.aio.watch
things = (kubernetes.client.V1Pod, kubernetes.aio.client.CoreV1Api, watch.Watch, kubernetes.aio.watch.Watch)
names = [thing.__name__ for thing in (*things, dynamic.DynamicClient, kubernetes.aio.leaderelection)]
print(json.dumps({"modules": modules, "rss": int(memory["Rss:"]) / 1024, "version": kubernetes.__version__, "names": names}))
"""


def test_client_loads_no_typed_models_and_leaves_the_package_whole_for_others() -> None:
    measured = json.loads(subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True).stdout)
    loaded = [name for name in measured["modules"] if name.startswith("kubernetes.") and not name.startswith("kubernetes.aio")]
    assert loaded == []
    heavy = (
        *("kubernetes.aio.client.models.", "kubernetes.aio.client.api.", "kubernetes.aio.dynamic", "kubernetes.aio.stream"),
        *("requests", "oauthlib", "websocket"),
    )
    assert [name for name in measured["modules"] if name.startswith(heavy)] == []
    assert measured["rss"] < 60  # MB; with one typed API of Kubernetes it is 150
    assert int(measured["version"].split(".")[0]) >= 37
    assert measured["names"] == ["V1Pod", "CoreV1Api", "Watch", "Watch", "DynamicClient", "kubernetes.aio.leaderelection"]
