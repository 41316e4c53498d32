"""A reflector: mirrors objects of a collection in memory by list and watch.

Like client-go's reflector, it reads a paged list and then watches from the revision of the list, with bookmarks. The server
ends a watch after some minutes, and the reflector continues it. A compacted revision (410) causes a new list. After any other
failure, and after a watch that ends immediately, the reflector waits with a growing delay, so that it does not overload a
broken server. It compares a new list with the objects that it holds, so that each change is reported once, including deletions
since the previous list.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from random import Random
from types import MappingProxyType
from typing import Any, Generic, TypeVar

import structlog

from machinery.client.rest import PAGE_SIZE, KubeClient, Object, Query
from machinery.errors import ExpiredError, MusterError
from machinery.runtime.backoff import Backoff

T = TypeVar("T")

FIRST_PAUSE = timedelta(milliseconds=800)
LONGEST_PAUSE = timedelta(seconds=30)
WATCH_SECONDS = (240, 290)
"""Bounds of the requested watch duration. It is random, so that the watches of a fleet do not end together."""
ANSWER_MARGIN = timedelta(seconds=30)
"""If a watch has not ended this long after its requested duration, it is aborted: server or network are lost."""
STEADY = timedelta(seconds=5)
"""A watch that lasts this long resets the back-off."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, order=True)
class ObjectKey:
    """Namespace and name of an object; `namespace` is "" for cluster-scoped objects."""

    namespace: str
    name: str


class Reflector(Generic[T]):
    """Mirrors the collection at `path` into `items`. `keep` returns the value to store for an object; None: omit the object.

    `on_change` is called with the key and the new value (None: deleted) when a value differs from the stored one. It must not
    block or raise. `on_failure` is called for each error after which the reflector pauses.
    """

    def __init__(
        self,
        client: KubeClient,
        path: str,
        keep: Callable[[Object], T | None],
        *,
        query: Query | None = None,
        on_change: Callable[[ObjectKey, T | None], None] = lambda _key, _value: None,
        on_failure: Callable[[MusterError], None] | None = None,
        page_size: int = PAGE_SIZE,
        backoff: Backoff | None = None,
    ) -> None:
        self.path = path
        self.synced = asyncio.Event()
        """Set when the first list is complete; never cleared."""
        self._client = client
        self._keep = keep
        self._query = dict(query or {})
        self._on_change = on_change
        self._on_failure = on_failure or self._log_failure
        self._page_size = page_size
        self._random = Random()  # noqa: S311 - spreads load, guards nothing
        self._backoff = backoff or Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        self._items: dict[ObjectKey, T] = {}
        self._revision: str | None = None
        self._steady = False

    @property
    def items(self) -> Mapping[ObjectKey, T]:
        """Live view of the stored values."""
        return MappingProxyType(self._items)

    async def run(self) -> None:
        while True:
            self._steady = False
            try:
                if self._revision is None:
                    await self._list()
                await self._watch(self._revision or "")
            except ExpiredError as error:
                self._revision = None
                if not self._backoff.failures:
                    self._backoff.next()  # the first list follows immediately, but a second one in a row waits
                    continue
                self._on_failure(error)
            except MusterError as error:
                self._steady = False
                self._on_failure(error)
            if not self._steady:
                await asyncio.sleep(self._backoff.next().total_seconds())

    async def _list(self) -> None:
        listed: dict[ObjectKey, T] = {}
        revision = ""
        async for page in self._client.pages(self.path, self._query, limit=self._page_size):
            revision = page.resource_version
            for item in page.items:
                if (value := self._keep(item)) is not None:
                    listed[_key(item)] = value
        for key in [key for key in self._items if key not in listed]:
            self._set(key, None)
        for key, value in listed.items():
            self._set(key, value)
        self._revision = revision
        self.synced.set()

    async def _watch(self, revision: str) -> None:
        seconds = self._random.randint(*WATCH_SECONDS)
        query = {**self._query, "resourceVersion": revision, "allowWatchBookmarks": True, "timeoutSeconds": seconds}
        async with self._client.watch(self.path, query, within=timedelta(seconds=seconds) + ANSWER_MARGIN) as events:
            since = asyncio.get_running_loop().time()
            try:
                async for event in events:
                    self._revision = str(event.object["metadata"].get("resourceVersion") or "") or self._revision
                    if event.type != "BOOKMARK":
                        self._set(_key(event.object), None if event.type == "DELETED" else self._keep(event.object))
            finally:
                if asyncio.get_running_loop().time() - since >= STEADY.total_seconds():
                    self._steady = True
                    self._backoff.reset()

    def _set(self, key: ObjectKey, value: T | None) -> None:
        if self._items.get(key) == value:
            return
        if value is None:
            del self._items[key]
        else:
            self._items[key] = value
        self._on_change(key, value)

    def _log_failure(self, error: MusterError) -> None:
        fields = {"reason": error.reason, "error": error.message, "failures": self._backoff.failures}
        log.warning("mirror of a collection failed", path=self.path, **fields)


Wait = Callable[[asyncio.Event], Awaitable[None]]


@asynccontextmanager
async def mirrored(*reflectors: Reflector[Any]) -> AsyncIterator[Wait]:
    """Run the reflectors during the block. The block may end in another task than the one in which it began.

    It yields a function that waits for an event, which callbacks of the reflectors set. If a reflector ends meanwhile, the
    function raises the reflector's error.
    """
    tasks = [asyncio.create_task(reflector.run(), name=f"mirror {reflector.path}") for reflector in reflectors]

    async def wait(event: asyncio.Event) -> None:
        waiting = asyncio.create_task(event.wait())
        try:
            await asyncio.wait({waiting, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        for task in tasks:
            if task.done():
                task.result()

    try:
        yield wait
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _key(item: Object) -> ObjectKey:
    metadata = item.get("metadata") or {}
    return ObjectKey(str(metadata.get("namespace") or ""), str(metadata.get("name") or ""))
