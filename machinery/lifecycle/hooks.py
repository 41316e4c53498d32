"""What others do when the server has started, and before it stops. Each has a name of its own."""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from machinery.lifecycle.health import ALL, HealthChecks

log = structlog.get_logger(__name__)

Hook = Callable[[], Awaitable[None]]


class HookError(Exception):
    """Hooks failed; the message names each with its error."""


class PostStartHooks:
    """Run side by side once the server serves, in no order. A failing one ends the server.

    Each has a health check `poststarthook/<name>` that fails until the hook has returned. They may meet each other's and
    clients' traffic.
    """

    def __init__(self, health: HealthChecks) -> None:
        self._health = health
        self._hooks: dict[str, Hook] = {}
        self._finished: set[str] = set()
        self._launched = False

    def add(self, name: str, hook: Hook) -> None:
        """Raises ValueError for a name without content or taken, RuntimeError after the launch."""
        _check_name(name, self._hooks)
        if self._launched:
            raise RuntimeError(f'post-start hook "{name}" comes too late: the hooks were launched')

        async def finished() -> None:
            if name not in self._finished:
                raise RuntimeError("not finished")

        self._health.add(f"poststarthook/{name}", finished, endpoints=ALL)
        self._hooks[name] = hook

    async def run(self) -> None:
        """Returns when all have; raises HookError with the first that failed, after the others were cancelled."""
        self._launched = True
        try:
            async with asyncio.TaskGroup() as group:
                for name, hook in self._hooks.items():
                    group.create_task(self._run(name, hook), name=f"poststarthook/{name}")
        except* HookError as failures:
            raise failures.exceptions[0] from failures.exceptions[0].__cause__

    async def _run(self, name: str, hook: Hook) -> None:
        try:
            await hook()
        except Exception as error:
            raise HookError(f'post-start hook "{name}" failed: {error}') from error
        self._finished.add(name)


class PreShutdownHooks:
    """Run one after the other, last added first, while everything is still served. A failing one does not stop the rest."""

    def __init__(self) -> None:
        self._hooks: dict[str, Hook] = {}
        self._ran = False

    def add(self, name: str, hook: Hook) -> None:
        """Raises ValueError for a name without content or taken, RuntimeError after they ran."""
        _check_name(name, self._hooks)
        if self._ran:
            raise RuntimeError(f'pre-shutdown hook "{name}" comes too late: the hooks have run')
        self._hooks[name] = hook

    async def run(self) -> list[Exception]:
        """Runs each once; what failed is logged, and returned for the end."""
        self._ran = True
        failures: list[Exception] = []
        for name, hook in reversed(self._hooks.items()):
            try:
                await hook()
            except Exception as error:
                log.exception("pre-shutdown hook failed", hook=name)
                failures.append(HookError(f'pre-shutdown hook "{name}" failed: {error}'))
        return failures


def _check_name(name: str, taken: dict[str, Hook]) -> None:
    if not name:
        raise ValueError("a hook needs a name")
    if name in taken:
        raise ValueError(f'a hook named "{name}" is registered already')
