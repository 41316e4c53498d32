"""Named hooks that run after the start, before the stop, and after the drain."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import structlog

from machinery.runtime.health import HealthChecks
from machinery.runtime.tasks import first_error

log = structlog.get_logger(__name__)

Hook = Callable[[], Awaitable[None]]


class HookError(Exception):
    """Hooks have failed. The message contains each hook's name and error."""


class PostStartHooks:
    """Hooks that run concurrently as soon as the server serves. A failing hook ends the server immediately.

    Each hook has a health check `poststarthook/<name>`, which fails until the hook has returned. Hooks must tolerate requests
    that clients and other hooks make at the same time.
    """

    def __init__(self, health: HealthChecks) -> None:
        self._health = health
        self._hooks: dict[str, Hook] = {}
        self._finished: set[str] = set()

    def add(self, name: str, hook: Hook) -> None:
        """Add a hook. Raises ValueError for a duplicate name."""

        async def finished() -> None:
            if name not in self._finished:
                raise RuntimeError("not finished")

        self._health.add(f"poststarthook/{name}", finished, boots=True)
        self._hooks[name] = hook

    async def run(self) -> None:
        """Run all hooks. If a hook fails, cancel the other hooks and raise HookError."""
        try:
            async with asyncio.TaskGroup() as group:
                for name, hook in self._hooks.items():
                    group.create_task(self._run(name, hook), name=f"poststarthook/{name}")
        except BaseExceptionGroup as group:
            raise first_error(group) from first_error(group).__cause__

    async def _run(self, name: str, hook: Hook) -> None:
        try:
            await hook()
        except Exception as error:
            log.critical("post-start hook failed", hook=name, exc_info=error)
            raise HookError(f'post-start hook "{name}" failed: {error or type(error).__name__}') from error
        self._finished.add(name)


class StoppingHooks:
    """Hooks that run one after the other, in reverse order of addition. If a hook fails or hangs, the next hooks still run."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._hooks: dict[str, Hook] = {}

    def add(self, name: str, hook: Hook) -> None:
        """Add a hook. Raises ValueError for a duplicate name."""
        if name in self._hooks:
            raise ValueError(f'a {self._kind} needs a name of its own, not "{name}"')
        self._hooks[name] = hook

    async def run(self, limit: timedelta) -> list[Exception]:
        """Run each hook once; `limit` is the time for all of them. Log and return the failures."""
        loop = asyncio.get_running_loop()
        end = loop.time() + limit.total_seconds()
        failures: list[Exception] = []
        for left, (name, hook) in zip(range(len(self._hooks), 0, -1), reversed(self._hooks.items()), strict=True):
            seconds = max(end - loop.time(), 0) / left
            try:
                async with asyncio.timeout(seconds) as bound:
                    await hook()
            except Exception as error:
                if bound.expired():
                    log.error("hook did not finish in time", kind=self._kind, hook=name, seconds=round(seconds, 3))  # noqa: TRY400 - no stack
                    failures.append(HookError(f'{self._kind} "{name}" did not finish within {seconds:g} s'))
                else:
                    log.exception("hook failed", kind=self._kind, hook=name)
                    failures.append(HookError(f'{self._kind} "{name}" failed: {error or type(error).__name__}'))
        return failures
