import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from aiohttp import web

from machinery.backoff import Backoff
from machinery.errors import DeadlineError, ExpiredError, MusterError, UnavailableError
from machinery.kube.client import KubeClient, Object
from machinery.kube.reflector import ANSWER_MARGIN, WATCH_SECONDS, ObjectKey, Reflector, mirrored
from tests.fakes.scripted_apiserver import CutError, ScriptedApiServer, Seen, Send, scripted_apiserver

THINGS = "/api/v1/things"
QUICK = timedelta(milliseconds=5)


def thing(name: str, revision: int, value: str = "") -> Object:
    return {"metadata": {"name": name, "resourceVersion": str(revision)}, "spec": {"value": value}}


def listing(revision: int, *items: Object, more: str = "") -> web.Response:
    return web.json_response({"metadata": {"resourceVersion": str(revision), "continue": more}, "items": list(items)})


def gone() -> dict[str, Any]:
    return {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}


class Mirror:
    """A reflector at work and what it told."""

    def __init__(self, client: KubeClient, backoff: Backoff | None) -> None:
        self.told: list[tuple[str, str | None]] = []
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
        self.told.append((key.name, value))
        self._news.set()

    def _fail(self, error: MusterError) -> None:
        self.failures.append(error)
        self._news.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                self._news.clear()
                await self._news.wait()

    async def until_told(self, *told: tuple[str, str | None]) -> None:
        """Returns when exactly this was told, in any order."""
        await self.until(lambda: sorted(self.told, key=str) == sorted(told, key=str))


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


async def test_a_long_list_is_read_page_by_page_and_then_watched_from_its_revision() -> None:
    async with scripted_apiserver() as server:

        async def answer(seen: Seen) -> web.Response:
            if seen.query.get("continue") == "b":
                return listing(7, thing("c", 3, "3"))
            return listing(7, thing("a", 1, "1"), thing("b", 2, "2"), more="b")

        server.answer = answer
        async with mirroring(server) as mirror:
            await mirror.reflector.synced.wait()
            await server.until(lambda: len(server.watches) == 1)
        assert [seen.query.get("limit") for seen in server.lists] == ["2", "2"]
        assert {key.name: value for key, value in mirror.reflector.items.items()} == {"a": "1", "b": "2", "c": "3"}
        watch = server.watches[0].query
        assert watch["resourceVersion"] == "7"
        assert watch["allowWatchBookmarks"] == "true"
        assert WATCH_SECONDS[0] <= int(watch["timeoutSeconds"]) <= WATCH_SECONDS[1]
        assert timedelta(0) < ANSWER_MARGIN


async def test_synced_is_set_only_when_the_whole_list_was_taken_over() -> None:
    async with scripted_apiserver() as server:
        release = asyncio.Event()

        async def answer(seen: Seen) -> web.Response:
            if seen.query.get("continue"):
                await release.wait()
                return listing(2)
            return listing(2, thing("a", 1), more="x")

        server.answer = answer
        async with mirroring(server) as mirror:
            await server.until(lambda: len(server.lists) == 2)
            assert not mirror.reflector.synced.is_set()
            release.set()
            await asyncio.wait_for(mirror.reflector.synced.wait(), 5)


async def test_events_are_told_once_and_only_when_the_kept_value_differs() -> None:
    async with scripted_apiserver() as server:

        async def stream(_seen: Seen, send: Send) -> None:
            await send({"type": "ADDED", "object": thing("a", 2, "1")})
            await send({"type": "MODIFIED", "object": thing("a", 3, "1")})
            await send({"type": "MODIFIED", "object": thing("a", 4, "2")})
            await send({"type": "DELETED", "object": thing("a", 5, "2")})
            await send({"type": "ADDED", "object": thing("b", 6, "9")})
            await asyncio.Event().wait()

        server.stream = stream
        async with mirroring(server) as mirror:
            await mirror.until_told(("a", "1"), ("a", "2"), ("a", None), ("b", "9"))


