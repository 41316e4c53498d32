"""The query parameter `at`: an object or a list as it was at an earlier time or revision.

Such a request uses the same code as other reads, over a read-only storage fixed at that revision: pages, selectors, conditions,
versions and tables are those of that time, and ages are relative to it.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import NoReturn

from machinery.apiserver.read.reads import ResourceCall
from machinery.apiserver.storage import Actor, GroupResource, Past, PastRevision, Storage, UpdateFunc
from machinery.durations import parse_duration
from machinery.errors import BadRequestError, MethodNotAllowedError
from machinery.meta.objects import Document, Key, Page, Query, StoredObject, WatchEvent
from machinery.meta.timestamps import parse_time
from machinery.runtime.clock import Clock

PARAMETER = "at"
MAX_DIGITS = 18
AHEAD = timedelta(minutes=1)
"""Tolerated lead of a client's clock."""
FORMS = "a time such as 2026-11-01T12:00Z, a time ago such as -2h, or a revision"


def is_requested(query: Mapping[str, str]) -> bool:
    """Whether a request has `at`."""
    return bool(query.get(PARAMETER))


def parse_at(text: str, now: datetime) -> datetime | int:
    """Parse an instant or a revision. Raises BadRequestError that lists the valid forms."""
    if text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS:
        return int(text)
    try:
        moment = now - parse_duration(text[1:]) if text.startswith("-") else parse_time(text)
    except (ValueError, OverflowError) as error:
        hint = ": say in which time zone, as in 2026-11-01T12:00Z" if "time zone" in str(error) else f": give {FORMS}"
        raise BadRequestError(f"at={text[:40]} cannot be read{hint}") from None
    if moment > now + AHEAD:
        raise BadRequestError(f"at={text[:40]} has not come yet: here it is {now:%Y-%m-%dT%H:%M:%SZ}")
    return min(moment, now)


async def resolve_call(call: ResourceCall) -> ResourceCall:
    """The same request against the past. Raises BadRequestError, ExpiredError."""
    query, past, verb = call.request.query, call.resource.past, call.attributes.verb
    if verb not in ("get", "list", "watch"):
        raise BadRequestError("at is for reading: what was cannot be changed")
    if past is None:
        raise BadRequestError(f"the past of {call.resource.name} is not kept: ask without at")
    if verb == "watch":
        raise BadRequestError("the past does not change: list with at, and watch from a resourceVersion")
    if query.get("resourceVersion"):
        raise BadRequestError("at and resourceVersion exclude each other: give one of them")
    place = await past.place(parse_at(query[PARAMETER], call.clock.now()))
    resource = replace(call.resource, extras=None)  # extras exist only for the current state
    return replace(call, resource=resource, clock=_Stopped(place.moment, call.clock), storage=_PastStorage(past, place))


@dataclass(frozen=True, slots=True)
class _Stopped(Clock):
    """A clock fixed at one instant."""

    at: datetime
    clock: Clock

    def now(self) -> datetime:
        return self.at

    def monotonic(self) -> float:
        return self.clock.monotonic()


class _PastStorage(Storage):
    """A read-only storage at one revision."""

    def __init__(self, past: Past, place: PastRevision) -> None:
        self._past = past
        self._place = place

    async def get(self, resource: GroupResource, key: Key) -> StoredObject:
        return await self._past.get_at(resource, key, self._place.revision)

    async def list(self, resource: GroupResource, query: Query) -> Page:
        """`query.at` is the revision of the first page, from a continue token."""
        at = self._place.revision if query.at is None else query.at
        return await self._past.list_at(resource, replace(query, at=at, past=True))

    async def create(
        self, resource: GroupResource, key: Key, document: Document, actor: Actor, *, dry_run: bool = False
    ) -> StoredObject:
        """Raises MethodNotAllowedError."""
        del resource, key, document, actor, dry_run
        _read_only()

    async def update(
        self, resource: GroupResource, key: Key, change: UpdateFunc, actor: Actor, *, dry_run: bool = False
    ) -> StoredObject:
        """Raises MethodNotAllowedError."""
        del resource, key, change, actor, dry_run
        _read_only()

    def watch(
        self, resource: GroupResource, query: Query, *, after: int
    ) -> AbstractAsyncContextManager[AsyncIterator[WatchEvent | int]]:
        """Raises MethodNotAllowedError."""
        del resource, query, after
        _read_only()

    async def revision(self) -> int:
        return self._place.revision

    async def wait_for(self, revision: int) -> None:
        """A past revision is always visible."""


def _read_only() -> NoReturn:
    raise MethodNotAllowedError("the past cannot be changed, and does not change")
