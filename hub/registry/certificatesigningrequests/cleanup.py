"""Removal of finished CertificateSigningRequests: due ones are found in a read, and removed in batches."""

from base64 import b64decode
from collections.abc import Sequence
from datetime import datetime

from hub.api.certificatesigningrequests.request import RequestRetention, removed_at
from hub.api.meta import document as doc
from hub.api.meta.change import REQUESTS, Key, Query, StoredObject
from hub.ports import Transaction
from hub.registry.certificatesigningrequests.service import remove
from machinery import pki
from machinery.errors import MusterError

REMOVED_AT_ONCE = 100


def due(tx: Transaction, ends: RequestRetention) -> Sequence[str]:
    """Names of the requests that are due for removal."""
    return [stored.key.name for stored in tx.objects.find(REQUESTS, Query()).items if _is_due(stored, ends, tx.now)]


def expire(tx: Transaction, names: Sequence[str], ends: RequestRetention, actor: str) -> int:
    """Remove the given requests that are still due; return their number."""
    tx.objects.read_ahead(REQUESTS, [Key("", name) for name in names])
    found = [stored for stored in (tx.objects.get(REQUESTS, Key("", name)) for name in names) if stored is not None]
    gone = [stored for stored in found if _is_due(stored, ends, tx.now)]
    for stored in gone:
        remove(tx, stored, actor)
    return len(gone)


def _is_due(stored: StoredObject, ends: RequestRetention, now: datetime) -> bool:
    return now >= removed_at(stored.document, ends, _not_after(stored))


def _not_after(stored: StoredObject) -> datetime | None:
    """End of the certificate; None without a readable one."""
    chain = doc.mapping(stored.document, "status").get("certificate")
    if not chain:
        return None
    try:
        return pki.parse_certificate(b64decode(str(chain))).not_after
    except (ValueError, MusterError):
        return None
