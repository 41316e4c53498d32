"""One for both doors: asks the policy about a request, and gives its records to every trail."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from hashlib import sha256
from typing import Any

import msgspec

from hub.api.auditrecords.query import AuditEntry, Numbering
from hub.api.auditrecords.record import NO_BODY, AuditRecord, ObjectReference, User
from hub.audit.floods import PERIOD, Floods
from hub.audit.policy import AuditPolicy, AuditVerdict
from hub.audit.trail import Trail
from machinery.apiserver.access import Attributes
from machinery.apiserver.storage import Actor
from machinery.meta import bounded_json as boundedjson
from machinery.meta.bounded_json import JsonError
from machinery.observability.logs import redacted
from machinery.product import NAME
from machinery.runtime.clock import Clock
from machinery.runtime.rate_limit import until_tick
from machinery.sanitize import plain

MAX_BODY = 64 * 1024
"""Bodies longer than this are left out, and the record says so."""
MAX_TEXT = 1024
SECRET_KINDS = frozenset(("Secret", "SecretList", "TokenRequest", "TokenReview", "TokenCredentialRequest"))
"""Kinds whose bodies may hold a secret under a name that says nothing of it."""
BODY_LEFT_OUT = f"{NAME}/body"
FLUSHED_WITHIN = timedelta(seconds=15)
"""How long the end of the process waits for the last records."""


class Auditor:
    """Nothing here waits, and nothing fails a request."""

    def __init__(
        self,
        policy: AuditPolicy,
        trails: Sequence[Trail],
        clock: Clock,
        *,
        strangers: Sequence[Trail] | None = None,
        numbering: Numbering | None = None,
    ) -> None:
        """`strangers`: trails of refusals of strangers; None: the same as for all other records.

        `numbering`: of the database's records, which may also be written in the transaction of a change.
        """
        self.numbering = numbering
        self._policy = policy
        self._ways = {False: tuple(trails), True: tuple(trails if strangers is None else strangers)}
        self._trails = tuple(dict.fromkeys(trail for way in self._ways.values() for trail in way))
        self._floods = Floods(clock)
        self.clock = clock

    async def open(self) -> None:
        """Raises MusterError when records could not be kept: the hub must not begin then."""
        for trail in self._trails:
            await trail.open()

    async def run(self) -> None:
        """Delivers for ever."""
        async with asyncio.TaskGroup() as group:
            for trail in self._trails:
                group.create_task(trail.run(), name="audit trail")
            while True:
                await asyncio.sleep(until_tick(PERIOD))
                self._summarize()

    def _summarize(self) -> None:
        for stranger, trails in self._ways.items():
            for record in self._floods.summaries(strangers=stranger):
                for trail in trails:
                    trail.offer(record)

    async def flush(self) -> None:
        """Returns when everything that was offered by now is kept. The caller bounds it."""
        self._summarize()
        await asyncio.gather(*(trail.flush() for trail in self._trails))

    async def finish(self) -> None:
        """Returns when everything that was offered is kept, or when that cannot be awaited any longer; `run` must still run."""
        self._summarize()
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSHED_WITHIN.total_seconds()):
                await asyncio.gather(*(trail.finish() for trail in self._trails))

    def verdict(self, actor: Actor, asked: Attributes) -> AuditVerdict:
        """What the policy says of a request by its real asker."""
        return self._policy.verdict(actor, asked)

    def offer(self, record: AuditRecord, *, stored: bool = False) -> None:
        """Keeps the record, or counts it where it repeats others. `stored`: it is in the database with what it changed."""
        stranger, kept = (False, record) if stored else self._floods.take(record)
        if kept is not None:
            for trail in self._ways[stranger]:
                if not stored or trail.numbering is not self.numbering:
                    trail.offer(kept)

    def entry(self, record: AuditRecord) -> AuditEntry | None:
        """The record for the database, to be written by the caller; other places get it now.

        None: it repeats others and is counted, or it goes to the database with the records that wait.
        """
        stranger, kept = self._floods.take(record)
        if kept is None:
            return None
        numbering = None if stranger else self.numbering
        for trail in self._ways[stranger]:
            if numbering is None or trail.numbering is not numbering:
                trail.offer(kept)
        return numbering.entry(kept) if numbering is not None else None

    def snapshot(self) -> list[dict[str, Any]]:
        return [trail.snapshot() for trail in self._trails]


def user_of(actor: Actor) -> User:
    return User(actor.user, actor.uid, tuple(actor.groups), actor.extra)


def reference_of(asked: Attributes, *, name: str = "", uid: str = "") -> ObjectReference | None:
    """The object that is asked about; None for a bare path. `name` and `uid` where only the answer tells them.

    Whoever asks, and be it without a credential, writes the rest: it is as bounded as his other words.
    """
    if not asked.resource:
        return None
    return ObjectReference(
        resource=short(asked.resource),
        namespace=short(asked.namespace),
        name=short(asked.name or asked.selected_name or name),
        uid=uid,
        api_group=short(asked.group),
        api_version=short(asked.version),
        subresource=short(asked.subresource),
    )


def body_of(content: bytes | None, notes: dict[str, str]) -> msgspec.Raw:
    """A JSON body for a record, without what looks like a secret; NO_BODY when it is none, and then `notes` says why."""
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
    """How a bearer token stands in a record."""
    return f"SHA256={sha256(token.encode(errors='surrogateescape')).hexdigest()}"


def short(text: str) -> str:
    """Text of a client: bounded, fit to be kept, and without what looks like a secret."""
    return str(redacted(plain(text[:MAX_TEXT])))
