"""What is no HTTP is answered, and fills no log."""

import asyncio
import logging

import pytest
from aiohttp import web

from machinery.apiserver.serving import serve

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
