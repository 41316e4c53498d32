"""An HTTP CONNECT proxy: opens tunnels, notes for whom and to where, and asks for a password when it is told to."""

import asyncio
import ssl
from base64 import b64encode
from contextlib import AbstractAsyncContextManager, suppress

from tests.fakes.forwarder import Forwarder, Streams

ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
PASSWORD_WANTED = b"HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic\r\nContent-Length: 0\r\n\r\n"


class ConnectProxy(Forwarder):
    """`login` is `user:password`; empty: anybody may pass. With `tls` it is an https:// proxy."""

    def __init__(self, login: str = "", tls: ssl.SSLContext | None = None) -> None:
        super().__init__(tls=tls)
        self.login = login
        self.tunnels: list[str] = []
        """`host:port` of every tunnel that was opened."""
        self.refused = 0

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Streams | None:
        try:
            method, target, headers = _parsed(await reader.readuntil(b"\r\n\r\n"))
        except (OSError, asyncio.IncompleteReadError):
            return None
        wanted = f"Basic {b64encode(self.login.encode()).decode()}"
        if method != "CONNECT" or (self.login and headers.get("proxy-authorization") != wanted):
            self.refused += 1
            writer.write(PASSWORD_WANTED)
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
            return None
        host, _, port = target.rpartition(":")
        try:
            streams = await asyncio.open_connection(host, int(port))
        except OSError:
            return None
        self.tunnels.append(target)
        writer.write(ESTABLISHED)
        return streams


def _parsed(head: bytes) -> tuple[str, str, dict[str, str]]:
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ", 2)
    named = (line.partition(":") for line in lines if line)
    return method, target, {name.strip().lower(): value.strip() for name, _, value in named}


def connect_proxy(login: str = "", tls: ssl.SSLContext | None = None) -> AbstractAsyncContextManager[ConnectProxy]:
    """One that serves on a free port of the loopback interface until the block ends."""
    return ConnectProxy(login, tls).serving()
