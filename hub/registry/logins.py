"""Use cases about operators' logins: short-lived certificates for users that an authenticator has named."""

from collections.abc import Mapping, Sequence
from typing import Any

from hub.api import credentialissuers as rules
from hub.api.certificates import CertificateHolder, IssuedCertificate, Lifetimes, Profile, Purpose
from hub.api.credentialissuers import Strategy
from hub.api.logins import KINDS, AuthenticatorConfig, Login, Reference, read_authenticator
from hub.api.meta import document as doc
from hub.api.meta.change import CREDENTIAL_ISSUERS, Kind
from hub.api.objects.managed_fields import HUB_WRITER
from hub.ports import Issuer, Transaction
from hub.registry.certificates import service as certificates
from hub.registry.generic import objects
from machinery.identity import CredentialId
from machinery.meta.conditions import Condition
from machinery.meta.objects import Key, StoredObject


def authenticator(tx: Transaction, reference: Reference) -> AuthenticatorConfig | None:
    """The authenticator's configuration; None if it does not exist. Raises InvalidError if it is unusable."""
    kind = KINDS.get(reference.kind)
    stored = tx.objects.get(kind, Key("", reference.name)) if kind is not None else None
    return None if stored is None else read_authenticator(reference.kind, stored.document)


def admit(tx: Transaction, login: Login, public_key: bytes, issuer: Issuer, lifetimes: Lifetimes) -> IssuedCertificate:
    """Record and sign a client certificate over `public_key` (DER SubjectPublicKeyInfo)."""
    profile = Profile(
        purpose=Purpose.LOGIN,
        subject=login.subject,
        public_key=public_key,
        not_before=tx.now - lifetimes.backdate,
        not_after=tx.now + lifetimes.login,
    )
    account = CredentialId(login.account) if login.account is not None else None
    return certificates.sign(tx, issuer, profile, CertificateHolder(credential=account))


def describe(
    tx: Transaction, kind: Kind, name: str, conditions: Sequence[Condition], *, seen: Mapping[str, Any], actor: str
) -> None:
    """Update an authenticator's status if it changes. `seen`: status fields other than conditions."""
    stored = tx.objects.get(kind, Key("", name))
    if stored is None:
        return
    new: dict[str, Any] = doc.with_status(stored.document, **seen)
    for condition in conditions:
        new = doc.with_status_condition(new, condition, tx.now)
    if doc.differs(new, stored.document):
        objects.put(tx, kind, new, stored, actor, generations=True, writer=HUB_WRITER)


ISSUER_KEY = Key("", rules.NAME)


def find_credential_issuer(tx: Transaction) -> StoredObject | None:
    return tx.objects.get(CREDENTIAL_ISSUERS, ISSUER_KEY)


def record_strategy(tx: Transaction, strategy: Strategy, api_version: str, actor: str) -> bool:
    """Store the state of a strategy, and create the issuer if it is missing. Returns whether anything was written."""
    stored = find_credential_issuer(tx)
    before = stored.document if stored else rules.new_issuer(api_version)
    after = rules.with_strategy(before, strategy, tx.now)
    if stored is not None and after == before:
        return False
    objects.put(tx, CREDENTIAL_ISSUERS, after, stored, actor, writer=HUB_WRITER)
    return True
