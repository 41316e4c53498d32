"""Authentication of bootstrap tokens: finds the credential of a token and notifies listeners of revocations.

The hub stores only hashes and compares them in constant time. Every authentication reads the database, so a revocation takes
effect immediately. The remaining uses are checked when a cluster's name is admitted.
"""

import hmac
from collections.abc import Callable
from datetime import datetime

from hub.access.revocation_poller import FAR, OVERLAP, RevocationPoller
from hub.api import bootstrapcredentials as credential_rules
from hub.api.bootstrapcredentials import CredentialRecord
from hub.ports import Store, Transaction
from machinery.errors import EndedCredentialError, UnauthorizedError
from machinery.identity import CredentialId

WRONG = "invalid bearer token"


class BootstrapTokens:
    """Finds credentials by token. One per process."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._poller = RevocationPoller(store, "revoked bootstrap credentials cannot be read")
        self._since: datetime | None = None
        """Database time from which the next read starts, unless it is a far read."""
        self._seen: set[CredentialId] = set()
        self._listeners: set[Callable[[CredentialId], None]] = set()

    async def identify(self, token: str) -> CredentialRecord | None:
        """Returns the credential; None: not a bootstrap token. Raises UnauthorizedError (wrong or ended), UnavailableError."""
        credential = credential_rules.token_id(token)
        if credential is None:
            return None
        record, now = await self._store.read(_find, credential)
        known = record.token_hash if record is not None else None
        fits = hmac.compare_digest(known or "", credential_rules.token_hash(token))
        if record is None or not fits:
            raise UnauthorizedError(WRONG)
        if why := credential_rules.end_reason(record, now):
            raise EndedCredentialError(why)
        return record

    def listen(self, listener: Callable[[CredentialId], None]) -> Callable[[], None]:
        """Calls `listener` with the id of each revoked credential. Returns a function that removes the listener."""
        self._listeners.add(listener)
        return lambda: self._listeners.discard(listener)

    async def run(self) -> None:
        await self._poller.run(self.poll)

    async def poll(self, *, far: bool = False) -> None:
        """Reads the revocations since the last read; with `far`, those of the last 7 days (`FAR`). Raises UnavailableError."""
        since = None if far else self._since
        now, revoked = await self._store.look(_revoked_since, since)
        self._since = now - OVERLAP
        new = [credential for credential in revoked if credential not in self._seen]
        self._seen = set(revoked) if since is None else self._seen.union(new)
        for credential in new:
            for listener in tuple(self._listeners):
                listener(credential)


def _find(tx: Transaction, credential: CredentialId) -> tuple[CredentialRecord | None, datetime]:
    return tx.credentials.by_id(credential), tx.now


def _revoked_since(tx: Transaction, since: datetime | None) -> tuple[datetime, tuple[CredentialId, ...]]:
    return tx.now, tuple(tx.credentials.revoked_since(tx.now - FAR if since is None else since))
