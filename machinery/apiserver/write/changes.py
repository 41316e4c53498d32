"""Changes of objects: small ones are made within the storage's transaction, large ones beside it.

A transaction that waits for a patch to be worked out lets everybody wait, because storages write one after the other. So what
comes of a large object, or of a large body, is worked out on a thread of its own, from the object as it was just read; the
transaction only looks whether that is still the object; else it is worked out anew. No identity has more than half of the
places where this is done.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Any, ParamSpec, TypeVar

import msgspec

from machinery.apiserver.http.limits import PATIENCE, REQUEST_LIMIT, Pool, PriorityLevel
from machinery.apiserver.storage import Actor, Change, Document, GroupResource, Key, Storage, Stored
from machinery.errors import BadRequestError, ConflictError, TooManyRequestsError
from machinery.runtime.clock import Clock

P = ParamSpec("P")
T = TypeVar("T")
SMALL = 32 * 1024
"""Bytes of body and object together that a transaction waits for."""
PLACES = PriorityLevel("large-changes", seats=4, queue=200, each=20)
THREADS = 2
TRIES = 8
AGAIN = timedelta(seconds=1)

_encode = msgspec.json.Encoder().encode


class _LargeError(ConflictError):
    """Ends a transaction in which nothing was worked out yet. `old`: the object as it is there."""

    def __init__(self, old: Document) -> None:
        super().__init__("a large change is worked out beside the transaction")
        self.old = old


class _WorkedOut:
    """What becomes of one revision of an object; `change` is asked only where there is little to do."""

    def __init__(self, change: Change, size: int) -> None:
        self._change = change
        self._size = size
        self._old: Document = {}
        self._new: Document | None = None

    def __call__(self, old: Document) -> Document | None:
        """Raises _LargeError when it is to be worked out first."""
        if self._old and self._old["metadata"]["resourceVersion"] == old["metadata"]["resourceVersion"]:
            return old if self._new is self._old else self._new
        if self._size + len(_encode(old)) > SMALL:
            raise _LargeError(old)
        return self._change(old)

    def work_out(self, old: Document) -> None:
        self._new = self._change(old)
        self._old = old


class Changing:
    """The places of one server."""

    def __init__(self, clock: Clock) -> None:
        self._places = Pool(PLACES, clock)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="large-changes")

    async def change(
        self, storage: Storage, resource: GroupResource, key: Key, change: Change, actor: Actor, *, size: int, dry_run: bool
    ) -> Stored:
        """`storage.update`; `size`: bytes of what it is worked out of beside the object.

        Raises TooManyRequestsError beside the rest: there was no place, or the object changed under every try.
        """
        made = _WorkedOut(_shallow(change), size)
        try:
            return await storage.update(resource, key, made, actor, dry_run=dry_run)
        except _LargeError as large:
            old = large.old
        async with self._place(actor):
            for _ in range(TRIES):
                await self._beside(partial(made.work_out, old))
                try:
                    return await storage.update(resource, key, made, actor, dry_run=dry_run)
                except _LargeError as moved:
                    old = moved.old
        raise TooManyRequestsError("the object changes too often for a change of this size", retry_after=AGAIN)

    async def made(self, make: Callable[[], T], actor: Actor, *, size: int) -> T:
        """What `make` makes of `size` bytes, beside the loop when they are many. Raises what it raises."""
        if size <= SMALL:
            return _shallow(make)()
        async with self._place(actor):
            return await self._beside(_shallow(make))

    def snapshot(self) -> dict[str, Any]:
        """Numbers for who looks into a running server."""
        return self._places.snapshot()

    @asynccontextmanager
    async def _place(self, actor: Actor) -> AsyncIterator[None]:
        await self._places.take(actor.user, REQUEST_LIMIT / PATIENCE)
        try:
            yield
        finally:
            self._places.give(actor.user)

    async def _beside(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def _shallow(work: Callable[P, T]) -> Callable[P, T]:
    """Whoever nests deeper than anything can be followed has sent a bad request."""

    def followed(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return work(*args, **kwargs)
        except RecursionError:
            raise BadRequestError("the object is nested too deeply") from None

    return followed
