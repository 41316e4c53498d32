"""Records about a restore: the restore itself, and revocations after the backup, from revocation lists."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec

from hub.api import restorations as rules
from hub.api.certificateauthorities.authority import AuthorityRecord
from hub.api.certificates import CertificateRecord, Purpose
from hub.api.restorations import Readopts, Restoration
from hub.api.revocations import Reason, recorded_reason
from hub.ports import Transaction
from hub.registry import revocations as revocation
from machinery import pki
from machinery.errors import InvalidError
from machinery.identity import ClusterName
from machinery.pki import RevokedSerial

ACTOR = "system:hub:restore"
MESSAGE = "A revocation list of after the backup, from which the hub was restored, names every certificate of it."


@dataclass(frozen=True, slots=True)
class RestoreOrder:
    """`made`: time of the backup; `lists`: revocation lists (DER or PEM) of the hub before the restore."""

    made: datetime
    readopts: Readopts = Readopts.AUTOMATIC
    lists: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Taken:
    """Result of one list. `revoked`: certificates valid in the backup; `unknown`: certificates signed after it."""

    authority: str
    at: datetime
    number: int
    revoked: int
    unknown: int


@dataclass(frozen=True, slots=True)
class RestoreOutcome:
    """State of the restored hub."""

    agents: int
    """Agents with a valid certificate."""
    credentials: int
    """Valid bootstrap credentials."""
    lists: tuple[Taken, ...]
    spent: tuple[ClusterName, ...]
    """Clusters whose certificates are all revoked by the lists."""


def restored(tx: Transaction, order: RestoreOrder) -> RestoreOutcome:
    """Record the restore and apply the lists. Raises InvalidError if no CA of this hub signed a list."""
    known = restorations(tx)
    kept = (*known, Restoration(order.made, tx.now, order.readopts))[-rules.KEPT :]
    tx.facts.set(rules.FACT, msgspec.json.encode([each.as_fact() for each in kept]).decode())
    touched = set[ClusterName]()
    taken = tuple(_take(tx, encoded, touched) for encoded in order.lists)
    return RestoreOutcome(
        agents=len(tx.authorities.held(Purpose.AGENT, tx.now)),
        credentials=sum(1 for each in tx.credentials.all() if each.revoked_at is None and each.expires_at > tx.now),
        lists=taken,
        spent=tuple(_revoke_spent(tx, touched)),
    )


def restorations(tx: Transaction) -> tuple[Restoration, ...]:
    """The hub's restores, oldest first."""
    text = tx.facts.get(rules.FACT)
    return rules.read(msgspec.json.decode(text)) if text else ()


def _take(tx: Transaction, encoded: bytes, touched: set[ClusterName]) -> Taken:
    content = pki.parse_list(encoded).content
    authority = next((each for each in tx.authorities.all() if pki.is_list_of(encoded, each.certificate)), None)
    if authority is None:
        raise InvalidError("a revocation list was not signed by any CA of this hub: give the lists that this hub has published")
    revoked = unknown = 0
    for entry in content.entries:
        record = tx.certificates.by_serial(entry.serial)
        if record is None:
            tx.certificates.add(_remembered(entry, authority))
            unknown += 1
        elif record.revoked_at is None:
            tx.certificates.revoke([entry.serial], tx.now, recorded_reason(entry.reason))
            touched.update((record.cluster,) if record.cluster is not None else ())
            revoked += 1
    return Taken(authority.signer, content.this_update, content.number, revoked, unknown)


def _remembered(entry: RevokedSerial, authority: AuthorityRecord) -> CertificateRecord:
    """Record of an unknown revoked certificate: it authorizes nothing and stays on the hub's own lists.

    Its end is unknown, so the record lasts as long as its CA.
    """
    return CertificateRecord(
        serial=entry.serial,
        purpose=Purpose.SERVING,
        user="",
        groups=(),
        not_before=entry.at,
        not_after=pki.parse_certificate(authority.certificate).not_after,
        key_hash="",
        issued_at=entry.at,
        revoked_at=entry.at,
        revoked_reason=recorded_reason(entry.reason),
        signed_by=authority.signer,
    )


def _revoke_spent(tx: Transaction, touched: set[ClusterName]) -> Iterator[ClusterName]:
    """Create Revocations for completely revoked clusters; otherwise older bootstrap credentials could register them again."""
    for name in sorted(cluster for cluster in touched if not _stands(tx, cluster)):
        spec = {"cluster": name, "reason": Reason.UNSPECIFIED.value, "message": MESSAGE}
        revocation.create(tx, f"{name}-restored-{tx.now:%Y%m%d%H%M%S}", spec, ACTOR)
        yield name


def _stands(tx: Transaction, cluster: ClusterName) -> bool:
    records: Sequence[CertificateRecord] = tx.certificates.of_cluster(cluster)
    return any(record.purpose is Purpose.AGENT and record.revoked_at is None for record in records)
