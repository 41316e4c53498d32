"""Network calls of the `spoke` commands, and the file that contains the address of the running agent's probes."""

import asyncio
import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Protocol

import structlog

from spoke.settings import SpokeSettings

log = structlog.get_logger(__name__)


TIMEOUT = timedelta(seconds=5)
LONGEST_ANSWER = 64 << 10


class Network(Protocol):
    """The network calls of the commands. They raise OSError (also for a timeout)."""

    async def resolve(self, host: str) -> str:
        """Return an IP address of `host`, as text."""

    async def connect(self, host: str, port: int) -> None: ...

    async def ask(self, address: str, path: str) -> tuple[int, str]:
        """Send a plain HTTP GET to `address` (host:port). Return code and body. Raises ValueError if the answer is not HTTP."""


class SystemNetwork(Network):
    async def resolve(self, host: str) -> str:
        found = await asyncio.get_running_loop().getaddrinfo(host, None)
        return str(found[0][4][0])

    async def connect(self, host: str, port: int) -> None:
        _, writer = await asyncio.open_connection(host, port)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    async def ask(self, address: str, path: str) -> tuple[int, str]:
        """Send a GET over plain HTTP. Read at most LONGEST_ANSWER bytes, within TIMEOUT."""
        host, _, port = address.rpartition(":")
        async with asyncio.timeout(TIMEOUT.total_seconds()):
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
            try:
                writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
                answer = (await reader.read(LONGEST_ANSWER)).decode(errors="replace")
            finally:
                writer.close()
        head, _, body = answer.partition("\r\n\r\n")
        version, _, rest = head.partition(" ")
        if not version.startswith("HTTP/"):
            raise ValueError("the answer is not HTTP")
        return int(rest[:3]), body


def address_file(settings: SpokeSettings) -> Path:
    """Return the file with the address of an agent's probes.

    Each user has one file per agent. Kubeconfig, namespace and Lease name identify the agent.
    """
    kubeconfig = str(settings.kubeconfig.absolute()) if settings.kubeconfig is not None else ""
    parts = (kubeconfig, settings.component_namespace, settings.lease_name)
    name = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    folder = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    return Path(folder, f"muster-spoke-{os.getuid()}", name)


@contextmanager
def published(settings: SpokeSettings, address: str) -> Iterator[None]:
    """Store the probes' `address` in `address_file` during the block. Log failures. If the settings name a port, do nothing."""
    if not settings.health_listen.endswith(":0"):
        yield
        return
    file = address_file(settings)
    try:
        file.parent.mkdir(mode=0o700, exist_ok=True)
        if file.parent.is_symlink() or file.parent.stat().st_uid != os.getuid():
            raise PermissionError(f"{file.parent} belongs to another user")
        written = file.with_suffix(f".{os.getpid()}")
        written.write_text(address)
        written.replace(file)
    except OSError as error:
        log.warning("address.not_written", file=str(file), error=str(error), advice="give --health-listen a port")
    try:
        yield
    finally:
        with suppress(OSError):
            if file.read_text() == address:
                file.unlink()


def probes_of(settings: SpokeSettings) -> str:
    """Return `host:port` of the agent's probes. Port 0: unknown, because no agent with these settings runs here."""
    if not settings.health_listen.endswith(":0"):
        return settings.health_listen
    file = address_file(settings)
    with suppress(OSError):
        if file.parent.stat().st_uid == os.getuid():
            return file.read_text().strip() or settings.health_listen
    return settings.health_listen


def reachable(probes: str) -> str:
    """Return the address at which this machine reaches probes that listen on `probes`; empty if `probes` has no port."""
    host, _, port = probes.rpartition(":")
    if not port.isdigit() or int(port) == 0:
        return ""
    return f"{'127.0.0.1' if host in ('', '0.0.0.0', '[::]') else host}:{port}"  # noqa: S104 - compared
