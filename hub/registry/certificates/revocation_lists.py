"""Revocation lists, one per CA; renewed when their content has changed or half of their validity has passed.

The first replica that needs a new list signs and stores it, so all replicas publish the same bytes. A certificate stays listed
until one list validity after its own end (RFC 5280, 3.3).
"""

from base64 import b64decode, b64encode
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any

import msgspec

from hub.api.revocations import listed_reason
from hub.ports import ListSigner, Transaction
from machinery.errors import NotFoundError
from machinery.pki import RevocationList, RevokedSerial

LIFETIME = timedelta(days=1)
"""From thisUpdate to nextUpdate."""
_decode = msgspec.json.Decoder(dict[str, Any]).decode


@dataclass(frozen=True, slots=True)
class Published:
    """The current list. `der`: signed."""

    authority: str
    number: int
    signed_at: datetime
    der: bytes


def standing(tx: Transaction, signer: ListSigner, authority: str) -> Published | None:
    """The list that may be published; None if `sign` is due. Raises NotFoundError for an unknown CA."""
    return _standing(tx, authority, _digest(_entries(tx, signer, authority)))


def sign(tx: Transaction, signer: ListSigner, authority: str) -> Published:
    """The list; a new one if the current one may not be published. Raises NotFoundError."""
    entries = _entries(tx, signer, authority)
    if (found := _standing(tx, authority, _digest(entries))) is not None:
        return found
    before = _kept(tx, authority)
    now = tx.now.replace(microsecond=0)
    # Higher than all earlier numbers, and different from that of a replica that signs at the same time.
    number = max(_micros(tx.now), 1 + (before.number if before else 0))
    der = signer.sign_list(authority, RevocationList(number, now, now + LIFETIME, entries))
    kept = {"number": number, "signed": now.timestamp(), "entries": _digest(entries), "der": b64encode(der).decode()}
    tx.facts.set(_fact(authority), msgspec.json.encode(kept).decode())
    return Published(authority, number, now, der)


def _standing(tx: Transaction, authority: str, entries: str) -> Published | None:
    kept = _kept(tx, authority)
    if kept is None or kept.entries != entries or not timedelta() <= tx.now - kept.signed_at < LIFETIME / 2:
        return None
    return Published(authority, kept.number, kept.signed_at, kept.der)


@dataclass(frozen=True, slots=True)
class _Kept:
    number: int
    signed_at: datetime
    entries: str
    der: bytes


def _kept(tx: Transaction, authority: str) -> _Kept | None:
    text = tx.facts.get(_fact(authority))
    if text is None:
        return None
    found = _decode(text)
    signed_at = datetime.fromtimestamp(found["signed"], tz=tx.now.tzinfo)
    return _Kept(int(found["number"]), signed_at, found["entries"], b64decode(found["der"]))


def _entries(tx: Transaction, signer: ListSigner, authority: str) -> tuple[RevokedSerial, ...]:
    known = tuple(signer.authorities)
    if authority not in known:
        raise NotFoundError(f'the hub has no CA "{authority}" that signs lists')
    oldest = known[0]
    return tuple(
        RevokedSerial(record.serial, record.revoked_at.replace(microsecond=0), listed_reason(record.revoked_reason))
        for record in tx.certificates.revoked(tx.now - LIFETIME)
        if record.revoked_at is not None and (record.signed_by or oldest) == authority
    )


def _digest(entries: tuple[RevokedSerial, ...]) -> str:
    told = "\n".join(f"{each.serial:x} {each.at.isoformat()} {each.reason}" for each in sorted(entries))
    return sha256(told.encode()).hexdigest()


def _fact(authority: str) -> str:
    return f"revocation-list/{authority}"


def _micros(moment: datetime) -> int:
    return int(moment.timestamp() * 1_000_000)
