"""ServiceAccounts: the kind's only write path. Logins with their tokens are revoked in the same transaction."""

from typing import Any

from hub.api.meta import document as doc
from hub.api.meta.change import SERVICE_ACCOUNTS
from hub.ports import Transaction, Written
from hub.registry.generic import objects
from machinery.meta.objects import StoredObject

GONE = "ServiceAccountDeleted"


def put(tx: Transaction, new: dict[str, Any], old: StoredObject | None, actor: str) -> Written:
    """Raises AlreadyExistsError, ConflictError."""
    if old is not None and doc.is_deleting(new):
        _revoke_logins(tx, old)
    return objects.put(tx, SERVICE_ACCOUNTS, new, old, actor)


def remove(tx: Transaction, old: StoredObject, actor: str) -> Written:
    """Delete, or mark as deleting while finalizers remain. In both cases its tokens are no longer accepted."""
    _revoke_logins(tx, old)
    return objects.remove(tx, SERVICE_ACCOUNTS, old, actor)


def _revoke_logins(tx: Transaction, account: StoredObject) -> None:
    given = tx.certificates.of_account(account.uid)
    ended = [record.serial for record in given if record.revoked_at is None and record.not_after > tx.now]
    if ended:
        tx.certificates.revoke(ended, tx.now, GONE)
