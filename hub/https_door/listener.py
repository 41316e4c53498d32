"""The HTTPS server in the process lifecycle: it listens, refuses, drains and closes."""

import asyncio
import ssl
from datetime import timedelta
from typing import Protocol

import structlog
from aiohttp import web

from machinery.apiserver.http.connections import ConnectionBounds
from machinery.apiserver.http.draining import Draining
from machinery.apiserver.http.listener import DEFAULT_BOUNDS, Listening, serve
from machinery.lifecycle.server import Door
from machinery.lifecycle.startup import listening_failed

log = structlog.get_logger(__name__)


class ServedApplication(Protocol):
    """The application to serve: a new one per call, and its watches."""

    def application(self) -> web.Application: ...

    async def end_watches(self, grace: timedelta) -> None: ...


class HttpsDoor(Door):
    """While it refuses requests, clients get a retry delay; health and metrics are served until it closes."""

    name = "https"

    def __init__(
        self,
        served: ServedApplication,
        draining: Draining,
        host: str,
        port: int,
        context: ssl.SSLContext,
        *,
        bounds: ConnectionBounds = DEFAULT_BOUNDS,
    ) -> None:
        """`draining`: the instance whose filters the application uses."""
        self._served = served
        self._draining = draining
        self._host = host
        self._port = port
        self._context = context
        self._bounds = bounds
        self._listening: Listening | None = None

    async def start(self) -> None:
        """Raises StartError if it cannot listen on the address."""
        try:
            self._listening = await serve(
                self._served.application(), self._host, self._port, self._context, bounds=self._bounds
            )
        except OSError as error:
            raise listening_failed("https_listen", self._host, self._port, error) from error
        log.info("HTTPS door open", address=_shown(self._host, self._port))

    async def tell_ready(self, *, ready: bool) -> None:
        """Does nothing: at this door /readyz reports readiness."""

    async def refuse(self) -> None:
        self._draining.refuse()

    async def stop_listening(self) -> None:
        if self._listening is not None:
            await self._listening.stop_listening()
            self._listening.connections.leave()

    async def drain(self, grace: timedelta) -> None:
        await asyncio.gather(self._draining.drained(), self._served.end_watches(grace))

    async def close(self, grace: timedelta) -> None:
        if self._listening is not None:
            await self._listening.close(grace)


def _shown(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
