"""Tasks that run as long as their service, and retries of changes.

If a guarded task ends before its service, this is a failure, even if the task has just returned: the whole group ends, and the
error contains the name of the task. Use an `asyncio.TaskGroup` for short-lived tasks.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

import structlog

from machinery.runtime.backoff import Backoff

T = TypeVar("T")

log = structlog.get_logger(__name__)


class TaskEndedError(Exception):
    """A task of GuardedTasks has ended before its service. `__cause__` is the exception of the task, if it raised one."""

    def __init__(self, name: str, error: BaseException | None) -> None:
        super().__init__(f'task "{name}" ended unexpectedly: {error!r}' if error else f'task "{name}" ended unexpectedly')
        self.task = name


def first_error(error: BaseException) -> BaseException:
    """Return the first error of an exception group. Return any other error itself."""
    return first_error(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


async def cancel_and_wait(*tasks: asyncio.Task[Any]) -> None:
    """Cancel the tasks and wait for their end, even if the caller is cancelled meanwhile. Do not raise their errors."""
    running = [task for task in tasks if not task.done()]
    for task in running:
        task.cancel()
    try:
        if running:
            await asyncio.wait(running)
    except asyncio.CancelledError:
        await asyncio.wait(running)
        raise
    finally:
        for task in tasks:
            if task.done() and not task.cancelled():
                task.exception()  # marks the error as retrieved


class GuardedTasks:
    """An `async with` block around the tasks of a service.

    The end of the block, or `stop()`, cancels the tasks and waits for them. If a task ends by itself, `on_end` gets a
    TaskEndedError, so that the service can stop in order. Without `on_end`, the body of the block is cancelled, and the block
    raises the error.
    """

    def __init__(self, service: str, *, on_end: Callable[[TaskEndedError], object] | None = None) -> None:
        self._service = service
        self._on_end = on_end
        self._tasks: set[asyncio.Task[Any]] = set()
        self._owner: asyncio.Task[Any] | None = None
        self._stopping = False
        self._interrupted = False
        self.ended: TaskEndedError | None = None

    async def __aenter__(self) -> Self:
        self._owner = asyncio.current_task()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
        if self._interrupted and self._owner is not None:
            self._owner.uncancel()
        if self.ended is None or self._on_end is not None:
            return
        if kind is None or (kind is asyncio.CancelledError and self._interrupted):
            raise self.ended from self.ended.__cause__

    def start(self, name: str, work: Coroutine[Any, Any, object]) -> asyncio.Task[Any]:
        """Run `work` under `name` until the block ends."""
        task = asyncio.get_running_loop().create_task(work, name=f"{self._service}/{name}")
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def stop(self) -> None:
        """Cancel all tasks and wait until each has cleaned up. Idempotent."""
        self._stopping = True
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if self._stopping:
            if error is not None:
                log.error("task failed while stopping", task=task.get_name(), exc_info=error)
            return
        log.critical("task ended unexpectedly", task=task.get_name(), exc_info=error)
        if self.ended is not None:
            return
        self.ended = TaskEndedError(task.get_name(), error)
        self.ended.__cause__ = error
        if self._on_end is not None:
            self._on_end(self.ended)
        elif self._owner is not None:
            self._interrupted = True
            self._owner.cancel()


async def retried(
    change: Callable[[], Awaitable[T]], on: tuple[type[Exception], ...], attempts: int, pauses: Backoff | None = None
) -> T:
    """Return the result of `change`. After the errors `on`, call it again; at most `attempts` calls. Raises the last error."""
    for _ in range(attempts - 1):
        try:
            return await change()
        except on:
            if pauses is not None:
                await asyncio.sleep(pauses.next().total_seconds())
    return await change()
