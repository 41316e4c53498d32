"""What others do when the server has started, before it stops, and once it is drained. Each has a name of its own."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

import structlog

from machinery.lifecycle.health import HealthChecks

log = structlog.get_logger(__name__)

Hook = Callable[[], Awaitable[None]]


class HookError(Exception):
    """Hooks failed; the message names each with its error."""


@dataclass(frozen=True, slots=True)
class _Registered:
    hook: Hook
    place: str


class _Names:
    """Hooks by name. Whoever takes a name twice is told where it was taken first."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._taken: dict[str, _Registered] = {}
        self.closed = False

    def add(self, name: str, hook: Hook) -> None:
        place = _calling_place()
        if not name:
            raise ValueError(f"a {self._kind} needs a name")
        if known := self._taken.get(name):
            raise ValueError(f'a {self._kind} named "{name}" is registered already, at {known.place}; now again at {place}')
        if self.closed:
            raise RuntimeError(f'{self._kind} "{name}" comes too late: they have run')
        self._taken[name] = _Registered(hook, place)

    def items(self) -> list[tuple[str, Hook]]:
        return [(name, registered.hook) for name, registered in self._taken.items()]


class PostStartHooks:
    """Run side by side once the server serves, in no order. A failing one ends the server at once.

    Each has a health check `poststarthook/<name>` that fails until the hook has returned. They may meet each other's and
    clients' traffic.
    """

    def __init__(self, health: HealthChecks) -> None:
        self._health = health
        self._names = _Names("post-start hook")
        self._finished: set[str] = set()

    def add(self, name: str, hook: Hook) -> None:
        """Raises ValueError for a name without content or taken, RuntimeError after the launch or the sealing."""
        self._names.add(name, hook)

        async def finished() -> None:
            if name not in self._finished:
                raise RuntimeError("not finished")

        self._health.add(f"poststarthook/{name}", finished, boots=True)

    async def run(self) -> None:
        """Returns when all have; raises HookError with the first that failed, after the others were cancelled."""
        self._names.closed = True
        try:
            async with asyncio.TaskGroup() as group:
                for name, hook in self._names.items():
                    group.create_task(self._run(name, hook), name=f"poststarthook/{name}")
        except* HookError as failures:
            raise failures.exceptions[0] from failures.exceptions[0].__cause__

    async def _run(self, name: str, hook: Hook) -> None:
        try:
            await hook()
        except Exception as error:
            log.critical("post-start hook failed", hook=name, exc_info=error)
            raise HookError(f'post-start hook "{name}" failed: {error or type(error).__name__}') from error
        self._finished.add(name)


class StoppingHooks:
    """Run one after the other, last added first. A failing one, or one that hangs, stops none of the rest."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._names = _Names(kind)

    def add(self, name: str, hook: Hook) -> None:
        """Raises ValueError for a name without content or taken, RuntimeError after they ran."""
        self._names.add(name, hook)

    async def run(self, limit: timedelta) -> list[Exception]:
        """Runs each once, all of them within `limit`; what failed is logged, and returned for the end."""
        self._names.closed = True
        loop = asyncio.get_running_loop()
        end = loop.time() + limit.total_seconds()
        left = list(reversed(self._names.items()))
        failures: list[Exception] = []
        while left:
            share = max(end - loop.time(), 0) / len(left)
            name, hook = left.pop(0)
            if failure := await self._run(name, hook, share):
                failures.append(failure)
        return failures

    async def _run(self, name: str, hook: Hook, seconds: float) -> Exception | None:
        try:
            async with asyncio.timeout(seconds) as bound:
                await hook()
        except Exception as error:
            if bound.expired():
                log.error("hook did not finish in time", kind=self._kind, hook=name, seconds=round(seconds, 3))  # noqa: TRY400 - no stack
                return HookError(f'{self._kind} "{name}" did not finish within {seconds:g} s')
            log.exception("hook failed", kind=self._kind, hook=name)
            return HookError(f'{self._kind} "{name}" failed: {error or type(error).__name__}')
        return None


def _calling_place() -> str:
    """File and line of whoever registers a hook: the first caller outside of this file."""
    frame = sys._getframe(1)  # noqa: SLF001 - documented, and the only way that does not read source files
    while frame.f_back is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
