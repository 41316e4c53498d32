"""The network calls of `spoke doctor` and `spoke status`."""

import asyncio
from contextlib import suppress

from spoke.cli.doctor import PATIENCE, Network

LONGEST_ANSWER = 64 << 10


class SystemNetwork(Network):
    """The network of this machine."""

    async def resolve(self, host: str) -> str:
        found = await asyncio.get_running_loop().getaddrinfo(host, None)
        return str(found[0][4][0])

    async def connect(self, host: str, port: int) -> None:
        _, writer = await asyncio.open_connection(host, port)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    async def ask(self, address: str, path: str) -> tuple[int, str]:
        """Raises ValueError when the answer is not HTTP."""
        host, _, port = address.rpartition(":")
        async with asyncio.timeout(PATIENCE.total_seconds()):
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
            try:
                writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
                answer = (await reader.read(LONGEST_ANSWER)).decode(errors="replace")
            finally:
                writer.close()
        head, _, body = answer.partition("\r\n\r\n")
        version, _, rest = head.partition(" ")
        if not version.startswith("HTTP/"):
            raise ValueError("the answer is no HTTP")
        return int(rest[:3]), body
