"""Adapters of the hub port (gRPC and the Kubernetes API), and the common part of their sessions."""

import asyncio
from collections.abc import AsyncGenerator

from spoke.ports.hub import Desired, HubLostError, HubSession


class OpenSession(HubSession):
    """Base class of the sessions of both adapters. If `finish` is called several times, the first reason stays."""

    def __init__(self) -> None:
        self._end: asyncio.Future[HubLostError] = asyncio.get_running_loop().create_future()
        self._news = asyncio.Event()
        """Set when the state that the hub wants may have changed, and when the session ends."""

    def _present(self) -> Desired | None:
        """The state that the hub wants now; None: not known yet."""
        raise NotImplementedError

    def finish(self, lost: HubLostError) -> None:
        """End the session. `lost` is the reason; pending calls raise it."""
        if not self._end.done():
            self._end.set_result(lost)
        self._news.set()

    async def desired(self) -> AsyncGenerator[Desired, None]:
        seen: Desired | None = None
        while True:
            self._news.clear()
            self._check()
            present = self._present()
            if present is not None and present != seen:
                seen = present
                yield present
            else:
                await self._news.wait()

    async def ended(self) -> Exception:
        return await asyncio.shield(self._end)

    def _check(self) -> None:
        """Raises HubLostError with the reason when the session has ended."""
        if self._end.done():
            raise self._end.result().fresh_copy()
