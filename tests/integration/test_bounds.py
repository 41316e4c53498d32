"""Bounds of the generic API server: seats, deadlines and bodies of requests; connections, and what is no HTTP."""

import asyncio
import gc
import gzip
import io
import json
import logging
import os
import platform
import resource
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import ip_network
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from machinery.apiserver.access import Attributes, Authenticator
from machinery.apiserver.http.arrivals import SIGNATURE
from machinery.apiserver.http.connections import ConnectionBounds
from machinery.apiserver.http.filters import LEVEL_HEADER, Filters, Limiting
from machinery.apiserver.http.limits import BODY_LIMIT, Pool, PriorityLevel, Rates
from machinery.apiserver.http.listener import NO_DESCRIPTOR, Listening, OutOfDescriptors, serve
from machinery.apiserver.http.loopback import SERVER_NAME, Loopback
from machinery.apiserver.resource import selectable_fields
from machinery.apiserver.server import RequestBounds
from machinery.apiserver.storage import Actor, GroupResource
from machinery.apiserver.storages.memory import MemoryStorage
from machinery.lifecycle.usage import ARENAS, raise_file_limit
from machinery.meta.objects import Page, Query
from machinery.runtime.clock import SystemClock
from machinery.runtime.tls import client_context, server_context
from tests.fakes.stage import until
from tests.integration.test_apiserver import GROUPS, THINGS, Client, running, thing

REQUEST = timedelta(seconds=2)
LONG = timedelta(hours=1)  # longer than any test may take


class ByHeader(Authenticator):
    """The user in the header."""

    async def authenticate(self, request: web.Request) -> Actor:
        return Actor(request.headers.get("X-User", "bob"))


class SlowStorage(MemoryStorage):
    """Lists wait while the gate is closed."""

    def __init__(self) -> None:
        super().__init__(selectable_fields(GROUPS))
        self.gate = asyncio.Event()
        self.gate.set()

    async def list(self, resource: GroupResource, query: Query) -> Page:
        await self.gate.wait()
        return await super().list(resource, query)


@dataclass
class Stage:
    """A server with four seats for reads and one for writes, and its storage."""

    client: Client
    storage: SlowStorage
    pools: dict[str, Pool]

    async def ask(self, user: str, path: str = THINGS, method: str = "GET", body: Any = None) -> aiohttp.ClientResponse:
        response = await self.client.session.request(
            method, self.client.url + path, json=body, headers={"X-User": user, "Content-Type": "application/json"}
        )
        await response.read()
        return response

    async def fill(self, count: int) -> list["asyncio.Task[aiohttp.ClientResponse]"]:
        """Slow reads, as many at once."""
        self.storage.gate.clear()
        tasks = [asyncio.create_task(self.ask(f"user-{number}")) for number in range(count)]
        await until(lambda: self.pools["read"].snapshot()["taken"] == count)
        return tasks


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with staged(REQUEST) as made:
        yield made


@pytest.fixture
async def patient() -> AsyncIterator[Stage]:
    async with staged(LONG) as made:
        yield made


@asynccontextmanager
async def staged(request: timedelta) -> AsyncIterator[Stage]:
    clock, storage = SystemClock(), SlowStorage()
    levels = (PriorityLevel("exempt"), PriorityLevel("read", 4, each=1), PriorityLevel("write", 1))
    pools = {level.name: Pool(level, clock) for level in levels}

    def place(actor: Actor, asked: Attributes) -> tuple[Pool, str]:
        if actor.user == "admin":
            return pools["exempt"], ""
        return pools["read" if asked.verb in ("get", "list", "watch") else "write"], actor.user

    filters = Filters(limits=(Limiting(place, Rates(0, 1, clock), clock, request),))
    async with running(storage, filters=filters, authenticator=ByHeader(), limits=RequestBounds(request=request)) as client:
        yield Stage(client, storage, pools)
        storage.gate.set()


async def test_waiting_request_is_answered_when_a_seat_is_free_or_leaves_no_trace(patient: Stage) -> None:
    slow = await patient.fill(4)
    leaving, waiting = (asyncio.create_task(patient.ask(name)) for name in ("first", "next"))
    await until(lambda: patient.pools["read"].snapshot()["waiting"] == 2)
    leaving.cancel()
    await until(lambda: patient.pools["read"].snapshot()["waiting"] == 1)
    patient.storage.gate.set()
    assert (await waiting).status == 200
    await asyncio.gather(*slow)
    assert patient.pools["read"].snapshot()["taken"] == 0


