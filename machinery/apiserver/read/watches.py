"""Watch requests: an endless response with one JSON line per event, composed of stored bytes.

A watch ends at its timeout, when the client disconnects, when the storage reports that the watcher is too slow, and when the
server stops. A stopping server ends watches at a bounded rate, because each client reconnects immediately. The time for initial
events does not count towards the timeout. Each watch has one `asyncio.timeout`; the server ends a watch by moving its deadline.
"""

import asyncio
import functools
import secrets
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import structlog
from aiohttp import web

from machinery.apiserver.http.options import WatchOptions, watch_options
from machinery.apiserver.http.responses import JSON, ResponseShape, item_bytes
from machinery.apiserver.http.status_errors import InternalError, status_document
from machinery.apiserver.read.reads import ResourceCall, TableWriter, fresh, partial
from machinery.errors import DeadlineError, ExpiredError, MusterError, NotAcceptableError, UnavailableError
from machinery.meta.objects import ChangeType, Query, StoredObject
from machinery.runtime.event_loop import drain_rate, paced

INITIAL_END = "k8s.io/initial-events-end"
PACED_SHARE = 0.8
"""The server ends watches in this fraction of a drain's grace time. Then clients have time to read their last events."""
RETRY = timedelta(seconds=1)
CLOSE_TIMEOUT = timedelta(seconds=2)
"""After the end of a watch, the client has this time to read the rest of the response."""

log = structlog.get_logger(__name__)


class Watches:
    """The open watches of one server. A watch without timeoutSeconds gets a random timeout: between `longest` and twice it."""

    def __init__(self, *, longest: timedelta, bookmark: timedelta) -> None:
        self._longest = longest.total_seconds()
        self._bookmark = bookmark.total_seconds()
        self._ends: dict[asyncio.Timeout, str] = {}
        self._stopped = False
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        return len(self._ends)

    def by_resource(self) -> Counter[str]:
        """Return the number of open watches by resource. May be called on any thread."""
        return Counter(tuple(self._ends.values()))

    def stop(self) -> None:
        """End all watches immediately, and refuse new watches with "try again"."""
        self._stopped = True
        for end in tuple(self._ends):
            self._end_now(end)

    async def drain(self, grace: timedelta) -> None:
        """End all watches at a bounded rate within `grace`. After `grace`, end the remaining watches immediately."""
        self._stopped = True
        log.info("watches are ended", count=len(self._ends), within_seconds=grace.total_seconds())
        try:
            async with asyncio.timeout(grace.total_seconds()):
                async for end in paced(tuple(self._ends), drain_rate(len(self._ends), grace * PACED_SHARE)):
                    self._end_now(end)
                await self._idle.wait()
        except TimeoutError:
            log.warning("watches did not end in time", count=len(self._ends))
            self.stop()

    def _end_now(self, end: asyncio.Timeout) -> None:
        if end in self._ends and not end.expired():
            end.reschedule(asyncio.get_running_loop().time())

    def _restart(self, end: asyncio.Timeout, seconds: float, *, is_reading: bool = False) -> None:
        """Restart the timeout of a watch. `is_reading`: the storage is being read, so only the server's own limit applies."""
        if not self._stopped:
            end.reschedule(asyncio.get_running_loop().time() + (self._longest if is_reading else seconds))

    async def answer(self, call: ResourceCall) -> web.StreamResponse:
        """Serve one watch to its end. Raises MusterError; after the first byte, an error becomes an ERROR event instead."""
        if call.form.media != JSON:
            raise NotAcceptableError(f"only the following media types are accepted for a watch: {JSON}")
        if self._stopped:
            raise UnavailableError("the server is shutting down", retry_after=RETRY)
        options = watch_options(call.resource, call.namespace, call.attributes.name, call.request.query, call.clock.now())
        response = web.StreamResponse(headers={"Content-Type": JSON})
        tables = call.tables() if call.form.shape is ResponseShape.TABLE else None
        seconds = options.timeout.total_seconds() if options.timeout else self._longest * (1 + secrets.randbelow(1000) / 1000)
        try:
            async with asyncio.timeout(seconds) as end:
                self._ends[end] = str(call.resource.key)
                self._idle.clear()
                restart = functools.partial(self._restart, end, seconds)
                await _serve(call.request, response, _lines(call, options, tables, self._bookmark, restart))
        except TimeoutError:
            if not end.expired():
                raise
        except ConnectionResetError:
            return response
        finally:
            self._ends.pop(end, None)
            if not self._ends:
                self._idle.set()
        await _close(call.request, response)
        return response


