"""JWTAuthenticator, WebhookAuthenticator and CredentialIssuer, modelled on Pinniped's, and operators' logins."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from hub.api import credentialissuers as issuer_rules
from hub.api.certificates import CertificateHolder, IssuedCertificate, Lifetimes, Profile, Purpose
from hub.api.credentialissuers import Strategy
from hub.api.logins import KINDS, RESERVED, AuthenticatorConfig, Login, Reference, authorities_of, read_authenticator
from hub.api.managed_fields import HUB_WRITER
from hub.api.meta import document as doc
from hub.api.meta.change import CREDENTIAL_ISSUERS, JWT_AUTHENTICATORS, WEBHOOK_AUTHENTICATORS, Kind
from hub.ports import Transaction
from hub.ports.identities import Issuer
from hub.registry import certificates
from hub.registry.generic import declared, objects
from hub.registry.generic.definition import ResourceDefinition
from machinery import pki
from machinery.apiserver.resource import TableRow
from machinery.errors import Cause, InvalidError, forbidden, invalid_value
from machinery.identity import CredentialId
from machinery.meta.conditions import Condition
from machinery.meta.objects import Document, Key, StoredObject
from machinery.meta.urls import https_url_error


def authenticator(tx: Transaction, reference: Reference) -> AuthenticatorConfig | None:
    """Return the authenticator's configuration; None if it does not exist. Raises InvalidError if it cannot be parsed."""
    kind = KINDS.get(reference.kind)
    stored = tx.objects.get(kind, Key("", reference.name)) if kind is not None else None
    return None if stored is None else read_authenticator(reference.kind, stored.document)


def admit(tx: Transaction, login: Login, public_key: bytes, issuer: Issuer, lifetimes: Lifetimes) -> IssuedCertificate:
    """Record and sign a login's client certificate over `public_key` (DER SubjectPublicKeyInfo).

    Raises InvalidError for an unusable key.
    """
    profile = Profile(
        purpose=Purpose.LOGIN,
        subject=login.subject,
        public_key=public_key,
        not_before=tx.now - lifetimes.backdate,
        not_after=tx.now + lifetimes.login,
    )
    account = CredentialId(login.account) if login.account is not None else None
    return certificates.sign(tx, issuer, profile, CertificateHolder(credential=account))


def write_status(
    tx: Transaction, kind: Kind, name: str, conditions: Sequence[Condition], *, seen: Mapping[str, Any], actor: str
) -> None:
    """Update an authenticator's status. Writes nothing if nothing changes, or if there is no such authenticator.

    `seen`: new values of status fields other than conditions.
    """
    stored = tx.objects.get(kind, Key("", name))
    if stored is None:
        return
    new: dict[str, Any] = doc.with_status(stored.document, **seen)
    for condition in conditions:
        new = doc.with_status_condition(new, condition, tx.now)
    if doc.differs(new, stored.document):
        objects.put(tx, kind, new, stored, actor, generations=True, writer=HUB_WRITER)


ISSUER_KEY = Key("", issuer_rules.NAME)


def find_credential_issuer(tx: Transaction) -> StoredObject | None:
    return tx.objects.get(CREDENTIAL_ISSUERS, ISSUER_KEY)


def record_strategy(tx: Transaction, strategy: Strategy, api_version: str, actor: str) -> bool:
    """Store the state of a strategy in the CredentialIssuer; create it if missing. Returns whether anything was written."""
    stored = find_credential_issuer(tx)
    created = {"apiVersion": api_version, "kind": "CredentialIssuer", "metadata": {"name": issuer_rules.NAME}}
    before = stored.document if stored else created
    strategies = issuer_rules.merge(doc.sequence(before, "status", "strategies"), strategy.as_document(tx.now))
    after = doc.with_status(before, strategies=strategies)
    if stored is not None and after == before:
        return False
    objects.put(tx, CREDENTIAL_ISSUERS, after, stored, actor, writer=HUB_WRITER)
    return True


def _violations(new: Document, _old: Document | None) -> Iterator[Cause]:
    spec, claims = doc.mapping(new, "spec"), doc.mapping(new, "spec", "claims")
    for field in ("issuer", "endpoint"):
        if field in spec and (error := https_url_error(spec[field])) is not None:
            yield invalid_value(f"spec.{field}", spec[field], f"must be an https:// address: {error}")
    try:
        if bundle := authorities_of(new):
            pki.parse_chain(bundle)
    except InvalidError as error:
        yield Cause("FieldValueInvalid", f"Invalid value: {error.message}", "spec.tls.certificateAuthorityData")
    for index, group in enumerate(doc.sequence(new, "spec", "operatorGroups")):
        if str(group).startswith(RESERVED):
            yield forbidden(f"spec.operatorGroups[{index}]", f'the hub drops groups that begin with "{RESERVED}"')
    for name in ("usernamePrefix", "groupsPrefix"):
        if str(claims.get(name) or "").startswith(RESERVED):
            yield forbidden(f"spec.claims.{name}", f'the hub accepts no name that begins with "{RESERVED}"')


def _strategy(field: str) -> Callable[[TableRow], str]:
    """Returns a table cell with a field of the preferred strategy."""
    return lambda row: next((str(each.get(field) or "") for each in doc.sequence(row.document, "status", "strategies")), "")


JWT_AUTHENTICATOR = ResourceDefinition(declared(JWT_AUTHENTICATORS, validate=_violations))
WEBHOOK_AUTHENTICATOR = ResourceDefinition(declared(WEBHOOK_AUTHENTICATORS, validate=_violations))
_STRATEGY_FIELDS = ("type", "status", "reason", "signer", "message")
CREDENTIAL_ISSUER = ResourceDefinition(
    declared(
        CREDENTIAL_ISSUERS,
        {"Strategy" if field == "type" else field.capitalize(): _strategy(field) for field in _STRATEGY_FIELDS},
    )
)
