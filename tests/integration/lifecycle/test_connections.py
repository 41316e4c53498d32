"""Bounds of a connection, watches at a stop, and the server as its own client."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from machinery.apiserver.access import ANONYMOUS, Attributes, Authenticator, Authorizer, Decision
from machinery.apiserver.http.connections import ConnectionBounds
from machinery.apiserver.http.filters import Draining, Filters
from machinery.apiserver.http.listener import Listening, serve
from machinery.apiserver.http.loopback import LIFETIME, SERVER_NAME, USER_AGENT, Loopback, LoopbackAuthenticator, LoopbackClient
from machinery.apiserver.kinds.core import CONFIG_MAP
from machinery.apiserver.read.watches import CLOSE_TIMEOUT
from machinery.apiserver.resource import ApiGroup, selectable_fields
from machinery.apiserver.server import ApiServer, RequestBounds
from machinery.apiserver.storage import Actor
from machinery.apiserver.storages.memory import MemoryStorage
from machinery.errors import ForbiddenError, NotFoundError, UnavailableError
from machinery.meta.objects import Key
from machinery.runtime.clock import ManualClock, SystemClock
from machinery.runtime.event_loop import LEAST_RATE
from machinery.runtime.tls import client_context, server_context
from tests.checks import check_refusal_of
from tests.fakes.identity import AllowEverything, EveryoneIsAdmin, every_namespace
from tests.fakes.virtual_time import in_virtual_time_with_sockets, virtual
from tests.trials import soaked, trials

GROUPS = (ApiGroup("", (CONFIG_MAP,)),)
BOUNDS = replace(ConnectionBounds(), header_bytes=20_000)
HANDSHAKE, HEADER, IDLE = (each.total_seconds() for each in (BOUNDS.handshake, BOUNDS.header, BOUNDS.idle))
REQUEST_SECONDS = 20
REQUEST = b"GET /version HTTP/1.1\r\nHost: hub\r\n\r\n"
WATCH = b"GET /api/v1/configmaps?watch=1&timeoutSeconds=60 HTTP/1.1\r\nHost: h\r\n\r\n"


def api_server(storage: MemoryStorage | None = None, draining: Draining | None = None, **options: Any) -> ApiServer:
    """One that lets everybody do everything."""
    filters = Filters(gate=(draining.gate,), in_flight=(draining.counted,)) if draining else Filters()
    given = {"authenticator": EveryoneIsAdmin(), "authorizer": AllowEverything(), "filters": filters, **options}
    stored, version = storage or MemoryStorage(selectable_fields(GROUPS)), {"gitVersion": "v0"}
    return ApiServer(GROUPS, stored, clock=SystemClock(), version=version, namespaces=every_namespace, **given)


def with_listener(story: Callable[[Listening], Awaitable[None]], *, tls: bool = False) -> Callable[[], None]:
    """Makes a test of a story about one listener."""

    async def played() -> None:
        server = api_server(limits=RequestBounds(request=timedelta(seconds=REQUEST_SECONDS)))
        context = server_context(Loopback.fresh(SystemClock().now()).material) if tls else None
        listening = await serve(server.application(), "127.0.0.1", 0, context, bounds=BOUNDS)
        await story(listening)
        await listening.close(timedelta())

    def test() -> None:
        in_virtual_time_with_sockets(played())

    return test


def now() -> float:
    return asyncio.get_running_loop().time()


def careless_context() -> ssl.SSLContext:
    """Accepts any server."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class Peer:
    """A client that writes what it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self._writer = writer

    @classmethod
    async def of(cls, listening: Listening) -> "Peer":
        return cls(*await asyncio.open_connection("127.0.0.1", listening.port))

    async def secure(self, context: ssl.SSLContext | None = None) -> None:
        await self._writer.start_tls(context or careless_context())

    def send(self, raw: bytes) -> None:
        self._writer.write(raw)

    async def head(self) -> bytes:
        """Status line and headers of the next answer."""
        return await self.reader.readuntil(b"\r\n\r\n")

    async def answer(self, request: bytes = b"") -> bytes:
        """The head of the answer; the body is read too."""
        self.send(request)
        head = await self.head()
        length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
        await self.reader.readexactly(length)
        return head

    async def rest(self) -> bytes:
        """Everything until the server closes."""
        try:
            return await self.reader.read()
        except ConnectionError:
            return b""
        finally:
            self.close()

    async def drip(self, raw: bytes, answered: asyncio.Future[bytes]) -> bytes:
        """Writes a byte every second until the server has answered."""
        for each in raw:
            if answered.done():
                break
            self.send(bytes((each,)))
            await asyncio.sleep(1)
        return await answered

    def close(self) -> None:
        self._writer.transport.abort()


@with_listener
async def test_incomplete_headers_end_the_connection_at_the_deadline(listening: Listening) -> None:
    slow, silent = await Peer.of(listening), await Peer.of(listening)
    assert await slow.drip(b"GET /version HTTP/1.1\r\nX: " + b"a" * 100, asyncio.ensure_future(slow.rest())) == b""
    assert HEADER <= now() <= HEADER + 1
    assert await silent.rest() == b""
    assert now() <= HEADER + 1, "a connection that sends nothing has the same deadline"
    assert len(listening.connections) == 0
    second = await Peer.of(listening)
    assert b" 200 " in await second.answer(REQUEST)
    before = now()
    second.send(b"GET /version HTT")
    assert await second.rest() == b""
    assert now() - before == pytest.approx(HEADER), "the next request of a connection too, though idle ones stay longer"


@with_listener
async def test_idle_connection_stays_for_its_time_and_no_longer(listening: Listening) -> None:
    peer = await Peer.of(listening)
    for _ in range(3):
        assert b" 200 " in await peer.answer(REQUEST)
        await asyncio.sleep(IDLE - 5)
    assert b" 200 " in await peer.answer(REQUEST)
    before = now()
    assert await peer.rest() == b""
    assert IDLE <= now() - before <= IDLE + 2


@with_listener
async def test_headers_are_bounded_in_size_and_number_however_they_are_cut(listening: Listening) -> None:
    large, many, cut, often = [await Peer.of(listening) for _ in range(4)]
    large.send(b"GET /version HTTP/1.1\r\nHost: hub\r\nX: ")
    for _ in range(7):
        await asyncio.sleep(0.01)
        large.send(b"a" * 4000)
    assert b" 431 " in (await large.rest()).splitlines()[0]
    many.send(b"GET /version HTTP/1.1\r\n" + b"".join(b"X-%d: y\r\n" % number for number in range(300)) + b"\r\n")
    assert b" 400 " in (await many.rest()).splitlines()[0]
    cut.send(b"GET /version HTTP/1.1\r\nHost: hub\r\n")
    cut.send(b"X: " + b"a" * 15_000)
    await asyncio.sleep(0.02)
    assert b" 200 " in await cut.answer(b"\r\n\r\n")
    for _ in range(60):
        request = b"GET /version HTTP/1.1\r\nHost: hub\r\nX: " + b"a" * 2_000 + b"\r\n\r\n"
        assert b" 200 " in await often.answer(request), "many requests are not mistaken for many headers"
    cut.close()
    often.close()


@with_listener
async def test_request_has_its_own_deadline_and_a_watch_outlives_that_of_headers(listening: Listening) -> None:
    peer = await Peer.of(listening)
    head = b"POST /api/v1/namespaces/a/configmaps HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
    peer.send(head + b"Content-Length: 5000\r\n\r\n")
    assert b" 504 " in await peer.drip(b" " * 100, asyncio.ensure_future(peer.answer()))
    assert REQUEST_SECONDS <= now() <= REQUEST_SECONDS + 1
    peer.close()
    watching, before = await Peer.of(listening), now()
    watching.send(WATCH)
    assert b" 200 " in await watching.head()
    assert (await watching.reader.readuntil(b"0\r\n\r\n")).endswith(b"0\r\n\r\n"), "it ended in order, after its own time"
    assert now() - before == pytest.approx(60, abs=1)
    watching.close()


@partial(with_listener, tls=True)
async def test_handshake_has_a_deadline_and_needs_tls_1_2(listening: Listening) -> None:
    peer = await Peer.of(listening)
    assert await peer.rest() == b""
    assert now() == pytest.approx(HANDSHAKE)
    old = careless_context()
    with pytest.warns(DeprecationWarning, match="deprecated"):
        old.minimum_version = ssl.TLSVersion.TLSv1
    with pytest.warns(DeprecationWarning, match="deprecated"):
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.set_ciphers("ALL:@SECLEVEL=0")
    await check_refusal_of((ssl.SSLError, ConnectionError), asyncio.open_connection("127.0.0.1", listening.port, ssl=old))
    for ciphers, taken in (("ECDHE+AESGCM", True), ("ECDHE+CHACHA20", True), ("ALL:!AESGCM:!CHACHA20:@SECLEVEL=0", False)):
        context = careless_context()
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(ciphers)
        peer = await Peer.of(listening)
        try:
            await peer.secure(context)
        except (ssl.SSLError, ConnectionError):
            assert not taken, ciphers
        else:
            assert taken, ciphers
        peer.close()


@with_listener
async def test_leaving_closes_idle_connections_at_once_and_busy_ones_after_their_answer(listening: Listening) -> None:
    idle = [await Peer.of(listening) for _ in range(50)]
    for peer in idle:
        await peer.answer(REQUEST)
    busy = await Peer.of(listening)
    busy.send(WATCH)
    await busy.head()
    await listening.stop_listening()
    listening.connections.leave()
    before = now()
    assert ({await peer.rest() for peer in idle}, now()) == ({b""}, before)
    assert (await busy.rest()).endswith(b"0\r\n\r\n")


@partial(with_listener, tls=True)
async def test_connection_whose_handshake_ends_after_leaving_is_closed_at_once(listening: Listening) -> None:
    """Otherwise a client that keeps asking on it would delay the stop for all the time there is."""
    late, next_one = await Peer.of(listening), await Peer.of(listening)
    await next_one.secure()  # a connection that came earlier was accepted too
    await listening.stop_listening()
    listening.connections.leave()
    await late.secure()
    before = now()
    late.send(REQUEST)
    assert (await late.rest(), now()) == (b"", before)
    next_one.close()


WATCHES = trials(test=100, soak=2_000)
GRACE = timedelta(seconds=trials(test=3, soak=10))
ADMIN = Actor("admin")


@dataclass
class Stage:
    server: ApiServer
    storage: MemoryStorage
    draining: Draining
    url: str

    async def write(self, name: str, size: int = 1) -> int:
        document = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"x": "y" * size}}
        return (await self.storage.create(CONFIG_MAP.key, Key("default", name), document, ADMIN)).revision


@asynccontextmanager
async def stage(storage: MemoryStorage | None = None) -> AsyncIterator[Stage]:
    """A server over these objects, or over none."""
    stored, draining = storage or MemoryStorage(selectable_fields(GROUPS)), Draining()
    server = api_server(stored, draining)
    listening = await serve(server.application(), "127.0.0.1", 0)
    yield Stage(server, stored, draining, f"http://127.0.0.1:{listening.port}")
    await listening.close(timedelta())


async def watches_open(subject: Stage, count: int) -> None:
    while len(subject.server.watches) < count:  # noqa: ASYNC110 - the server notifies nobody of it
        await asyncio.sleep(0.01)


async def watched(session: aiohttp.ClientSession, url: str, after: int = 0, count: int = 0) -> tuple[list[str], float]:
    """The names of the objects that one watch shows, the first `count` or all, and when it ended. No line may be torn."""
    names: list[str] = []
    place = f"&resourceVersion={after}" if after else ""
    async with session.get(f"{url}/api/v1/configmaps?watch=1{place}") as response:
        assert response.status == 200
        async for line in response.content:
            names.append(json.loads(line)["object"]["metadata"]["name"])
            if len(names) == count:
                break
    return names, now()


@soaked(WATCHES)
@virtual
async def test_watches_end_evenly_and_whole_and_the_next_watch_gets_the_rest() -> None:
    async with stage() as subject, aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        first = await subject.write("first")
        watching = [asyncio.create_task(watched(session, subject.url)) for _ in range(WATCHES)]
        await watches_open(subject, WATCHES)
        assert subject.server.watches.by_resource() == {"configmaps": WATCHES}
        draining = asyncio.create_task(subject.server.watches.drain(GRACE))
        await subject.write("while it drains")
        before = now()
        await draining
        took = now() - before
        await subject.write("afterwards")
        ended = await asyncio.gather(*watching)
        async with stage(subject.storage) as again:
            for names, _ in ended:
                assert names in (["first"], ["first", "while it drains"])
            resumed, _ = await watched(session, again.url, first, count=2)
    rate = max(LEAST_RATE, WATCHES / GRACE.total_seconds())
    moments = sorted(moment for _, moment in ended)
    assert took <= GRACE.total_seconds()
    assert moments[-1] - moments[0] > 0.6 * (WATCHES - 1) / rate, "evenly, not at once"
    assert resumed == ["while it drains", "afterwards"], "a client that comes back finds what it has missed, once"


@pytest.mark.usefixtures("slow_pace")
@virtual
async def test_watches_that_cannot_end_evenly_in_time_end_at_its_end() -> None:
    async with stage() as subject, aiohttp.ClientSession() as session:
        await subject.write("first")
        watching = [asyncio.create_task(watched(session, subject.url)) for _ in range(10)]
        await watches_open(subject, 10)
        before = now()
        await subject.server.watches.drain(GRACE)
        assert now() - before <= GRACE.total_seconds()
        assert [names for names, _ in await asyncio.gather(*watching)] == [["first"]] * 10


@pytest.fixture
def slow_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("machinery.runtime.event_loop.LEAST_RATE", 1)
    monkeypatch.setattr("machinery.apiserver.read.watches.PACED_SHARE", 50)


@virtual
async def test_client_that_does_not_read_delays_nobody_beyond_the_grace_period() -> None:
    async with stage() as subject, aiohttp.ClientSession(read_bufsize=1024) as session:
        for number in range(200):
            await subject.write(f"large{number}", size=100_000)
        async with session.get(f"{subject.url}/api/v1/configmaps?watch=1") as response:
            assert response.status == 200
            before = now()
            await subject.server.watches.drain(GRACE)
            assert now() - before <= GRACE.total_seconds() + CLOSE_TIMEOUT.total_seconds()


@virtual
async def test_drain_ends_while_it_is_probed_all_the_time() -> None:
    async with stage() as subject, aiohttp.ClientSession() as session:
        stop = asyncio.Event()
        codes: list[int] = []

        async def probe() -> None:
            while not stop.is_set():
                async with session.get(f"{subject.url}/readyz") as response:
                    codes.append(response.status)
                await asyncio.sleep(0.02)

        probing = asyncio.create_task(probe())
        subject.draining.refuse()
        for _ in range(10):
            await subject.draining.drained()
            await asyncio.sleep(0.02)
        stop.set()
        await probing
        assert set(codes) == {200}
        async with session.get(f"{subject.url}/version") as response:
            assert (response.status, response.headers["Connection"]) == (429, "close")


PATH = "/api/v1/namespaces/default/configmaps"


class Nobody(Authenticator):
    async def authenticate(self, _request: web.Request) -> Actor:
        return ANONYMOUS


class OnlyMasters(Authorizer):
    async def authorize(self, actor: Actor, _attributes: Attributes) -> Decision:
        return Decision(allowed="system:masters" in actor.groups)


@dataclass
class LoopbackStage:
    listening: Listening
    loopback: Loopback
    public: Loopback
    draining: Draining

    def client(self, loopback: Loopback | None = None) -> LoopbackClient:
        return LoopbackClient(loopback or self.loopback, "0.0.0.0", self.listening.port)  # noqa: S104 - as a hub listens


@pytest.fixture
async def loopback() -> AsyncIterator[LoopbackStage]:
    now = SystemClock().now()
    loopback, public = Loopback.fresh(now), Loopback.fresh(now)
    draining = Draining(loopback)
    server = api_server(draining=draining, authenticator=LoopbackAuthenticator(loopback, Nobody()), authorizer=OnlyMasters())
    context = server_context(public.material)
    loopback.shown_by(context)
    listening = await serve(server.application(), "127.0.0.1", 0, context)
    yield LoopbackStage(listening, loopback, public, draining)
    await listening.close(timedelta())


async def test_other_tokens_user_agents_and_certificates_are_rejected(loopback: LoopbackStage) -> None:
    other = Loopback.fresh(SystemClock().now())
    async with loopback.client(Loopback(other.token, loopback.loopback.material, other.not_after)) as client:
        await check_refusal_of(ForbiddenError, client.get(PATH))

    stranger = Loopback(loopback.loopback.token, loopback.public.material, loopback.public.not_after)
    async with loopback.client(stranger) as client:
        await check_refusal_of(UnavailableError, client.get(PATH))

    shown = {}
    for name in (SERVER_NAME, "localhost"):
        context = careless_context()
        _, writer = await asyncio.open_connection("127.0.0.1", loopback.listening.port, ssl=context, server_hostname=name)
        shown[name] = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.transport.abort()
    assert shown[SERVER_NAME] == ssl.PEM_cert_to_DER_cert(loopback.loopback.material.chain.decode())
    assert shown["localhost"] == ssl.PEM_cert_to_DER_cert(loopback.public.material.chain.decode())

    context = client_context(loopback.loopback.material.trust)
    url = f"https://127.0.0.1:{loopback.listening.port}{PATH}"
    for code in (403, 429):
        async with (
            aiohttp.ClientSession(headers={"User-Agent": f"{USER_AGENT}1"}) as session,
            session.get(url, ssl=context, server_hostname=SERVER_NAME) as response,
        ):
            assert response.status == code
        loopback.draining.refuse()


async def test_loopback_client_may_do_everything_and_hides_its_secrets(loopback: LoopbackStage) -> None:
    document = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"x": "y"}}
    async with loopback.client() as client:
        assert (await client.request("POST", PATH, document))["data"] == {"x": "y"}
        assert (await client.get(f"{PATH}/a"))["metadata"]["name"] == "a"
        await check_refusal_of(NotFoundError, client.get(f"{PATH}/b"))
        assert await client.get("/readyz") == "ok"
    loopback.draining.refuse()
    async with loopback.client() as client:
        assert [item["metadata"]["name"] for item in (await client.get(PATH))["items"]] == ["a"]

    assert loopback.loopback.token not in repr(loopback.loopback)
    assert "PRIVATE" not in repr(loopback.loopback)
    clock = ManualClock()
    check = Loopback.fresh(clock.now()).check(clock)
    clock.advance(LIFETIME)
    await check()
    clock.advance(timedelta(seconds=1))
    await check_refusal_of(RuntimeError, check(), match="ended at")


@with_listener
async def test_what_is_not_http_is_refused_without_a_word_of_the_request_or_of_the_software(listening: Listening) -> None:
    good = b"GET /version HTTP/1.1\r\nHost: hub\r\n"
    rows = (
        (b"FOO /version HTTP/1.1\r\nHost: hub\r\n\r\n", b" 405 ", b'"reason": "MethodNotAllowed"'),
        (b"GET secret HTTP/1.1\r\n\r\n", b" 400 ", b"\r\n\r\n400 Bad Request"),
        (b"\x16\x03\x01secret\r\n\r\n", b" 400 ", b"\r\n\r\n400 Bad Request"),
        (b"GET /version HTTP/9.9\r\n\r\n", b" 400 ", b"\r\n\r\n400 Bad Request"),
        (good + b"secret\r\n\r\n", b" 400 ", b"\r\n\r\n400 Bad Request"),
        (good + b"Content-Length: secret\r\n\r\n", b" 400 ", b"\r\n\r\n400 Bad Request"),
        (good + b"Transfer-Encoding: chunked\r\n\r\nsecret\r\n", b" 400 ", b"\r\n\r\n400 Bad Request"),
        (good + b"Connection: close\r\n\r\n", b" 200 ", b"\r\n\r\n{"),
        (b"PROPFIND /version HTTP/1.1\r\nHost: hub\r\nConnection: close\r\n\r\n", b" 405 ", b'"reason":"MethodNotAllowed"'),
    )
    wrong = []
    for sent, status, words in rows:
        peer = await Peer.of(listening)
        peer.send(sent)
        answer = await peer.rest()
        leaks = [word for word in (b"secret", b"Server:", b"Python", b"aiohttp", b"b'") if word in answer]
        if status not in answer.splitlines()[0] or words not in answer or leaks:
            wrong.append((sent, answer, leaks))
    assert not wrong
