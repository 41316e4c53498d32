"""A connection is bounded: slow headers, no headers, too many headers, slow bodies, idleness, handshakes that never end."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta

import pytest

from machinery import pki
from machinery.apiserver.access import AllowEverything, EveryoneIsAdmin
from machinery.apiserver.connections import Bounds
from machinery.apiserver.kinds.core import CONFIG_MAP
from machinery.apiserver.loopback import Loopback
from machinery.apiserver.memory import MemoryStorage
from machinery.apiserver.resource import Group, selectable_fields
from machinery.apiserver.server import ApiServer, Limits
from machinery.apiserver.serving import Listening, serve
from machinery.clock import SystemClock
from machinery.tls import server_context

GROUPS = (Group("", (CONFIG_MAP,)),)
TIGHT = Bounds(
    handshake=timedelta(milliseconds=400),
    header=timedelta(milliseconds=400),
    idle=timedelta(milliseconds=1200),
    header_bytes=20_000,
)
PATIENT = Bounds()
REQUEST = b"GET /version HTTP/1.1\r\nHost: hub\r\n\r\n"


async def nobody(_namespace: str) -> bool:
    return True


@pytest.fixture
async def listening() -> AsyncIterator[Listening]:
    async for one in listener(None):
        yield one


@pytest.fixture
async def patient() -> AsyncIterator[Listening]:
    """Neither headers nor idleness end a connection while a test looks."""
    async for one in listener(None, replace(TIGHT, header=timedelta(seconds=30), idle=timedelta(seconds=30))):
        yield one


@pytest.fixture
async def resting() -> AsyncIterator[Listening]:
    """Idle connections stay for much longer than headers may take."""
    async for one in listener(None, replace(TIGHT, idle=timedelta(seconds=2))):
        yield one


@pytest.fixture
async def idling() -> AsyncIterator[Listening]:
    async for one in listener(None, replace(TIGHT, idle=timedelta(seconds=30))):
        yield one


async def listener(context: ssl.SSLContext | None, bounds: Bounds = TIGHT) -> AsyncIterator[Listening]:
    server = ApiServer(
        GROUPS,
        MemoryStorage(selectable_fields(GROUPS)),
        authenticator=EveryoneIsAdmin(),
        authorizer=AllowEverything(),
        clock=SystemClock(),
        version={"gitVersion": "v0"},
        namespaces=nobody,
        limits=Limits(request=timedelta(milliseconds=400)),
    )
    one = await serve(server.application(), "127.0.0.1", 0, context, bounds=bounds)
    yield one
    await one.close(timedelta())


class Peer:
    """A client that writes what it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._opened = asyncio.get_running_loop().time()

    @classmethod
    async def of(cls, listening: Listening) -> "Peer":
        return cls(*await asyncio.open_connection("127.0.0.1", listening.port))

    async def secure(self) -> None:
        """Shakes hands, whoever the server is."""
        await self._writer.start_tls(_of_whoever())

    def send(self, raw: bytes) -> None:
        self._writer.write(raw)

    async def answer(self) -> bytes:
        """Status line and headers of the next answer; the body is read too."""
        head = await asyncio.wait_for(self._reader.readuntil(b"\r\n\r\n"), 5)
        length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
        await self._reader.readexactly(length)
        return head

    async def rest(self, within: float = 5) -> bytes:
        """Everything until the server closes."""
        try:
            return await asyncio.wait_for(self._reader.read(), within)
        except ConnectionError:
            return b""
        finally:
            self.close()

    async def drip(self, raw: bytes, pause: float) -> float:
        """Writes a byte at a time until the connection ends; returns after how many seconds it did."""
        ended = asyncio.ensure_future(self.rest(10))
        for each in raw:
            if ended.done():
                break
            self._writer.write(bytes((each,)))
            await asyncio.sleep(pause)
        await ended
        return asyncio.get_running_loop().time() - self._opened

    def close(self) -> None:
        self._writer.transport.abort()


def _of_whoever() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def test_headers_that_drip_in_end_the_connection_at_the_deadline(listening: Listening) -> None:
    peer = await Peer.of(listening)
    took = await peer.drip(b"GET /version HTTP/1.1\r\nX: " + b"a" * 100, pause=0.05)
    assert 0.3 < took < 5
    assert len(listening.connections) == 0


async def test_a_connection_that_says_nothing_ends_at_the_deadline(listening: Listening) -> None:
    peer = await Peer.of(listening)
    assert await peer.rest() == b""
    assert len(listening.connections) == 0


async def test_the_second_request_of_a_connection_has_the_same_deadline(idling: Listening) -> None:
    peer = await Peer.of(idling)
    peer.send(REQUEST)
    assert b" 200 " in await peer.answer()
    peer.send(b"GET /version HTT")
    assert await peer.rest() == b""  # sooner than an idle connection, which stays for half a minute


async def test_an_idle_connection_stays_for_its_time_and_no_longer(resting: Listening) -> None:
    peer = await Peer.of(resting)
    for pause in (0.7, 0.7, 0.7, 0):  # together more than its time, each more than headers may take
        peer.send(REQUEST)
        assert b" 200 " in await peer.answer()
        await asyncio.sleep(pause)
    before = asyncio.get_running_loop().time()
    assert await peer.rest(10) == b""
    assert 1.8 < asyncio.get_running_loop().time() - before < 10


