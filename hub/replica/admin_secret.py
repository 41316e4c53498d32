"""Keeps the admin kubeconfig in a Secret of the hub's own Kubernetes cluster, where an installer reads it without `exec`.

All replicas share the Secret. A replica that finds its content invalid (other address, other CA, certificate near its end)
writes its own; valid content of any replica stays. A deleted Secret is created again at the next check.
"""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from typing import Protocol

import structlog

from hub.ports import KeySecret
from hub.replica.host_secrets import secret_at
from hub.replica.installation import AdminKubeconfig
from hub.settings import HubSettings
from machinery.errors import MusterError

KUBECONFIG, TRUST = "kubeconfig", "ca.crt"
LOOK_EVERY, AGAIN = timedelta(minutes=5), timedelta(seconds=5)

log = structlog.get_logger(__name__)


class TrustChanges(Protocol):
    """Notifies listeners of changes of the trust bundle."""

    def listen(self, listener: Callable[[], None]) -> object: ...


class AdminSecret:
    """Keeps the Secret up to date. Without a `secret`, `run` waits for ever."""

    def __init__(self, secret: KeySecret | None, way_in: AdminKubeconfig) -> None:
        self._secret = secret
        self._way_in = way_in
        self._changed = asyncio.Event()
        self._trouble = ""

    def wake(self) -> None:
        """Trigger a check."""
        self._changed.set()

    async def look(self) -> bool:
        """Check the Secret. Returns whether it was written. Raises MusterError."""
        if self._secret is None:
            return False
        held = await self._secret.read()
        if self._way_in.is_right(held.get(KUBECONFIG)) and held.get(TRUST) == self._way_in.trust:
            return False
        path = await self._way_in.keep()
        content = await asyncio.to_thread(path.read_bytes)
        await self._secret.write({KUBECONFIG: content, TRUST: self._way_in.trust})
        log.info("admin kubeconfig put into its Secret")
        return True

    async def run(self) -> None:
        """Check at the start, after `wake` and periodically, for ever."""
        while self._secret is not None:
            pause = await self._look()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause.total_seconds()):
                    await self._changed.wait()
            self._changed.clear()
        await asyncio.Event().wait()

    async def _look(self) -> timedelta:
        try:
            await self.look()
        except MusterError as error:
            if error.message != self._trouble:
                log.warning("the Secret with the admin kubeconfig cannot be kept: has the hub the right?", error=error.message)
            self._trouble = error.message
            return AGAIN
        self._trouble = ""
        return LOOK_EVERY


async def admin_secret(
    settings: HubSettings, way_in: AdminKubeconfig, told: TrustChanges, stack: AsyncExitStack
) -> AdminSecret:
    """The AdminSecret of the settings; `stack` closes what it opens. Raises InvalidError."""
    place = settings.admin_kubeconfig_secret
    kept = AdminSecret(await secret_at(place, settings, stack) if place else None, way_in)
    told.listen(kept.wake)
    return kept
