"""Changes of objects. Small changes are computed within the storage's transaction, large changes outside of it.

A storage runs one write transaction after the other, so the computation in a transaction delays all writers. For a large object
or body, a separate thread therefore computes the new object first. The transaction then only checks that the object is still
the same. If it has changed, the thread computes again. One identity gets at most half of the seats for large changes.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import ParamSpec, TypeVar

import msgspec

from machinery.apiserver.http.limits import REQUEST_LIMIT, WAIT_DIVISOR, Pool, PriorityLevel
from machinery.apiserver.storage import Actor, GroupResource, Storage, UpdateFunc
from machinery.errors import BadRequestError, ConflictError, TooManyRequestsError
from machinery.meta.objects import Document, Key, StoredObject
from machinery.runtime.clock import Clock

P = ParamSpec("P")
T = TypeVar("T")
SMALL = 32 * 1024
"""Largest size of body and object together, in bytes, whose change is computed within a transaction."""
PLACES = PriorityLevel("large-changes", seats=4, queue=200, each=20)
THREADS = 2
ATTEMPTS = 8
RETRY_AFTER = timedelta(seconds=1)

_encode = msgspec.json.Encoder().encode


class _LargeError(ConflictError):
    """Aborts a transaction, because its change must be computed outside of it first. `old`: the object in the transaction."""

    def __init__(self, old: Document) -> None:
        super().__init__("a large change is computed outside of the transaction")
        self.old = old


class _WorkedOut:
    """An UpdateFunc with a result that was computed before the transaction. It computes only small changes itself."""

    def __init__(self, change: UpdateFunc, size: int) -> None:
        self._change = change
        self._size = size
        self._old: Document = {}
        self._new: Document | None = None

    def __call__(self, old: Document) -> Document | None:
        """Return the new object. Raises _LargeError if `work_out` must run first."""
        if self._old and self._old["metadata"]["resourceVersion"] == old["metadata"]["resourceVersion"]:
            return old if self._new is self._old else self._new
        if self._size + len(_encode(old)) > SMALL:
            raise _LargeError(old)
        return self._change(old)

    def work_out(self, old: Document) -> None:
        self._new = self._change(old)
        self._old = old


class Changing:
    """The seats and threads of one server for large changes."""

    def __init__(self, clock: Clock) -> None:
        self._places = Pool(PLACES, clock)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="large-changes")

    async def change(
        self, storage: Storage, resource: GroupResource, key: Key, change: UpdateFunc, actor: Actor, *, size: int, dry_run: bool
    ) -> StoredObject:
        """Call `storage.update`; compute a large change outside of its transaction. `size`: bytes of the request's body.

        Raises errors of `storage.update`, and TooManyRequestsError if no seat is free or ATTEMPTS attempts met a change.
        """
        made = _WorkedOut(_shallow(change), size)
        try:
            return await storage.update(resource, key, made, actor, dry_run=dry_run)
        except _LargeError as large:
            old = large.old
        async with self._places.seat(actor.user, REQUEST_LIMIT / WAIT_DIVISOR):
            for _ in range(ATTEMPTS):
                await self._beside(partial(made.work_out, old))
                try:
                    return await storage.update(resource, key, made, actor, dry_run=dry_run)
                except _LargeError as moved:
                    old = moved.old
        raise TooManyRequestsError("the object changes too often for a change of this size", retry_after=RETRY_AFTER)

    async def made(self, make: Callable[[], T], actor: Actor, *, size: int) -> T:
        """Return the result of `make`. If `size` is above SMALL, run `make` on a thread.

        Raises the errors of `make`, and TooManyRequestsError if no seat is free in time.
        """
        if size <= SMALL:
            return _shallow(make)()
        async with self._places.seat(actor.user, REQUEST_LIMIT / WAIT_DIVISOR):
            return await self._beside(_shallow(make))

    async def _beside(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def _shallow(work: Callable[P, T]) -> Callable[P, T]:
    """Return `work` with RecursionError replaced by BadRequestError: the object is nested too deeply."""

    def followed(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return work(*args, **kwargs)
        except RecursionError:
            raise BadRequestError("the object is nested too deeply") from None

    return followed