async def test_a_cut_watch_resumes_from_the_last_revision_seen_bookmarks_included() -> None:
    async with scripted_apiserver() as server:

        async def stream(seen: Seen, send: Send) -> None:
            if seen.query["resourceVersion"] == "1":
                await send({"type": "ADDED", "object": thing("a", 5, "1")})
                await send({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "40"}}})
                raise CutError
            await asyncio.Event().wait()

        server.stream = stream
        async with mirroring(server) as mirror:
            await server.until(lambda: len(server.watches) == 2)
        assert server.watches[1].query["resourceVersion"] == "40"
        assert len(server.lists) == 1
        assert [type(failure) for failure in mirror.failures] == [UnavailableError]


async def test_a_forgotten_revision_means_one_new_list_at_once_and_tells_what_went_unseen() -> None:
    async with scripted_apiserver() as server:
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
            await mirror.until_told(("a", "1"), ("b", "1"), ("a", None), ("b", "2"), ("c", "1"))
            await server.until(lambda: len(server.watches) == 2)
        assert mirror.failures == []


async def test_a_list_that_expires_between_its_pages_is_begun_again_and_is_not_taken_for_synced() -> None:
    async with scripted_apiserver() as server:
        expired = web.json_response(gone(), status=410)

        async def answer(seen: Seen) -> web.StreamResponse:
            return expired if seen.query.get("continue") else listing(3, thing("a", 1), more="x")

        server.answer = answer
        async with mirroring(server, Backoff(QUICK, timedelta(seconds=60))) as mirror:
            await server.until(lambda: len(server.lists) >= 4)
            assert not mirror.reflector.synced.is_set()
        assert all(isinstance(failure, ExpiredError) for failure in mirror.failures)


async def requests_within(server: ScriptedApiServer, window: timedelta, *, at_least: int) -> int:
    """How many came in the window; the first so many come anyway, however busy the machine is."""
    async with mirroring(server, Backoff(timedelta(milliseconds=800), timedelta(seconds=30))):
        await asyncio.sleep(window.total_seconds())  # the window is what is measured
        came = len(server.seen)
        await server.until(lambda: len(server.seen) >= at_least)
    return came


async def test_a_server_that_ends_every_watch_at_once_is_not_asked_in_a_tight_loop() -> None:
    async with scripted_apiserver() as server:

        async def stream(_seen: Seen, _send: Send) -> None:
            return

        server.stream = stream
        assert await requests_within(server, timedelta(seconds=1.5), at_least=2) <= 5


async def test_a_server_that_forgets_every_revision_is_not_asked_in_a_tight_loop() -> None:
    async with scripted_apiserver() as server:

        async def stream(_seen: Seen, send: Send) -> None:
            await send({"type": "ERROR", "object": gone()})

        server.stream = stream
        assert await requests_within(server, timedelta(seconds=1.5), at_least=4) <= 8


async def test_a_server_that_answers_500_is_not_asked_in_a_tight_loop() -> None:
    async with scripted_apiserver() as server:

        async def answer(_seen: Seen) -> web.Response:
            return web.Response(status=500, text="boom")

        server.answer = answer
        assert await requests_within(server, timedelta(seconds=1.5), at_least=2) <= 4


async def test_a_server_that_went_away_and_came_back_is_mirrored_again() -> None:
    async with scripted_apiserver() as first:
        port = int(first.url.rpartition(":")[2])

        async def before(_seen: Seen) -> web.Response:
            return listing(1, thing("a", 1, "1"))

        first.answer = before
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
        await mirror.until_told(("a", "1"), ("a", "2"))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await client.close()


async def test_a_server_that_accepts_and_never_answers_is_given_up_in_time() -> None:
    async with scripted_apiserver() as server:

        async def answer(_seen: Seen) -> web.Response:
            await asyncio.Event().wait()
            raise AssertionError

        server.answer = answer
        async with await server.client() as client:
            try:
                await client.get(THINGS, within=timedelta(milliseconds=50))
            except DeadlineError as error:
                assert server.url in error.message  # noqa: PT017 - the message is the point
            else:
                raise AssertionError


async def test_a_reflector_that_falls_over_a_defect_is_not_waited_for_in_silence() -> None:
    async with scripted_apiserver() as server:

        async def answer(_seen: Seen) -> web.Response:
            return listing(1, thing("a", 1))

        server.answer = answer
        async with await server.client() as client:
            broken: Reflector[Any] = Reflector(client, THINGS, lambda item: item["no such field"])
            async with asyncio.timeout(5), mirrored(broken) as wait:
                with pytest.raises(KeyError):
                    await wait(asyncio.Event())
