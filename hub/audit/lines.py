"""Links as lines of JSON: the record, as Kubernetes' tools read it, with its place in the chain before it."""

import msgspec

from hub.domain.audit import fields_of, read_record
from hub.domain.chain import Link


class _Chain(msgspec.Struct, frozen=True):
    replica: str
    sequence: int
    previous: str
    hash: str


class _Opening(msgspec.Struct, frozen=True):
    chain: _Chain


def line_of(link: Link) -> bytes:
    """One line, its end included."""
    opening = msgspec.json.encode(_Opening(_Chain(link.replica, link.sequence, link.previous, link.hash)))
    return opening[:-1] + b"," + link.document[1:] + b"\n"


def link_of(line: bytes) -> Link | None:
    """The link that `line_of` wrote; None when it is no such line, or was torn."""
    opening, cut, rest = line.rstrip(b"\n").partition(b"},")
    document = b"{" + rest
    record = read_record(document) if cut else None
    if record is None:
        return None
    try:
        chain = msgspec.json.decode(opening + b"}}", type=_Opening).chain
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return Link(chain.replica, chain.sequence, chain.previous, chain.hash, record.at, fields_of(record), document)
