"""The chain of filters: its order, and what each of them may do."""

from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from machinery.apiserver.access import Attributes
from machinery.apiserver.filters import Filter, Incoming, Inner, chained


def incoming() -> Incoming:
    return Incoming(make_mocked_request("GET", "/version"), "an-id", Attributes("get", "/version"), 0.0)


def noting(name: str, seen: list[str]) -> Filter:
    async def note(incoming: Incoming, inner: Inner) -> web.StreamResponse:
        seen.append(f"{name} in")
        response = await inner(incoming)
        seen.append(f"{name} out")
        return response

    return note


async def test_the_first_filter_is_the_outermost() -> None:
    seen: list[str] = []

    async def answer(_incoming: Incoming) -> web.StreamResponse:
        seen.append("answer")
        return web.Response()

    await chained((noting("a", seen), noting("b", seen)), answer)(incoming())
    assert seen == ["a in", "b in", "answer", "b out", "a out"]


async def test_a_filter_that_answers_itself_keeps_the_rest_from_running() -> None:
    async def refuse(_incoming: Incoming, _inner: Inner) -> web.StreamResponse:
        return web.Response(status=429)

    async def answer(_incoming: Incoming) -> web.StreamResponse:
        raise AssertionError

    response = await chained((refuse,), answer)(incoming())
    assert response.status == 429


async def test_without_filters_the_answer_stands() -> None:
    async def answer(_incoming: Incoming) -> web.StreamResponse:
        return web.Response(status=204)

    assert (await chained((), answer)(incoming())).status == 204
