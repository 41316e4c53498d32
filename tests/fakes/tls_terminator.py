"""A proxy that ends TLS before the hub, as none may: it asks nobody for a certificate, and speaks with the hub by itself."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

CHUNK = 1 << 16


class TlsTerminator:
    """`chain`, `key`: what it shows; `alpn`: what it speaks; `backend`: the hub's port on the loopback address."""

    def __init__(self, chain: Path, key: Path, backend: int, alpn: Sequence[str] = ("h2", "http/1.1")) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(chain, key)
        self._context.set_alpn_protocols(list(alpn))
        self._onward = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._onward.check_hostname, self._onward.verify_mode = False, ssl.CERT_NONE
        self._backend = backend
        self.port = 0

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["TlsTerminator"]:
        server = await asyncio.start_server(self._take, "127.0.0.1", 0, ssl=self._context)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError, ssl.SSLError):
                if writer.get_extra_info("ssl_object").selected_alpn_protocol() == "h2":
                    await self._greet(reader, writer)
                else:
                    await self._pass_on(reader, writer)
        finally:
            writer.transport.abort()

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Its own settings of HTTP/2, to whoever speaks it."""
        if (await reader.read(CHUNK)).startswith(b"PRI * HTTP/2.0"):
            writer.write(bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)))
            await reader.read(CHUNK)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._backend, ssl=self._onward)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_pump(reader, back))
                tasks.create_task(_pump(there, writer))
        finally:
            back.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(CHUNK):
        writer.write(chunk)
        await writer.drain()
    writer.transport.abort()
