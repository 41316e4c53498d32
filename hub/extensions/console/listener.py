"""The console's own listener: the HTTPS door's API for browsers with a session, under a certificate that browsers trust.

It requests no client certificate. `is_console` distinguishes its requests from those of the HTTPS door.
"""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import structlog
from aiohttp import web

from hub.https_door.server import HttpsDoor
from hub.issuer.local import ServingNames
from hub.replica.serving_certificate import LOOK_EVERY, check_serving
from hub.settings.fields import parse_ip
from machinery.apiserver.server import LISTENER
from machinery.errors import MusterError, UnavailableError
from machinery.observability.logs import LogOnce
from machinery.runtime.clock import Clock
from machinery.runtime.event_loop import until_tick
from machinery.runtime.tls import anonymous_server_context, load_pair

NAME = "console"

log = structlog.get_logger(__name__)


def is_console(request: web.Request) -> bool:
    """Whether the request came through the console's own listener."""
    return request.get(LISTENER) == NAME


class ConsoleDoor(HttpsDoor):
    """The listener of the console. The HTTPS door also drains the watches of this listener."""

    name = NAME
    setting = "console_listen"
    opened = "console listener open"

    async def drain(self, grace: timedelta) -> None:
        del grace
        await self.draining.drained()


class ConsoleCertificate:
    """Keeps `context` in line with the files of a certificate and its key. An unusable file changes nothing."""

    def __init__(self, chain: Path, key: Path, url: str, clock: Clock) -> None:
        """`url`: of the console; the certificate must have its host. Raises InvalidError, UnavailableError."""
        host = cast("str", urlsplit(url).hostname)
        self._names = ServingNames((host,), ()) if parse_ip(host) is None else ServingNames((), (host,))
        self._files = chain, key
        self._clock = clock
        self._failure = LogOnce(log)
        self._pair = self._read()
        self.context = anonymous_server_context(*self._pair)

    def _read(self) -> tuple[bytes, bytes]:
        try:
            chain, key = (path.read_bytes() for path in self._files)
        except OSError as error:
            raise UnavailableError(f"{error.filename} cannot be read: {error.strerror or error}") from None
        check_serving(chain, self._names, self._clock.now(), str(self._files[0]))
        return chain, key

    def renew(self) -> None:
        """Apply changed files to later handshakes."""
        try:
            pair = self._read()
            if pair != self._pair:
                anonymous_server_context(*pair)  # raises for an unusable pair before the context in use changes
                load_pair(self.context, *pair)
                self._pair = pair
                log.info("console certificate replaced")
        except MusterError as error:
            self._failure.error("console certificate cannot be replaced", error)
        else:
            self._failure.reset()

    async def run(self) -> None:
        """Call `renew` every few seconds (LOOK_EVERY) until cancelled."""
        while True:
            await asyncio.sleep(until_tick(LOOK_EVERY))
            self.renew()
