"""Use cases about the CredentialIssuer: the state of its strategies, written only if it changes."""

from hub.api import credentialissuers as rules
from hub.api.credentialissuers import Strategy
from hub.api.meta.change import CREDENTIAL_ISSUERS, Key, StoredObject
from hub.api.objects.managed_fields import HUB_WRITER
from hub.ports import Transaction
from hub.registry.objects import service as objects

KEY = Key("", rules.NAME)


def find(tx: Transaction) -> StoredObject | None:
    return tx.objects.get(CREDENTIAL_ISSUERS, KEY)


def tell(tx: Transaction, strategy: Strategy, api_version: str, actor: str) -> bool:
    """Store the state of a strategy, and create the issuer if it is missing. Returns whether anything was written."""
    stored = find(tx)
    before = stored.document if stored else rules.new_issuer(api_version)
    after = rules.with_strategy(before, strategy, tx.now)
    if stored is not None and after == before:
        return False
    objects.put(tx, CREDENTIAL_ISSUERS, after, stored, actor, writer=HUB_WRITER)
    return True
