"""The chain that remembered records form, and how it is verified.

Each replica links its own records: a link carries its place in the chain and the hash of the link before it, and its own hash
covers both and the record's bytes. So whoever changes, removes or reorders links breaks the chain where he did it. What a chain
cannot show by itself: links cut off at its end, and a chain that was calculated anew from some link to its end. Both show to
whoever has noted an earlier head elsewhere.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from typing import Any

from hub.domain.audit import Fields, Record, fields_of, plain_record, read_record, written_record

GENESIS = "0" * 64
"""What the first link of a chain has for the hash of the one before."""


@dataclass(frozen=True, slots=True)
class Head:
    """The last link of a chain; sequence 0: there is none yet."""

    sequence: int = 0
    hash: str = GENESIS


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

    def moved(self, replica: str, head: Head) -> "Link":
        """The same record as the link after `head` in another chain."""
        sequence = head.sequence + 1
        hashed = link_hash(replica, sequence, head.hash, self.document)
        return Link(replica, sequence, head.hash, hashed, self.at, self.fields, self.document)

    @property
    def head(self) -> Head:
        return Head(self.sequence, self.hash)


def link_hash(replica: str, sequence: int, previous: str, document: bytes) -> str:
    """SHA-256, as hex, over the link's place, the hash before it and the record's bytes."""
    digest = sha256(f"{replica}\n{sequence}\n{previous}\n".encode())
    digest.update(document)
    return digest.hexdigest()


def linked(replica: str, head: Head, record: Record) -> Link:
    """The record as the link after `head`. Never fails, whatever clients wrote into it."""
    record = plain_record(record)
    document, sequence = written_record(record), head.sequence + 1
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
