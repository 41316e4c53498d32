"""The start of a server: errors, ports, time limits and retries of its steps, and the notification of systemd."""

import asyncio
import errno
import os
import socket
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import structlog

from machinery.errors import UnavailableError
from machinery.runtime.backoff import Backoff

log = structlog.get_logger(__name__)


class StartError(Exception):
    """The server cannot start. The message states the problem and the remedy."""


T = TypeVar("T")
FIRST_PAUSE, LONGEST_PAUSE = timedelta(milliseconds=100), timedelta(seconds=2)


async def in_time(what: str, work: Awaitable[T], limit: timedelta, *, then: str = "") -> T:
    """Return the result of `work`. After `limit`, raise StartError with the name `what` and the remedy `then`."""
    try:
        async with asyncio.timeout(limit.total_seconds()) as bound:
            return await work
    except TimeoutError:
        if not bound.expired():
            raise
        raise StartError(_too_long(what, limit, then)) from None


@dataclass(frozen=True, slots=True)
class StartupRetry:
    """Retries steps of a start whose dependency may be unavailable for a short time.

    It repeats a step that raises UnavailableError, so the step must be safe to repeat. `then`: the remedy in a StartError.
    """

    limit: timedelta
    """Time limit of each step, for all its attempts together."""
    then: str
    stop: asyncio.Event
    """Set when a stop is requested: the start then ends."""

    async def __call__(self, what: str, step: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `step`. After the limit or a stop, raise StartError with `what` and the last failure."""
        pauses, last = Backoff(FIRST_PAUSE, LONGEST_PAUSE), ""
        try:
            async with asyncio.timeout(self.limit.total_seconds()) as bound:
                while not self.stop.is_set():
                    try:
                        return await step()
                    except UnavailableError as error:
                        last = error.message
                    pause = pauses.next()
                    log.warning("the start waits", for_what=what, error=last, retry_in=round(pause.total_seconds(), 3))
                    with suppress(TimeoutError):
                        async with asyncio.timeout(pause.total_seconds()):
                            await self.stop.wait()
        except TimeoutError:
            if not bound.expired():
                raise
            raise StartError(_too_long(what, self.limit, self.then, last)) from None
        raise StartError(f"stopped while it waited for {what}" + (f": {last}" if last else ""))


def _too_long(what: str, limit: timedelta, then: str, why: str = "") -> str:
    return ": ".join(part for part in (f"{what} did not finish within {limit.total_seconds():g} s", why, then) if part)


def listening_failed(setting: str, host: str, port: int, error: OSError | None) -> StartError:
    """Return the error of a door that cannot listen. `setting`: option with the address; `error` None: unknown reason."""
    where = f"the address {host} port {port} ({setting})"
    choose = f"choose another with --{setting.replace('_', '-')}"
    if error is None:
        return StartError(f"{where} cannot be listened on: {choose}")
    match error.errno:
        case errno.EADDRINUSE:
            return StartError(f"{where} is in use, perhaps by another hub: stop that program, or {choose}")
        case errno.EADDRNOTAVAIL:
            return StartError(f"{where} is not an address of this machine: {choose}")
        case errno.EACCES:
            return StartError(f"{where} may not be listened on by this user: take a port above 1023, or {choose}")
    return StartError(f"{where} cannot be listened on: {error.strerror or error}; {choose}")


def bind_error(host: str, port: int) -> OSError | None:
    """Bind and listen for a test. Return the error; None: success. Use it if a library does not report its reason."""
    try:
        with _bound(host, port) as probe:
            probe.listen()
    except OSError as error:
        return error
    return None


@contextmanager
def reserved_port(host: str) -> Iterator[int]:
    """Reserve a free port during the block. A server in this process can listen on it.

    The reservation is a bound socket that does not listen, so a listener with SO_REUSEADDR can share it. Raises StartError.
    """
    try:
        held = _bound(host, 0)
    except OSError as error:
        raise StartError(f"no port of {host} can be reserved: {error.strerror or error}") from error
    with held:
        yield int(held.getsockname()[1])


def _bound(host: str, port: int) -> socket.socket:
    family, kind, protocol, _name, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound


SOCKET = "NOTIFY_SOCKET"


def notify_ready(environment: MutableMapping[str, str] | None = None) -> None:
    """Send READY=1 to systemd. Remove the socket's name from the environment, so that child processes cannot notify.

    Without a socket in the environment it does nothing. A failure is only logged.
    """
    address = (os.environ if environment is None else environment).pop(SOCKET, "")
    if not address:
        return
    path = f"\0{address[1:]}" if address.startswith("@") else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notifying:
            notifying.connect(path)
            notifying.send(b"READY=1")
    except OSError as error:
        log.warning("systemd could not be notified that the service is up", error=error.strerror or str(error))
