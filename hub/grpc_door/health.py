"""The gRPC health protocol. Watches end on shutdown. With gRPC's own servicer, open watches would delay the shutdown."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import grpc
from grpc_health.v1 import health_pb2 as wire
from grpc_health.v1.health_pb2_grpc import HealthServicer

MOST_WATCHES = 1_000
"""Largest number of concurrent watches. The limit is needed because any certificate of the hub is sufficient to watch."""
WATCHED_FOR = timedelta(hours=1)
"""A watch ends after this time; the client may start another."""
SERVICES = ("", "muster.registration.v1.Registration", "muster.session.v1.Session")


class HealthService(HealthServicer):
    """Reports NOT_SERVING until `set_serving(serving=True)`, and always after `stop`."""

    def __init__(self) -> None:
        self._serving = False
        self._stopped = False
        self._changed = asyncio.Condition()
        self._watches = 0

    async def set_serving(self, *, serving: bool) -> None:
        async with self._changed:
            self._serving = serving and not self._stopped
            self._changed.notify_all()

    async def stop(self) -> None:
        """Reports NOT_SERVING from now on and ends all watches."""
        self._stopped = True
        await self.set_serving(serving=False)

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802 - the method's name
        if request.service not in SERVICES:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such service")
        return self._status()

    async def Watch(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802 - the method's name
        if request.service not in SERVICES:
            yield wire.HealthCheckResponse(status=wire.HealthCheckResponse.SERVICE_UNKNOWN)
            return
        if self._watches >= MOST_WATCHES:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many clients watch the health of this hub")
        end = asyncio.get_running_loop().time() + WATCHED_FOR.total_seconds()
        self._watches += 1
        try:
            while not self._stopped:
                sent = self._serving
                yield self._status()
                async with asyncio.timeout_at(end), self._changed:
                    await self._changed.wait_for(lambda: self._stopped or self._serving != sent)  # noqa: B023 - used at once
            yield self._status()
        except TimeoutError:
            return
        finally:
            self._watches -= 1

    def _status(self) -> Any:
        serving = wire.HealthCheckResponse.SERVING if self._serving else wire.HealthCheckResponse.NOT_SERVING
        return wire.HealthCheckResponse(status=serving)
