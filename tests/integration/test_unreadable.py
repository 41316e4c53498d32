"""What is no HTTP, and connections beyond what the process may have: answered or closed, and they fill no log."""

import asyncio
import gc
import logging
import resource
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from ipaddress import ip_network
from typing import Any

import pytest
from aiohttp import web

from machinery.apiserver.http.arrivals import SIGNATURE
from machinery.apiserver.http.connections import ConnectionBounds
from machinery.apiserver.http.listener import NO_DESCRIPTOR, Listening, OutOfDescriptors, serve
from machinery.apiserver.http.loopback import SERVER_NAME, Loopback
from machinery.lifecycle.usage import raise_file_limit
from machinery.runtime.clock import SystemClock
from machinery.runtime.tls import client_context, server_context
from tests.fakes.stage import until

GARBLED = b"GET / HTTP/1.1\r\nHost: hub\r\nAuthorization: Bearer of-some\x00body\r\n\r\n"


async def _answer(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(GARBLED)
    answer = await reader.readline()
    writer.close()
    return answer


async def test_a_request_that_cannot_be_read_is_told_to_who_debugs_and_never_what_it_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for level, expected in ((logging.INFO, []), (logging.DEBUG, [logging.DEBUG])):
        caplog.clear()
        listening = await serve(web.Application(), "127.0.0.1", 0)
        try:
            with caplog.at_level(level):
                assert b" 400 " in await _answer(listening.port)
        finally:
            await listening.close()
        logged = [record for record in caplog.records if record.name.startswith(("aiohttp", "machinery"))]
        assert [record.levelno for record in logged] == expected
        assert "of-some" not in caplog.text


async def test_a_defect_of_a_handler_is_told_with_its_stack(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(_request: web.Request) -> web.Response:
        raise ZeroDivisionError

    app = web.Application()
    app.router.add_get("/", broken)
    listening = await serve(app, "127.0.0.1", 0)
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", listening.port)
        writer.write(b"GET / HTTP/1.1\r\nHost: hub\r\n\r\n")
        assert b" 500 " in await reader.readline()
        writer.close()
    finally:
        await listening.close()
    assert "ZeroDivisionError" in caplog.text


def test_a_lack_of_descriptors_is_one_line_of_the_log() -> None:
    """The event loop writes one, with a stack, for each place in the backlog (`BaseSelectorEventLoop._accept_connection`)."""
    logger = logging.getLogger("asyncio")
    assert [type(each) for each in logger.filters].count(OutOfDescriptors) == 1
    subject = OutOfDescriptors()
    records = [logging.makeLogRecord({"msg": f"{NO_DESCRIPTOR}\nsocket: {number}"}) for number in range(1_000)]
    passed = [record.getMessage() for record in records if subject.filter(record)]
    assert [line[:30] for line in passed] == ["no file descriptor is free for"]
    assert subject.filter(logging.makeLogRecord({"msg": "something else"}))


def test_the_limit_of_open_files_is_raised_to_the_hard_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard - 1, hard))
    try:
        raise_file_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_connections_beyond_the_bound_are_closed_and_the_others_served(capsys: pytest.CaptureFixture[str]) -> None:
    listening = await serve(web.Application(), "127.0.0.1", 0, bounds=ConnectionBounds(connections=2))
    try:
        kept = [await asyncio.open_connection("127.0.0.1", listening.port) for _ in range(2)]
        await until(lambda: len(listening.connections) == 2)
        for _ in range(50):
            reader, writer = await asyncio.open_connection("127.0.0.1", listening.port)
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
            writer.close()
        assert len(listening.connections) == 2
        for reader, writer in kept:
            writer.write(GARBLED)
            assert b" 400 " in await reader.readline()
            writer.close()
        await until(lambda: not listening.connections)
        assert b" 400 " in await _answer(listening.port)
    finally:
        await listening.close()
    assert capsys.readouterr().out.count("connections are closed: there are as many as may be") == 1


def binary(command: int, family: int, addresses: bytes) -> bytes:
    """A header of the PROXY protocol, version 2."""
    return SIGNATURE + bytes((command, family)) + len(addresses).to_bytes(2) + addresses


