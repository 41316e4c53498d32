"""The leader's lock as a Lease in client-go's format. Annotations contain term, incarnation, lease duration and status."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from math import ceil
from typing import Any

from machinery.client.reflector import ObjectKey, Reflector, mirrored
from machinery.client.rest import KubeClient, Object, RestResource
from machinery.election.lock import Candidate, Lock, LockRecord
from machinery.errors import AlreadyExistsError, ConflictError, NotFoundError
from machinery.meta.timestamps import format_micro_time, parse_time
from machinery.product import GROUP_SUFFIX
from machinery.runtime.clock import Clock

LEASES = RestResource("coordination.k8s.io", "v1", "leases")
TERM, INCARNATION = f"hub.{GROUP_SUFFIX}/term", f"hub.{GROUP_SUFFIX}/incarnation"
LEASE = f"hub.{GROUP_SUFFIX}/lease-milliseconds"
STATUS = f"hub.{GROUP_SUFFIX}/status"
LONGEST_STATUS = 1024
"""Longest status in characters. A longer status is truncated."""
DIGITS = 19
ATTEMPTS = 3
"""Attempts of a write. Other programs may change the object, for example its labels, without taking the lock."""
_MILLISECOND = timedelta(milliseconds=1)


Owner = Callable[[], Awaitable[Object | None]]


async def no_owner() -> None:
    """Return None: an `Owner` for a Lease that gets no owner reference."""


class LeaseLock(Lock):
    """The leader's lock in one Lease.

    `owner`: returns the owner reference of a new Lease, so that garbage collection deletes the Lease with its owner.
    `status`: returns a text, which each renewal writes as an annotation and a release removes.

    If the Lease is deleted, its term is lost. Callers that need terms that never decrease must also store them elsewhere.
    """

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        name: str,
        *,
        clock: Clock,
        owner: Owner = no_owner,
        status: Callable[[], str] = str,
    ) -> None:
        self._client = client
        self._collection = LEASES.path(namespace=namespace)
        self._path = LEASES.path(name, namespace=namespace)
        self._metadata: Object = {"name": name, "namespace": namespace}
        self._owner = owner
        self._status = status
        self._clock = clock
        self._written: Object | None = None
        """The object after this process's last write, so that most renewals need no read."""

    async def read(self) -> LockRecord | None:
        document = await self._client.find(self._path)
        return None if document is None else _record(document)

    async def take(self, seen: LockRecord | None, candidate: Candidate, lease: timedelta) -> LockRecord:
        document = await self._client.find(self._path)
        found = None if document is None else _record(document)
        if (found and found.version) != (seen and seen.version):
            raise ConflictError("another candidate has taken the lock")
        now = self._clock.now()
        taken = LockRecord(
            holder=candidate.identity,
            incarnation=candidate.incarnation,
            term=(found.term if found else 0) + 1,
            transitions=found.transitions + (found.holder != candidate.identity) if found else 0,
            lease=lease,
            acquired_at=now,
            renewed_at=now,
            version="",
        )
        try:
            if document is None:
                owner = await self._owner()
                metadata = {**self._metadata, **({"ownerReferences": [owner]} if owner else {})}
                new = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata}
                self._written = await self._client.create(self._collection, _written(new, taken))
            else:
                self._written = await self._client.update(self._path, _written(document, taken))
        except AlreadyExistsError as error:
            raise ConflictError("another candidate has taken the lock") from error
        return _record(self._written)

    async def renew(self, held: LockRecord) -> LockRecord:
        renewed = {"renewTime": format_micro_time(self._clock.now())}
        return await self._change(held, renewed, self._status()[:LONGEST_STATUS])

    async def release(self, held: LockRecord) -> bool:
        try:
            await self._change(held, {"holderIdentity": None, "leaseDurationSeconds": 1})
        except ConflictError:
            return False
        return True

    @asynccontextmanager
    async def released(self, notify: Callable[[], object]) -> AsyncIterator[None]:
        """During the block, call `notify` when the Lease is released or deleted. Reconnects automatically."""

        def changed(_key: ObjectKey, holder: str | None) -> None:
            if not holder:
                notify()

        query = {"fieldSelector": f"metadata.name={self._metadata['name']}"}
        async with mirrored(Reflector(self._client, self._collection, _holder, query=query, on_change=changed)):
            yield

    async def _change(self, held: LockRecord, spec: Mapping[str, Any], status: str = "") -> LockRecord:
        known, self._written = self._written, None
        for left in reversed(range(ATTEMPTS)):
            document, known = known or await self._client.find(self._path), None
            found = None if document is None else _record(document)
            same = found is not None and (found.incarnation, found.term) == (held.incarnation, held.term)
            if document is None or found is None or not same or not found.holder:
                raise ConflictError("another candidate holds the lock, or the term is another one")
            changed = {key: value for key, value in {**document["spec"], **spec}.items() if value is not None}
            try:
                body = {**document, "metadata": _annotated(document["metadata"], {STATUS: status}), "spec": changed}
                self._written = await self._client.update(self._path, body)
            except (ConflictError, NotFoundError):
                if not left:
                    raise
            else:
                return _record(self._written)
        raise AssertionError("unreachable")


def _holder(document: Object) -> str:
    return (document.get("spec") or {}).get("holderIdentity") or ""


def _written(document: Object, record: LockRecord) -> Object:
    metadata: Object = document["metadata"]
    own = {TERM: str(record.term), INCARNATION: record.incarnation, LEASE: str(record.lease // _MILLISECOND), STATUS: ""}
    return {
        **document,
        "metadata": _annotated(metadata, own),
        "spec": {
            **(document.get("spec") or {}),
            "holderIdentity": record.holder,
            "leaseDurationSeconds": max(1, ceil(record.lease.total_seconds())),
            "acquireTime": format_micro_time(record.acquired_at),
            "renewTime": format_micro_time(record.renewed_at),
            "leaseTransitions": record.transitions,
        },
    }


def _annotated(metadata: Object, changed: Mapping[str, str]) -> Object:
    """Return the metadata with changed annotations. The value "" removes an annotation."""
    annotations = {**(metadata.get("annotations") or {}), **changed}
    return {**metadata, "annotations": {key: value for key, value in annotations.items() if value or key not in changed}}


def _record(document: Object) -> LockRecord:
    metadata, spec = document["metadata"], document.get("spec") or {}
    own: Mapping[str, str] = metadata.get("annotations") or {}
    milliseconds = _number(own.get(LEASE))
    created = metadata.get("creationTimestamp") or "1970-01-01T00:00:00Z"
    return LockRecord(
        holder=spec.get("holderIdentity") or "",
        incarnation=own.get(INCARNATION, ""),
        term=_number(own.get(TERM)) or 0,
        transitions=int(spec.get("leaseTransitions") or 0),
        lease=milliseconds * _MILLISECOND if milliseconds else timedelta(seconds=spec.get("leaseDurationSeconds") or 1),
        acquired_at=parse_time(spec.get("acquireTime") or created),
        renewed_at=parse_time(spec.get("renewTime") or created),
        version=str(metadata["resourceVersion"]),
        status=own.get(STATUS, ""),
    )


def _number(annotation: str | None) -> int | None:
    """Parse a number below 10^18, which fits into an int64; None: there is no annotation, or this program did not write it."""
    is_one = annotation is not None and annotation.isascii() and annotation.isdigit() and len(annotation) < DIGITS
    return int(annotation) if is_one and annotation is not None else None