async def _close(request: web.Request, response: web.StreamResponse) -> None:
    """Write the end of the response. If the client does not read it in time, abort the connection."""
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT.total_seconds()):
            if not response.prepared:
                await response.prepare(request)
            await response.write_eof()
    except ConnectionResetError:  # the client may disconnect while the watch ends
        return
    except (TimeoutError, asyncio.CancelledError):  # cancelled by the timeout in the middle of a line
        if request.transport is not None:
            request.transport.abort()
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise


async def _serve(request: web.Request, response: web.StreamResponse, events: AsyncGenerator[bytes]) -> None:
    await response.prepare(request)
    try:
        async with aclosing(events) as lines:
            async for line in lines:
                await response.write(line)
    except MusterError as error:
        await response.write(_line("ERROR", msgspec.json.encode(status_document(error))))
    except (ConnectionResetError, TimeoutError):
        raise
    except Exception:
        log.exception("unexpected error in a watch", path=request.path)
        await response.write(_line("ERROR", msgspec.json.encode(status_document(InternalError()))))


def _line(kind: str, document: bytes) -> bytes:
    return b'{"type":"' + kind.encode() + b'","object":' + document + b"}\n"


async def _lines(
    call: ResourceCall, options: WatchOptions, tables: TableWriter | None, bookmark: float, restart: Callable[..., None]
) -> AsyncGenerator[bytes]:
    """Yield the lines of initial events, then of each change, and bookmarks at most every `bookmark` seconds.

    `restart`: `Watches._restart`, called around the initial events, so that their time does not count towards the timeout.
    A change is encoded once for all watches of the same form. Raises ExpiredError if the client's revision does not become
    visible: it does not belong to this storage's history, and the client must list again.
    """
    storage, key, after, defined = call.storage, call.resource.key, options.revision or 0, False
    loop = asyncio.get_running_loop()
    last_bookmark = loop.time()
    if options.initial:
        await fresh(call, options.revision)
        query: Query | None = replace(options.query, limit=storage.portion)
        while query is not None:  # a portion is released after the next one was read
            restart(is_reading=True)
            page = await storage.list(key, query)
            after = page.revision
            restart()
            for stored in page.items:
                yield _line(ChangeType.ADDED.value, await _document(call, tables, stored, defined=not defined))
                defined = tables is not None
            query = None if page.after is None else replace(query, after=page.after, at=after)
        if options.mark_initial and options.bookmarks:
            yield _bookmark_line(call, after, annotations={INITIAL_END: "true"})
        restart()
    else:
        after = await _resumed(call, after)
    shape = (call.api_version, call.form, call.request.query.get("includeObject"))
    async with storage.watch(key, options.query, after=after) as events:
        async for event in events:
            if isinstance(event, int):
                if options.bookmarks and loop.time() >= last_bookmark + bookmark:
                    last_bookmark = loop.time()
                    yield _bookmark_line(call, event)
                continue
            form = (*shape, defined)
            line = event.lines.get(form)
            if line is None:
                document = await _document(call, tables, event.stored, defined=not defined)
                line = event.lines[form] = _line(event.type.value, document)
            defined = tables is not None
            yield line


async def _resumed(call: ResourceCall, after: int) -> int:
    """Return the revision after which a watch without initial events begins; `after` 0: now."""
    if not after:
        return await call.storage.revision()
    try:
        await fresh(call, after)
    except DeadlineError as error:
        raise ExpiredError(f"too large resource version: {after}; the objects must be listed again") from error
    return after


async def _document(call: ResourceCall, tables: TableWriter | None, stored: StoredObject, *, defined: bool) -> bytes:
    """Return the object in the form of the request. `defined`: with the column definitions of a table."""
    if tables is not None:
        metadata = {"resourceVersion": str(stored.revision)}
        return msgspec.json.encode(await tables.table((stored,), metadata, defined=defined))
    body = item_bytes(stored, call.convert)
    if call.form.shape is ResponseShape.OBJECT:
        return body
    return msgspec.json.encode(partial(msgspec.json.decode(body), call.form.version))


def _bookmark_line(call: ResourceCall, revision: int, **more: Any) -> bytes:
    """Return the line of a bookmark. `more`: further fields of its metadata."""
    metadata = {"resourceVersion": str(revision), **more}
    kind, version, meta = call.resource.kind, call.api_version, f"meta.k8s.io/{call.form.version}"
    if call.form.shape in (ResponseShape.PARTIAL, ResponseShape.PARTIAL_LIST):
        kind, version = "PartialObjectMetadata", meta
    document: dict[str, Any] = {"kind": kind, "apiVersion": version, "metadata": metadata}
    if call.form.shape is ResponseShape.TABLE:
        row = {"cells": [], "object": document}
        document = {"kind": "Table", "apiVersion": meta, "metadata": metadata, "columnDefinitions": None, "rows": [row]}
    return _line("BOOKMARK", msgspec.json.encode(document))
