"""What is remembered of a request, and the chain that remembered records form.

A record is an event of Kubernetes' `audit.k8s.io/v1`, as JSON. Each replica links its own: a link carries its place in the
chain and the hash of the link before it, and its own hash covers both and the record's bytes. So whoever changes, removes or
reorders links breaks the chain where he did it. What a chain cannot show by itself: links cut off at its end, and a chain that
was calculated anew from some link to its end. Both show to whoever has noted an earlier head elsewhere (`Head`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from hashlib import sha256
from typing import Any

import msgspec

GENESIS = "0" * 64
"""What the first link of a chain has for the hash of the one before."""


class Level(StrEnum):
    """How much is remembered: each includes the one before."""

    NONE = "None"
    METADATA = "Metadata"
    REQUEST = "Request"
    REQUEST_RESPONSE = "RequestResponse"


class Stage(StrEnum):
    """Where the request stood. DROPPED is ours: it stands for records that found no room."""

    RESPONSE_STARTED = "ResponseStarted"
    RESPONSE_COMPLETE = "ResponseComplete"
    PANIC = "Panic"
    DROPPED = "Dropped"


class User(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who asked."""

    username: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = {}


class ObjectReference(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """What was asked about."""

    resource: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    api_group: str = ""
    api_version: str = ""
    subresource: str = ""


class ResponseStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """How it was answered: the HTTP code (on the agents' door the one that fits), and the reason of a refusal."""

    code: int
    reason: str = ""


class Dropped(msgspec.Struct, frozen=True):
    """Records that found no room between two instants."""

    count: int
    first: datetime
    last: datetime


_NAMES = {
    "audit_id": "auditID",
    "request_uri": "requestURI",
    "impersonated_user": "impersonatedUser",
    "source_ips": "sourceIPs",
    "user_agent": "userAgent",
    "object_ref": "objectRef",
    "response_status": "responseStatus",
    "request_object": "requestObject",
    "response_object": "responseObject",
    "received": "requestReceivedTimestamp",
    "at": "stageTimestamp",
}


class Record(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, rename=_NAMES):
    """One record. Bodies are JSON bytes; no field ever holds a credential."""

    level: Level
    audit_id: str = ""
    stage: Stage
    request_uri: str = ""
    verb: str = ""
    user: User | None = None
    impersonated_user: User | None = None
    source_ips: tuple[str, ...] = ()
    user_agent: str = ""
    object_ref: ObjectReference | None = None
    response_status: ResponseStatus | None = None
    request_object: msgspec.Raw | None = None
    response_object: msgspec.Raw | None = None
    received: datetime | None = None
    at: datetime
    dropped: Dropped | None = None
    annotations: Mapping[str, str] = {}


_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Head:
    """The last link of a chain; sequence 0: there is none yet."""

    sequence: int = 0
    hash: str = GENESIS


@dataclass(frozen=True, slots=True)
class Fields:
    """What records are found by. `resource` is the plain one, without group and subresource."""

    user: str = ""
    verb: str = ""
    resource: str = ""
    namespace: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Link:
    """A record at its place in a replica's chain. `fields` and `at` repeat what the document says."""

    replica: str
    sequence: int
    previous: str
    hash: str
    at: datetime
    fields: Fields
    document: bytes

    @property
    def head(self) -> Head:
        return Head(self.sequence, self.hash)


def fields_of(record: Record) -> Fields:
    """What the record is found by: the real asker, also where another was impersonated."""
    reference = record.object_ref or ObjectReference()
    user = record.user.username if record.user else ""
    return Fields(user, record.verb, reference.resource, reference.namespace, reference.name)


def link_hash(replica: str, sequence: int, previous: str, document: bytes) -> str:
    """SHA-256, as hex, over the link's place, the hash before it and the record's bytes."""
    digest = sha256(f"{replica}\n{sequence}\n{previous}\n".encode())
    digest.update(document)
    return digest.hexdigest()


def linked(replica: str, head: Head, record: Record) -> Link:
    """The record as the link after `head`."""
    document, sequence = _encode(record), head.sequence + 1
    hashed = link_hash(replica, sequence, head.hash, document)
    return Link(replica, sequence, head.hash, hashed, record.at, fields_of(record), document)


def named(at: datetime, replica: str, sequence: int) -> str:
    """A record's name on the API: names sort by time. `20261121t210314.123456z-<replica>-<sequence>`."""
    return f"{at:%Y%m%dt%H%M%S.%fz}-{replica}-{sequence:012}"


@dataclass(frozen=True, slots=True)
class Breach:
    """A place where a chain does not hold, and why."""

    replica: str
    sequence: int
    what: str

    def __str__(self) -> str:
        return f"replica {self.replica}, link {self.sequence}: {self.what}"


@dataclass(slots=True)
class Verification:
    """Looks at the links of one chain in the order of their sequence. After a breach it goes on from what is there.

    `anchor` is the last link that was removed because of its age; `expected` are links that somebody has noted. Without an
    anchor a chain begins with link 1, unless it is only a `part` of one, such as a file that was rotated.
    """

    replica: str
    anchor: Head = field(default_factory=Head)
    expected: Mapping[int, str] = field(default_factory=dict)
    part: bool = False
    count: int = 0
    dropped: int = 0
    head: Head = field(init=False)
    _met: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.head = self.anchor

    def take(self, link: Link) -> Iterator[Breach]:
        """The breaches that the next link shows. Links count as they are read: consume the iterator."""
        if self.part and not self.count:
            self.head = Head(link.sequence - 1, link.previous)
        yield from (Breach(self.replica, link.sequence, what) for what in self._wrong(link))
        if link.sequence in self.expected:
            self._met.add(link.sequence)
        self.count += 1
        self.head = link.head

    def end(self) -> Iterator[Breach]:
        """What only the end shows: links that were noted elsewhere and are not here."""
        for sequence in sorted(set(self.expected) - self._met):
            if sequence > self.anchor.sequence:
                yield Breach(self.replica, sequence, "is noted as a link of this chain and is missing: the chain was cut short")

    def _wrong(self, link: Link) -> Iterator[str]:
        if link.sequence > self.head.sequence + 1:
            yield f"links {self.head.sequence + 1} to {link.sequence - 1} before it are missing"
        elif link.sequence <= self.head.sequence:
            yield f"comes again after link {self.head.sequence}"
        elif link.previous != self.head.hash:
            yield "does not continue the link before it"
        if link.hash != link_hash(link.replica, link.sequence, link.previous, link.document):
            yield "was changed: its hash is not that of its content"
        elif not self._says_the_same(link):
            yield "was changed: what it is found by is not what its record says"
        if self.expected.get(link.sequence, link.hash) != link.hash:
            yield "is not the one that was noted: the chain was calculated anew"

    def _says_the_same(self, link: Link) -> bool:
        record = read_record(link.document)
        if record is None:
            return False
        self.dropped += record.dropped.count if record.dropped else 0
        return (fields_of(record), record.at) == (link.fields, link.at)


def read_record(document: bytes) -> Record | None:
    """The record in the bytes; None when they hold none."""
    try:
        return _decode(document)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


_decode = msgspec.json.Decoder(Record).decode


@dataclass(frozen=True, slots=True)
class Place:
    """Where a record stands among all of them: ordered by time, then by chain."""

    at: datetime
    replica: str
    sequence: int


@dataclass(frozen=True, slots=True)
class AuditQuery:
    """Which records: `equal` and `unequal` are values by field (`user`, `verb`, ...); `since` and `until` are inclusive."""

    equal: tuple[tuple[str, str], ...] = ()
    unequal: tuple[tuple[str, str], ...] = ()
    since: datetime | None = None
    until: datetime | None = None
    after: Place | None = None
    limit: int | None = None


def selects(query: AuditQuery, link: Link) -> bool:
    """Whether the query's fields and times choose the link."""
    values: dict[str, Any] = {name: getattr(link.fields, name) for name in Fields.__slots__}
    return (
        all(values[name] == value for name, value in query.equal)
        and all(values[name] != value for name, value in query.unequal)
        and (query.since is None or link.at >= query.since)
        and (query.until is None or link.at <= query.until)
    )