V4 = bytes((203, 0, 113, 7, 10, 0, 0, 1)) + b"\x30\x39\x18\xeb"
HEADERS = {
    b"": "127.0.0.1",
    b"PROXY TCP4 203.0.113.7 10.0.0.1 12345 6443\r\n": "203.0.113.7",
    b"PROXY TCP6 2001:db8::7 2001:db8::1 12345 6443\r\n": "2001:db8::7",
    b"PROXY UNKNOWN\r\n": "127.0.0.1",
    binary(0x21, 0x11, V4 + b"\x04\x00\x02ab"): "203.0.113.7",
    binary(0x20, 0x00, b""): "127.0.0.1",
}
"""What a balancer writes first, and the address that counts."""
MALFORMED = (
    b"PROXY TCP4 2001:db8::7 10.0.0.1 1 2\r\n",
    b"PROXY TCP4 203.0.113.7\r\n",
    b"PROXY " + b"x" * 200,
    binary(0x31, 0x11, V4),
    binary(0x21, 0x11, V4[:8]),
    binary(0x21, 0x11, bytes(4096)),
)


@asynccontextmanager
async def echoing(**bounds: Any) -> AsyncIterator[tuple[Listening, ssl.SSLContext]]:
    """A server over TLS that answers with the address of who asks."""

    async def address(request: web.Request) -> web.Response:
        return web.Response(text=str(request.remote))

    app, pair = web.Application(), Loopback.fresh(SystemClock().now()).material
    app.router.add_get("/", address)
    listening = await serve(app, "127.0.0.1", 0, server_context(pair), bounds=ConnectionBounds(**bounds))
    try:
        yield listening, client_context(pair.trust)
    finally:
        await listening.close(timedelta())


async def seen(listening: Listening, context: ssl.SSLContext, *parts: bytes) -> str:
    """The address that the server sees behind these bytes; "": it closed the connection."""
    try:
        async with asyncio.timeout(20):
            reader, writer = await asyncio.open_connection("127.0.0.1", listening.port)
            for part in parts:
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0)
            await writer.start_tls(context, server_hostname=SERVER_NAME)
            writer.write(b"GET / HTTP/1.1\r\nHost: hub\r\nConnection: close\r\n\r\n")
            answer = await reader.read()
            writer.close()
    except (ConnectionError, ssl.SSLError):
        return ""
    return answer.rpartition(b"\r\n")[2].decode()


async def test_balancer_that_is_trusted_names_the_address_of_its_clients_and_nobody_else_does() -> None:
    async with echoing(proxies=(ip_network("127.0.0.0/8"),)) as (listening, context):
        found = {header: await seen(listening, context, header) for header in HEADERS}
        assert found == HEADERS
        cut = {header: await seen(listening, context, *(header[n : n + 1] for n in range(len(header)))) for header in HEADERS}
        assert cut == HEADERS, "byte by byte"
        assert {await seen(listening, context, header) for header in MALFORMED} == {""}
    async with echoing(proxies=(ip_network("192.0.2.0/24"),)) as (listening, context):
        assert await seen(listening, context) == "127.0.0.1"
        assert {await seen(listening, context, header) for header in HEADERS if header} == {""}


async def test_one_address_has_a_bounded_number_of_connections_from_before_its_handshake(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with echoing(each=2, proxies=(ip_network("127.0.0.0/8"),)) as (listening, context):
        held = [await asyncio.open_connection("127.0.0.1", listening.port) for _ in range(2)]
        for _, writer in held:
            writer.write(b"PROXY TCP4 203.0.113.7 10.0.0.1 1 2\r\n\x16")  # a handshake that does not go on
        same, other = (f"PROXY TCP4 {address} 10.0.0.1 1 2\r\n".encode() for address in ("203.0.113.7", "203.0.113.8"))
        await until_found(lambda: seen(listening, context, same), "")
        assert await seen(listening, context, other) == "203.0.113.8"
        for _, writer in held:
            writer.transport.abort()
        await until_found(lambda: seen(listening, context, same), "203.0.113.7")
    async with echoing() as (listening, _):
        _, waiting = await asyncio.open_connection("127.0.0.1", listening.port)
        await until(lambda: len(listening.connections.arriving) == 1)
    waiting.close()
    await until(lambda: not listening.connections.arriving)
    gc.collect()
    assert "never retrieved" not in caplog.text, "a stop in the middle of a handshake is no error"


async def until_found(ask: Callable[[], Awaitable[str]], expected: str) -> None:
    async with asyncio.timeout(20):
        while await ask() != expected:
            pass
