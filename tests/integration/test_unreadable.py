"""What is no HTTP, and connections beyond what the process may have: answered or closed, and they fill no log."""

import asyncio
import logging
import resource
from contextlib import suppress

import pytest
from aiohttp import web

from machinery.apiserver.connections import Bounds
from machinery.apiserver.serving import NO_DESCRIPTOR, OutOfDescriptors, serve
from machinery.lifecycle.usage import raise_file_limit
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
    listening = await serve(web.Application(), "127.0.0.1", 0, bounds=Bounds(connections=2))
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
