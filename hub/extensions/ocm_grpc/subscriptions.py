"""Subscriptions of agents: each lists its objects, follows them with one watch, and holds events until the agent reads them.

The agent applies the last event that it gets for an object, so a list never runs while a watch does, and an older version is
never sent after a newer one. Heartbeat Leases are not watched: the agent itself writes them and gets the result of each write.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping
from datetime import timedelta
from http import HTTPStatus

import structlog

from hub.api.managedclusters.cluster import is_accepted
from hub.extensions.ocm_grpc.api import ApiCaller
from hub.extensions.ocm_grpc.cloudevents import CLUSTERS, LEASES, TOKENS, DataType, deletion_event, object_event
from machinery.errors import ForbiddenError, MusterError, UnavailableError
from machinery.identity import ClusterName
from machinery.meta.objects import ChangeType, Document
from machinery.runtime.clock import Clock

MAX_EVENTS = 256
"""Number of events that may wait for an agent that does not read. The events of a list do not count."""
MAX_WAITING = 4 * 1024 * 1024
"""Bytes of all events that may wait, unless a single one is larger."""
HOLD_AFTER_CREATE = timedelta(milliseconds=250)
"""Time between the answer to a create and the object's events. At the answer, the agent stores its own copy of the object,
which would replace an event that came earlier."""
REPEAT_EVERY, REPEAT_FOR = timedelta(seconds=30), timedelta(minutes=10)
"""Interval and duration in which certificate requests are sent again after a create. The agent may have discarded one."""
FIRST_RETRY, LONGEST_RETRY = timedelta(milliseconds=500), timedelta(minutes=5)
"""Intervals at which a refused agent of an accepted cluster is authorized again. The hub refuses an agent while another agent
of the cluster replaces it."""
LEASE_FIRST = timedelta(seconds=1)
"""Delay of the event that a cluster is accepted, so that the agent gets its Lease first. Without a Lease, the agent would send
its first heartbeat a minute later."""
LISTED = "spec.resync_response"
CHANGED: Mapping[str, str] = {ChangeType.ADDED: "spec.create_request", ChangeType.MODIFIED: "spec.update_request"}

log = structlog.get_logger(__name__)


class Subscription:
    """One stream. Call `begin`; then call `next` repeatedly while `run` is running."""

    def __init__(self, caller: ApiCaller, data_type: DataType, cluster: ClusterName, clock: Clock) -> None:
        self.key = (caller.credential, cluster, data_type)
        self.data_type = data_type
        self._caller = caller
        self._cluster = cluster
        self._clock = clock
        self._events: deque[bytes] = deque()
        self._size = self._holds = 0
        self._ready, self._refresh = asyncio.Event(), asyncio.Event()
        self._ended: str | None = None
        self._versions: dict[str, int] = {}
        """The last sent version of each object, by uid."""
        self._claimed: set[str] = set()
        """Uids of objects that the agent reports as known."""
        self._forbidden: MusterError | None = None
        """Why the agent may not read the objects; None if it may."""
        self._accepted = self._accepted_sent = False
        self._repeat_until = self._repeated = 0.0
        self._position: tuple[DataType, str] | None = None

    async def begin(self) -> None:
        """Authorize the caller and queue the current objects. Raises MusterError."""
        self._position = await self._list()

    async def run(self) -> None:
        """Follow the objects until cancelled. An error ends the subscription; `next` then raises UnavailableError."""
        pause = FIRST_RETRY
        try:
            while True:
                followed, revision = self._position or await self._list()
                self._position = None
                retries = self._forbidden is not None and self._accepted
                await self._follow(followed, revision, pause if retries else None)
                pause = min(2 * pause, LONGEST_RETRY) if retries else FIRST_RETRY
        except MusterError as error:
            self.end(error.message)
        except Exception:
            log.exception("a subscription of an agent has failed", data_type=self.data_type.name)
            self.end("internal error")

    async def next(self) -> bytes:
        """Wait for the next event. Raises UnavailableError when the subscription has ended."""
        while True:
            if self._ended is not None:
                raise UnavailableError(self._ended)
            if self._events and not self._holds:
                event = self._events.popleft()
                self._size -= len(event)
                return event
            self._ready.clear()
            await self._ready.wait()

    def end(self, why: str) -> None:
        """End the stream; events that wait are dropped. The agent subscribes again."""
        if self._ended is None:
            self._ended = why
            self._events.clear()
            self._ready.set()

    def beat(self, heartbeat: bytes) -> None:
        """Queue the heartbeat unless events wait. For REPEAT_FOR after a create, also send all objects every REPEAT_EVERY."""
        if not self._events:
            self._queue(heartbeat)
        now = self._clock.monotonic()
        if now < self._repeat_until and now >= self._repeated + REPEAT_EVERY.total_seconds():
            self._repeated = now
            self._refresh.set()

    def resync(self, uids: Iterable[str]) -> None:
        """Send all objects again, and the deletion of those `uids` that do not exist."""
        self._claimed.update(uids)
        self._refresh.set()

    def hold(self) -> None:
        """Send no events until `release`."""
        self._holds += 1

    def release(self) -> None:
        """Send events again after HOLD_AFTER_CREATE, and send all objects repeatedly for REPEAT_FOR."""
        self._repeated = self._clock.monotonic()
        self._repeat_until = self._repeated + REPEAT_FOR.total_seconds()
        asyncio.get_running_loop().call_later(HOLD_AFTER_CREATE.total_seconds(), self._release)

    def _release(self) -> None:
        self._holds -= 1
        self._ready.set()

    def push(self, action: str, document: Document, *, listed: bool = False) -> None:
        """Queue an object's event, unless a newer version was sent. `listed`: from a list, so MAX_EVENTS does not apply."""
        metadata = document["metadata"]
        uid, version = str(metadata.get("uid") or ""), int(metadata.get("resourceVersion") or 0)
        if version < self._versions.get(uid, 0):
            return
        if self.data_type is not TOKENS:
            self._versions[uid] = version
        if self.data_type is CLUSTERS and is_accepted(document) is not self._accepted_sent:
            self._accepted_sent = not self._accepted_sent
            if self._accepted_sent:
                self.hold()
                asyncio.get_running_loop().call_later(LEASE_FIRST.total_seconds(), self._release)
        self._queue(object_event(self.data_type, self._cluster, action, document), listed=listed)

    def _queue(self, event: bytes, *, listed: bool = False) -> None:
        full = (len(self._events) >= MAX_EVENTS and not listed) or self._size + len(event) > MAX_WAITING
        if self._events and full:
            self.end("the agent reads too slowly: subscribe again")
        if self._ended is None:
            self._events.append(event)
            self._size += len(event)
            self._ready.set()

    def _queue_deletion(self, uid: str) -> None:
        self._versions.pop(uid, None)
        self._queue(deletion_event(self.data_type, self._cluster, uid, self._clock.now()), listed=True)

    async def _list(self) -> tuple[DataType, str]:
        """Queue all objects. Returns the data type to watch, and the revision. Raises MusterError.

        If the agent may not read the objects, because its cluster is not accepted, the subscription watches the cluster
        instead. Subscriptions to data types that are not watched also watch the cluster.
        """
        self._refresh.clear()
        self._forbidden = None
        if self.data_type not in (LEASES, TOKENS):
            try:
                return self.data_type, await self._list_objects(self.data_type)
            except ForbiddenError as error:
                self._forbidden = error
        try:
            revision = await self._list_objects(CLUSTERS)
        except ForbiddenError as error:
            raise self._forbidden or error from None
        if self.data_type is not TOKENS:
            try:
                await self._list_objects(self.data_type)
            except ForbiddenError as error:
                self._forbidden = error
            else:
                self._forbidden = None
                if self.data_type is not LEASES:
                    self._refresh.set()
        return CLUSTERS, revision

    async def _list_objects(self, data_type: DataType) -> str:
        """Read all objects, queue them if they are of the subscribed type, and return the revision. Raises MusterError."""
        answer = await self._caller.send("GET", self._path(data_type))
        found = answer.document()
        if answer.is_error or "items" not in found:
            raise answer.error()
        kind = {"apiVersion": found["apiVersion"], "kind": str(found["kind"]).removesuffix("List")}
        if data_type is CLUSTERS:
            self._accepted = any(map(is_accepted, found["items"]))
        if data_type is self.data_type:
            present = {str(each["metadata"].get("uid") or "") for each in found["items"]}
            for each in found["items"]:
                self.push(LISTED, {**kind, **each}, listed=True)
            for uid in sorted((self._claimed | self._versions.keys()) - present):
                self._queue_deletion(uid)
            self._claimed.clear()
        return str(found["metadata"]["resourceVersion"])

    def _path(self, data_type: DataType, *more: str) -> str:
        query = "&".join(filter(None, (data_type.query.format(self._cluster), *more)))
        path = data_type.collection(self._cluster)
        return f"{path}?{query}" if query else path

    async def _follow(self, data_type: DataType, revision: str, pause: timedelta | None) -> None:
        """Watch until the objects must be listed again, at the latest after `pause`. Raises MusterError."""
        path = self._path(data_type, "watch=true", f"resourceVersion={revision}")
        take = self._take if data_type is self.data_type else self._take_cluster
        watching = asyncio.create_task(self._caller.watch(path, take), name="ocm watch")
        refreshed = asyncio.create_task(self._refresh.wait(), name="ocm refresh")
        seconds = None if pause is None else pause.total_seconds()
        try:
            await asyncio.wait((watching, refreshed), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            watching.cancel()
            refreshed.cancel()
            await asyncio.wait((watching, refreshed))
        answer = None if watching.cancelled() else watching.result()
        if answer is not None and answer.is_error and answer.status != HTTPStatus.GONE:
            raise answer.error()

    def _take(self, kind: str, document: Document) -> None:
        """Handle an event of the watched objects."""
        if kind in CHANGED:
            self.push(CHANGED[kind], document)
        elif kind == ChangeType.DELETED:
            self._queue_deletion(str(document["metadata"].get("uid") or ""))
        elif kind == "ERROR" and document.get("code") != HTTPStatus.GONE:
            self.end(str(document.get("message")))

    def _take_cluster(self, kind: str, document: Document) -> None:
        """Handle a change of the cluster: the agent may now have the right to read, or the cluster may have a Lease."""
        if kind == "ERROR" and document.get("code") != HTTPStatus.GONE:
            self.end(str(document.get("message")))
        elif self.data_type is not TOKENS and (
            self.data_type is not LEASES or kind == ChangeType.DELETED or not self._versions
        ):
            self._refresh.set()
