"""gRPC's health protocol. Unlike the library's servicer, a watch ends when the server stops: it would hold the stop up."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
from grpc_health.v1 import health_pb2 as wire
from grpc_health.v1.health_pb2_grpc import HealthServicer

SERVICES = ("", "muster.registration.v1.Registration", "muster.session.v1.Session")


class Health(HealthServicer):
    """Not serving until told so, and never again once stopped."""

    def __init__(self) -> None:
        self._serving = False
        self._stopped = False
        self._changed = asyncio.Condition()

    async def set_serving(self, *, serving: bool) -> None:
        async with self._changed:
            self._serving = serving and not self._stopped
            self._changed.notify_all()

    async def stop(self) -> None:
        """NOT_SERVING, for good; watches end."""
        self._stopped = True
        await self.set_serving(serving=False)

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802 - the method's name
        if request.service not in SERVICES:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such service")
        return self._status()

    async def Watch(self, request: Any, _context: Any) -> AsyncIterator[Any]:  # noqa: N802 - the method's name
        if request.service not in SERVICES:
            yield wire.HealthCheckResponse(status=wire.HealthCheckResponse.SERVICE_UNKNOWN)
            return
        while True:
            told = self._serving
            yield self._status()
            async with self._changed:
                await self._changed.wait_for(lambda: self._stopped or self._serving != told)  # noqa: B023 - used at once
            if self._stopped:
                yield self._status()
                return

    def _status(self) -> Any:
        serving = wire.HealthCheckResponse.SERVING if self._serving else wire.HealthCheckResponse.NOT_SERVING
        return wire.HealthCheckResponse(status=serving)
