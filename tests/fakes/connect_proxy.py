"""An HTTP CONNECT proxy: opens tunnels, notes for whom and to where, and asks for a password when it is told to."""

import asyncio
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from machinery.identity import Subject
from machinery.pki import Authority, Plan, Usage, generate_key, public_key_of, random_serial

ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
PASSWORD_WANTED = b"HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic\r\nContent-Length: 0\r\n\r\n"


@dataclass
class ConnectProxy:
    """`login` is `user:password`; empty: anybody may pass."""

    login: str = ""
    port: int = 0
    tunnels: list[str] = field(default_factory=list)
    """`host:port` of every tunnel that was opened."""
    refused: int = 0
    _open: set[asyncio.StreamWriter] = field(default_factory=set)

    def cut(self) -> None:
        """Breaks all tunnels."""
        for writer in self._open:
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            await self._tunnel(reader, writer)
        writer.close()

    async def _tunnel(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        method, target, headers = _parsed(await reader.readuntil(b"\r\n\r\n"))
        wanted = f"Basic {b64encode(self.login.encode()).decode()}"
        if method != "CONNECT" or (self.login and headers.get("proxy-authorization") != wanted):
            self.refused += 1
            writer.write(PASSWORD_WANTED)
            await writer.drain()
            return
        host, _, port = target.rpartition(":")
        there = await asyncio.open_connection(host, int(port))
        self.tunnels.append(target)
        self._open |= {writer, there[1]}
        writer.write(ESTABLISHED)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_copy(reader, there[1]))
                group.create_task(_copy(there[0], writer))
        finally:
            self._open -= {writer, there[1]}
            there[1].close()


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while block := await source.read(65536):
            sink.write(block)
            await sink.drain()
    sink.close()


def _parsed(head: bytes) -> tuple[str, str, dict[str, str]]:
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ", 2)
    named = (line.partition(":") for line in lines if line)
    return method, target, {name.strip().lower(): value.strip() for name, _, value in named}


@asynccontextmanager
async def connect_proxy(login: str = "", tls: ssl.SSLContext | None = None) -> AsyncIterator[ConnectProxy]:
    """One that serves on a free port of the loopback interface until the block ends; with `tls` it is an https:// proxy."""
    proxy = ConnectProxy(login)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, ssl=tls)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        proxy.cut()


def serving(authority: Authority, folder: Path) -> ssl.SSLContext:
    """The TLS side of a server at 127.0.0.1 with a certificate of `authority`, good for an hour; its key lies in `folder`."""
    key, now = generate_key(), datetime.now(UTC)
    begins, ends = now - timedelta(minutes=5), now + timedelta(hours=1)
    plan = Plan(Subject("server"), public_key_of(key), random_serial(), begins, ends, Usage.SERVER, ip_addresses=("127.0.0.1",))
    file = folder / "server.pem"
    file.write_bytes(authority.sign(plan) + key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    return context
