"""Applies the audit policy to requests of both doors, and passes records to all trails."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from hashlib import sha256
from typing import Any

import msgspec

from hub.api.auditrecords import NO_BODY, AuditEntry, AuditRecord, Numbering, ObjectReference, User
from hub.audit.floods import PERIOD, Floods
from hub.audit.policy import AuditPolicy, RequestAuditConfig
from hub.audit.trail import Trail
from machinery.apiserver.access import Attributes
from machinery.apiserver.storage import Actor
from machinery.meta import bounded_json as boundedjson
from machinery.meta.bounded_json import JsonError
from machinery.observability.logs import redacted
from machinery.product import NAME
from machinery.runtime.clock import Clock
from machinery.runtime.event_loop import until_tick
from machinery.sanitize import plain

MAX_BODY = 64 * 1024
"""Longest body in a record. The auditor omits longer bodies and adds a note to the record."""
MAX_TEXT = 1024
SECRET_KINDS = frozenset(("Secret", "SecretList", "TokenRequest", "TokenReview", "TokenCredentialRequest"))
"""Kinds whose bodies may contain a secret in a field of any name."""
BODY_LEFT_OUT = f"{NAME}/body"
FLUSHED_WITHIN = timedelta(seconds=15)
"""Longest time for which a stopping process waits until the last records are stored."""


class Auditor:
    """The audit of a process. Its methods for requests never wait and never fail a request."""

    def __init__(
        self,
        policy: AuditPolicy,
        trails: Sequence[Trail],
        clock: Clock,
        *,
        strangers: Sequence[Trail] | None = None,
        numbering: Numbering | None = None,
    ) -> None:
        """`strangers`: trails for refusals of unknown callers; None: `trails`.

        `numbering`: assigns sequence numbers to records in the database. A trail or the transaction of a change writes these.
        """
        self.numbering = numbering
        self._policy = policy
        self._trails_by_origin = {False: tuple(trails), True: tuple(trails if strangers is None else strangers)}
        self._trails = tuple(dict.fromkeys(trail for trails in self._trails_by_origin.values() for trail in trails))
        self._floods = Floods(clock)
        self.clock = clock

    async def open(self) -> None:
        """Opens all trails. Raises MusterError if a sink cannot store records; the hub must then not start."""
        for trail in self._trails:
            await trail.sink.open()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for trail in self._trails:
                group.create_task(trail.run(), name="audit trail")
            while True:
                await asyncio.sleep(until_tick(PERIOD))
                self._summarize()

    def _summarize(self) -> None:
        for stranger, trails in self._trails_by_origin.items():
            for record in self._floods.summaries(strangers=stranger):
                for trail in trails:
                    trail.offer(record)

    async def flush(self) -> None:
        """Returns when all offered records are stored. The caller sets the time-out."""
        self._summarize()
        await asyncio.gather(*(trail.flush() for trail in self._trails))

    async def finish(self) -> None:
        """Returns when all offered records are stored, or after `FLUSHED_WITHIN`; `run` must still run."""
        self._summarize()
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSHED_WITHIN.total_seconds()):
                await asyncio.gather(*(trail.finish() for trail in self._trails))

    def evaluate(self, actor: Actor, attributes: Attributes) -> RequestAuditConfig:
        """Returns what the policy records for a request. `actor`: the authenticated actor, even if it impersonates another."""
        return self._policy.evaluate(actor, attributes)

    def offer(self, record: AuditRecord, *, stored: bool = False) -> None:
        """Passes a record to the trails, or counts a repetition. `stored`: a transaction has written it to the database."""
        stranger, kept = (False, record) if stored else self._floods.take(record)
        if kept is not None:
            for trail in self._trails_by_origin[stranger]:
                if not stored or trail.sink.numbering is not self.numbering:
                    trail.offer(kept)

    def entry(self, record: AuditRecord) -> AuditEntry | None:
        """Passes a record to the trails of files, and returns it for the caller, who must write it to the database.

        Returns None if the record is a repetition, which is only counted, or if a trail writes the record to the database.
        """
        stranger, kept = self._floods.take(record)
        if kept is None:
            return None
        numbering = None if stranger else self.numbering
        for trail in self._trails_by_origin[stranger]:
            if numbering is None or trail.sink.numbering is not numbering:
                trail.offer(kept)
        return numbering.entry(kept) if numbering is not None else None

    def snapshot(self) -> list[dict[str, Any]]:
        return [trail.snapshot() for trail in self._trails]


def user_of(actor: Actor) -> User:
    return User(actor.user, actor.uid, tuple(actor.groups), actor.extra)


def reference_of(attributes: Attributes, *, name: str = "", uid: str = "") -> ObjectReference | None:
    """Returns the object of a request; None for a non-resource path. Set `name` and `uid` if only the answer contains them.

    All fields except the uid are shortened, because a client without a credential can choose them.
    """
    if not attributes.resource:
        return None
    return ObjectReference(
        resource=short(attributes.resource),
        namespace=short(attributes.namespace),
        name=short(attributes.name or attributes.selected_name or name),
        uid=uid,
        api_group=short(attributes.group),
        api_version=short(attributes.version),
        subresource=short(attributes.subresource),
    )


def body_of(content: bytes | None, notes: dict[str, str]) -> msgspec.Raw:
    """Returns a redacted JSON body for a record; NO_BODY if the body is absent or omitted (the reason is then in `notes`)."""
    if not content:
        return NO_BODY
    if len(content) > MAX_BODY:
        notes[BODY_LEFT_OUT] = f"left out: longer than {MAX_BODY} bytes"
        return NO_BODY
    try:
        document = boundedjson.decode(content)
    except JsonError as error:
        notes[BODY_LEFT_OUT] = f"left out: {error}"
        return NO_BODY
    if isinstance(document, Mapping) and str(document.get("kind")) in SECRET_KINDS:
        notes[BODY_LEFT_OUT] = "left out: it may hold a secret"
        return NO_BODY
    return msgspec.Raw(msgspec.json.encode(redacted(document)))


def token_hash(token: str) -> str:
    return f"SHA256={sha256(token.encode(errors='surrogateescape')).hexdigest()}"


def short(text: str) -> str:
    """Shortens and redacts a client's text, and removes characters that the database cannot store."""
    return str(redacted(plain(text[:MAX_TEXT])))
