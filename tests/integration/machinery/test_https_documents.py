"""HTTPS requests to other servers: who is trusted, how long is waited, how much is read."""

import asyncio
import gzip
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from aiohttp import web

from machinery.apiserver.authn.issuer_keys import MAX_ANSWER, HttpsDocuments
from machinery.apiserver.http.listener import serve
from machinery.errors import InvalidError, UnavailableError
from machinery.runtime.tls import server_context
from tests.checks import check_refusal, check_refusal_of
from tests.fakes.authority import OtherCA
from tests.fakes.identity import serving_material


class Server:
    """Answers by path; notes what it was asked."""

    def __init__(self) -> None:
        self.authority = OtherCA("others")
        self.asked: list[str] = []
        self.url = ""
        self.release = asyncio.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(f"{request.method} {request.path}")
        answers: dict[str, web.Response] = {
            "/good": web.json_response({"a": 1}),
            "/list": web.json_response([1]),
            "/text": web.Response(text="secret words"),
            "/packed": web.Response(body=gzip.compress(b'{"a": 1}'), headers={"Content-Encoding": "gzip"}),
            "/long": web.json_response({"a": "x" * MAX_ANSWER}),
            "/denied": web.Response(status=403, text="secret words"),
            "/away": web.Response(status=302, headers={"Location": f"{self.url}/good"}),
        }
        if request.path == "/slow":
            await self.release.wait()
        return answers.get(request.path, web.Response(status=404))


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    made, app = Server(), web.Application()
    app.router.add_route("*", "/{path:.*}", made.answer)
    door = await serve(app, "127.0.0.1", 0, server_context(serving_material(made.authority.authority)))
    made.url = f"https://127.0.0.1:{door.port}"
    yield made
    made.release.set()
    await door.close()


async def test_document_is_fetched_and_posted_without_a_proxy(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = HttpsDocuments.with_authorities(server.authority.certificate)
    assert await documents.get(f"{server.url}/good") == {"a": 1}
    assert await documents.post(f"{server.url}/good", {"b": 2}) == {"a": 1}
    await documents.reach(f"{server.url}/anything")
    assert server.asked == ["GET /good", "POST /good"]
    for name in ("https_proxy", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert await HttpsDocuments.with_authorities(server.authority.certificate).get(f"{server.url}/good") == {"a": 1}


async def test_another_answer_is_a_failure_without_its_words(server: Server) -> None:
    for path, why in (
        *(("/list", "not a JSON document"), ("/text", "not a JSON document"), ("/packed", "not a JSON document")),
        *(("/long", "longer than"), ("/denied", "HTTP status 403"), ("/away", "HTTP status 302")),
    ):
        server.asked.clear()
        with pytest.raises(UnavailableError, match=why) as failed:
            await HttpsDocuments.with_authorities(server.authority.certificate).post(server.url + path, {"token": "t0ken"})
        assert ("secret words" in failed.value.message, "t0ken" in failed.value.message) == (False, False)
        assert server.asked == [f"POST {path}"], "a redirect is not followed"


async def test_unverified_absent_or_silent_server_is_unavailable(server: Server) -> None:
    for trusted in (OtherCA("else").certificate, b""):
        documents = HttpsDocuments.with_authorities(trusted)
        for asking in (documents.get, documents.reach):
            await check_refusal_of(UnavailableError, asking(f"{server.url}/good"), match=r"certificate of 127\.0\.0\.1")
    assert server.asked == []

    documents = HttpsDocuments.with_authorities(server.authority.certificate, timedelta(milliseconds=200))
    await check_refusal_of(UnavailableError, documents.get(f"{server.url}/slow"), match=r"does not answer within 0\.2 s")

    for asking in (documents.get, documents.reach):
        await check_refusal_of(UnavailableError, asking("https://127.0.0.1:1/x"), match=r"127\.0\.0\.1:1 cannot be reached")

    check_refusal(InvalidError, HttpsDocuments.with_authorities, b"no PEM")