async def test_headers_over_the_bound_are_refused(patient: Listening) -> None:
    headers = b"X: " + b"a" * 25_000
    peer = await Peer.of(patient)
    peer.send(b"GET /version HTTP/1.1\r\nHost: hub\r\n")
    await asyncio.sleep(0.02)
    for start in range(0, len(headers), 4000):
        peer.send(headers[start : start + 4000])
        await asyncio.sleep(0.01)
    assert b" 431 " in (await peer.rest()).splitlines()[0]


async def test_too_many_headers_are_refused(listening: Listening) -> None:
    peer = await Peer.of(listening)
    peer.send(b"GET /version HTTP/1.1\r\n" + b"".join(b"X-%d: y\r\n" % number for number in range(300)) + b"\r\n")
    assert b" 400 " in (await peer.rest()).splitlines()[0]


async def test_headers_within_the_bound_are_taken_however_they_are_cut(patient: Listening) -> None:
    peer = await Peer.of(patient)
    peer.send(b"GET /version HTTP/1.1\r\nHost: hub\r\n")
    peer.send(b"X: " + b"a" * 15_000)
    await asyncio.sleep(0.02)
    peer.send(b"\r\n\r\n")
    assert b" 200 " in await peer.answer()
    peer.close()


async def test_many_requests_are_not_taken_for_many_headers(listening: Listening) -> None:
    peer = await Peer.of(listening)
    for _ in range(60):
        peer.send(b"GET /version HTTP/1.1\r\nHost: hub\r\nX: " + b"a" * 2_000 + b"\r\n\r\n")
        assert b" 200 " in await peer.answer()
    peer.close()


async def test_a_body_that_drips_in_ends_with_the_deadline_of_its_request(listening: Listening) -> None:
    peer = await Peer.of(listening)
    path = b"/api/v1/namespaces/a/configmaps"
    peer.send(b"POST " + path + b" HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: 5000\r\n\r\n")
    for _ in range(100):
        peer.send(b" ")
        await asyncio.sleep(0.02)
        if peer._reader._buffer:  # type: ignore[attr-defined]
            break
    assert b" 504 " in await peer.answer()
    peer.close()


async def test_a_request_that_takes_longer_than_headers_may_is_not_cut(listening: Listening) -> None:
    peer = await Peer.of(listening)
    peer.send(b"GET /api/v1/configmaps?watch=1&timeoutSeconds=1 HTTP/1.1\r\nHost: h\r\n\r\n")
    head = await asyncio.wait_for(peer._reader.readuntil(b"\r\n\r\n"), 5)
    assert b" 200 " in head
    assert (await peer.rest(4)).endswith(b"0\r\n\r\n"), "it ended in order, after its own time"
    peer.close()


async def test_a_handshake_that_does_not_end_is_ended() -> None:
    context = server_context(Loopback.fresh(SystemClock().now()).material)
    async for one in listener(context):
        peer = await Peer.of(one)
        before = asyncio.get_running_loop().time()
        assert await peer.rest() == b""
        assert asyncio.get_running_loop().time() - before < 5


async def test_tls_below_1_2_is_refused() -> None:
    material = Loopback.fresh(SystemClock().now()).material
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname = False
    old.verify_mode = ssl.CERT_NONE
    with pytest.warns(DeprecationWarning, match="deprecated"):
        old.minimum_version = ssl.TLSVersion.TLSv1
    with pytest.warns(DeprecationWarning, match="deprecated"):
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.set_ciphers("ALL:@SECLEVEL=0")
    async for one in listener(server_context(material)):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.open_connection("127.0.0.1", one.port, ssl=old)
    assert pki.parse_certificate(material.chain)


async def test_idle_connections_go_at_once_when_the_listener_is_left_and_busy_ones_after_their_answer(
    listening: Listening,
) -> None:
    idle = [await Peer.of(listening) for _ in range(50)]
    for peer in idle:
        peer.send(REQUEST)
        await peer.answer()
    busy = await Peer.of(listening)
    busy.send(b"GET /api/v1/configmaps?watch=1&timeoutSeconds=1 HTTP/1.1\r\nHost: h\r\n\r\n")
    await asyncio.wait_for(busy._reader.readuntil(b"\r\n\r\n"), 5)
    await listening.stop_listening()
    listening.connections.leave()
    async with asyncio.timeout(10):
        assert {await peer.rest() for peer in idle} == {b""}
    assert (await busy.rest(4)).endswith(b"0\r\n\r\n")


async def test_a_connection_whose_handshake_ends_after_the_listener_was_left_goes_at_once() -> None:
    """Else who asks again and again on it holds up the stop for all the time that there is."""
    context = server_context(Loopback.fresh(SystemClock().now()).material)
    async for one in listener(context, PATIENT):
        late, next_one = await Peer.of(one), await Peer.of(one)
        await next_one.secure()  # who came before it was let in, too
        await one.stop_listening()
        one.connections.leave()
        await late.secure()
        late.send(REQUEST)
        assert await late.rest() == b""
        next_one.close()