async def test_request_waits_for_a_quarter_of_its_time_at_most(patient: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    take, waits = Pool.take, list[float]()

    async def noted(pool: Pool, identity: str, patience: timedelta) -> None:
        waits.append(patience.total_seconds())
        await take(pool, identity, patience)

    slow = await patient.fill(4)
    monkeypatch.setattr(Pool, "take", noted)
    assert (await patient.ask("next", f"{THINGS}?timeout=2s")).status == 429
    patient.storage.gate.set()
    await asyncio.gather(*slow)
    assert (await patient.ask("next")).status == 200
    assert 0 <= waits[0] <= 0.5
    quarter = LONG.total_seconds() / 4
    assert quarter / 2 < waits[1] <= quarter


async def test_a_watch_has_a_seat_only_until_it_has_begun(stage: Stage) -> None:
    async with AsyncExitStack() as open_ones:
        for number in range(6):
            path = f"{THINGS}?watch=1&resourceVersion=0&timeoutSeconds=60"
            asking = stage.client.session.get(stage.client.url + path, headers={"X-User": f"user-{number}"})
            response = await open_ones.enter_async_context(asking)
            assert (response.status, response.headers[LEVEL_HEADER]) == (200, stage.pools["read"].uid)
        assert (stage.pools["read"].snapshot()["taken"], (await stage.ask("next")).status) == (0, 200)


async def test_a_request_ends_at_its_own_timeout_which_is_the_longest_when_it_is_nothing_or_too_much(stage: Stage) -> None:
    assert (await stage.ask("bob", f"{THINGS}?timeout=soon")).status == 400
    assert (await stage.ask("bob", f"{THINGS}?watch=1&timeoutSeconds=1&timeout=soon")).status == 200, "a watch has none"
    stage.storage.gate.clear()
    loop = asyncio.get_running_loop()

    async def took(asked: str) -> float:
        began = loop.time()
        answer = await stage.ask("admin", f"{THINGS}?timeout={asked.replace('+', '%2B')}")
        status = await answer.json()
        assert (answer.status, status["kind"], status["reason"]) == (504, "Status", "Timeout"), asked
        return loop.time() - began

    own = ("300ms", ".3s", "0.3s", "300000us", "300000µs", "0.1s200ms")
    times = await asyncio.gather(*map(took, (*own, "0", "-0", "0s", "-5s", "3h", "+1h", "2562047h")))
    assert min(times) > 0.27
    assert min(times[len(own) :]) > REQUEST.total_seconds() * 0.9


async def chunks(content: bytes) -> AsyncIterator[bytes]:
    for begin in range(0, len(content), 64 * 1024):
        yield content[begin : begin + 64 * 1024]


async def test_bodies_and_copies_of_a_patch_have_a_limit_and_compressed_bodies_are_refused(stage: Stage) -> None:
    answers, headers = [], {"Content-Type": "application/json"}
    for size in (BODY_LIMIT + 1, BODY_LIMIT):
        content = json.dumps(thing("big", unit="a")).encode().ljust(size)  # an object is not as large as a body may be
        for body in (io.BytesIO(content), chunks(content)):
            async with stage.client.session.post(stage.client.url + THINGS, data=body, headers=headers) as response:
                answers.append((response.status, (await response.json())["reason"] if response.status != 201 else ""))
    assert answers == [(413, "RequestEntityTooLarge")] * 2 + [(201, ""), (409, "AlreadyExists")]

    packed, headers["Content-Encoding"] = gzip.compress(b" " * 20 * BODY_LIMIT), "gzip"
    async with stage.client.session.post(stage.client.url + THINGS, data=packed, headers=headers) as response:
        assert response.status == 415

    assert (await stage.ask("admin", THINGS, "POST", thing("a", unit="u" * 100_000))).status == 201
    copies = [{"op": "copy", "from": "/spec/unit", "path": f"/metadata/annotations/a{number}"} for number in range(40)]
    patch = [{"op": "add", "path": "/metadata/annotations", "value": {}}, *copies]
    headers = {"X-User": "admin", "Content-Type": "application/json-patch+json"}
    async with stage.client.session.patch(f"{stage.client.url}{THINGS}/a", data=json.dumps(patch), headers=headers) as response:
        assert response.status == 413


GARBLED = b"GET / HTTP/1.1\r\nHost: hub\r\nAuthorization: Bearer of-some\x00body\r\n\r\n"


async def _answer(port: int, request: bytes = GARBLED) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await reader.readline()
    writer.close()
    return answer


async def test_unreadable_request_is_logged_for_debugging_and_never_what_it_said(caplog: pytest.LogCaptureFixture) -> None:
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


async def test_a_defect_of_a_handler_is_reported_with_its_stack(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(_request: web.Request) -> web.Response:
        raise ZeroDivisionError

    app = web.Application()
    app.router.add_get("/", broken)
    listening = await serve(app, "127.0.0.1", 0)
    try:
        assert b" 500 " in await _answer(listening.port, b"GET / HTTP/1.1\r\nHost: hub\r\n\r\n")
    finally:
        await listening.close()
    assert "ZeroDivisionError" in caplog.text


def test_a_lack_of_descriptors_is_one_line_of_the_log() -> None:
    """The event loop writes one, with a stack, for each place in the backlog (`BaseSelectorEventLoop._accept_connection`)."""
    assert [type(each) for each in logging.getLogger("asyncio").filters].count(OutOfDescriptors) == 1
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


COUNT_ARENAS = """
import ctypes, os, threading
from machinery.lifecycle.usage import limit_arenas
limit_arenas()
libc, together = ctypes.CDLL(None), threading.Barrier(8)
libc.malloc.restype = libc.fdopen.restype = ctypes.c_void_p
threads = [threading.Thread(target=lambda: (libc.malloc(100_000), together.wait())) for _ in range(8)]
[thread.start() for thread in threads], [thread.join() for thread in threads]
reading, writing = os.pipe()
file = ctypes.c_void_p(libc.fdopen(writing, b"w"))
libc.malloc_info(0, file), libc.fclose(file)
print(os.read(reading, 65_536).count(b"<heap nr="))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's allocator has arenas")
def test_threads_share_two_arenas_of_the_allocator() -> None:
    for more, arenas in (({}, ARENAS), ({"MALLOC_ARENA_MAX": "5"}, 5)):
        assert int(subprocess.check_output([sys.executable, "-c", COUNT_ARENAS], env={**os.environ, **more})) == arenas


def test_a_process_with_many_objects_does_not_examine_all_for_garbage() -> None:
    code = (
        "import gc; from machinery.lifecycle import usage; usage.limit_collections(); examined = lambda: gc.get_stats()[2];"
        "before = examined(); made = [[] for _ in range(10**6)]; print(examined() == before, gc.get_freeze_count() > 1_000)"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "True True\n"


FRAGMENT_MEMORY = """
import asyncio
from datetime import timedelta
from machinery.lifecycle import usage
blocks = [b"x" * 20_000 for _ in range(10_000)]
last = blocks[-1]
del blocks
before, usage.TRIM_EVERY = usage.resident(), timedelta(milliseconds=1)

async def trim():
    trimming = asyncio.create_task(usage.trim_memory())
    while usage.resident() > before - 150 * 2**20:
        await asyncio.sleep(0.01)
    trimming.cancel()

asyncio.run(asyncio.wait_for(trim(), 20))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's allocator keeps memory below used memory")
def test_freed_memory_returns_to_the_system() -> None:
    subprocess.run([sys.executable, "-c", FRAGMENT_MEMORY], check=True)


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
    assert capsys.readouterr().out.count("connections are closed: the limit is reached") == 1


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
}  # what a balancer writes first, and the address that counts
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
        assert {header: await seen(listening, context, header) for header in HEADERS} == HEADERS
        cut = {header: await seen(listening, context, *(header[n : n + 1] for n in range(len(header)))) for header in HEADERS}
        assert cut == HEADERS, "byte by byte"
        assert {await seen(listening, context, header) for header in MALFORMED} == {""}
    async with echoing(proxies=(ip_network("192.0.2.0/24"),)) as (listening, context):
        assert await seen(listening, context) == "127.0.0.1"
        assert {await seen(listening, context, header) for header in HEADERS if header} == {""}


async def test_one_address_has_a_bounded_number_of_connections_before_its_handshake(caplog: pytest.LogCaptureFixture) -> None:
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
