"""Writes and removes ServiceAccounts and Leases, except the Lease of a cluster, which the hub computes from the heartbeat."""

from typing import Any

from hub.api import clusterroles as default_roles
from hub.api.meta import document as doc
from hub.api.meta.change import LEASES, SERVICE_ACCOUNTS
from hub.ports import Transaction, Written
from hub.registry.bootstrapcredentials import service as credentials
from hub.registry.generic import objects
from machinery.meta.objects import Key, StoredObject


def put_lease(tx: Transaction, new: dict[str, Any], old: StoredObject | None, actor: str) -> Written:
    """Create the Lease `new` (`old` None), or replace `old` by it. Raises AlreadyExistsError, ConflictError."""
    return objects.write(tx, LEASES, doc.typed(new, "coordination.k8s.io/v1", "Lease"), old, actor)


def remove_lease(tx: Transaction, old: StoredObject, actor: str) -> Written:
    return tx.objects.delete(LEASES, old, actor)


ACCOUNT_DELETED = "ServiceAccountDeleted"
BOOTSTRAP_ACCOUNT = Key(default_roles.BOOTSTRAP_ACCOUNT["namespace"], default_roles.BOOTSTRAP_ACCOUNT["name"])
"""Namespace and name of OCM's ServiceAccount, with whose tokens clusters join."""


def put_account(tx: Transaction, new: dict[str, Any], old: StoredObject | None, actor: str) -> Written:
    """Create the ServiceAccount `new` (`old` None), or replace `old` by it. Raises AlreadyExistsError, ConflictError."""
    if old is not None and doc.is_deleting(new):
        _revoke_logins(tx, old, actor)
    return objects.put(tx, SERVICE_ACCOUNTS, new, old, actor)


def remove_account(tx: Transaction, old: StoredObject, actor: str) -> Written:
    """Delete the account, or set its deletionTimestamp while finalizers remain. In both cases its tokens and logins end."""
    _revoke_logins(tx, old, actor)
    return objects.remove(tx, SERVICE_ACCOUNTS, old, actor)


def _revoke_logins(tx: Transaction, account: StoredObject, actor: str) -> None:
    if account.key == BOOTSTRAP_ACCOUNT:
        credentials.revoke_of_account(tx, account.uid, actor, ACCOUNT_DELETED)
    given = tx.certificates.of_account(account.uid)
    ended = [record.serial for record in given if record.revoked_at is None and record.not_after > tx.now]
    if ended:
        tx.certificates.revoke(ended, tx.now, ACCOUNT_DELETED)
