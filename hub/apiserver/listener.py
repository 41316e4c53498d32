"""The HTTPS door as the lifecycle sees it: listens, refuses, drains, closes."""

import asyncio
import ssl
from datetime import timedelta
from typing import Protocol

from aiohttp import web

from machinery.apiserver.serving import Listening, serve
from machinery.lifecycle.listening import listening_failed
from machinery.lifecycle.server import Door


class Serving(Protocol):
    """What is served: a new application per call, whose watches can be ended."""

    def application(self) -> web.Application: ...

    def stop_watches(self) -> None: ...


class HttpsDoor(Door):
    """Once it refuses, its listener is closed: who connects then goes to another replica, or comes again."""

    def __init__(self, server: Serving, host: str, port: int, context: ssl.SSLContext) -> None:
        self._server = server
        self._host = host
        self._port = port
        self._context = context
        self._listening: Listening | None = None

    @property
    def name(self) -> str:
        return "https"

    async def start(self) -> None:
        """Raises StartError: the address is taken, or not this machine's."""
        try:
            self._listening = await serve(
                self._server.application(), self._host, self._port, self._context, shutdown_timeout=timedelta(seconds=2)
            )
        except OSError as error:
            raise listening_failed("https_listen", self._host, self._port, error) from error

    async def refuse(self) -> None:
        if self._listening is not None:
            await self._listening.stop_listening()

    async def drain(self) -> None:
        self._server.stop_watches()
        await asyncio.sleep(0)

    async def close(self) -> None:
        """Requests in flight have two seconds to finish."""
        if self._listening is not None:
            await self._listening.close()
