"""JWTAuthenticator, WebhookAuthenticator and CredentialIssuer, modelled on Pinniped's, and operators' logins."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from hub.api import credentialissuers as issuer_rules
from hub.api.certificates import CertificateHolder, IssuedCertificate, Lifetimes, Profile, Purpose
from hub.api.credentialissuers import Strategy
from hub.api.logins import (
    JWT,
    KINDS,
    RESERVED,
    WEBHOOK,
    AuthenticatorConfig,
    Login,
    Reference,
    authorities_of,
    read_authenticator,
)
from hub.api.managed_fields import HUB_WRITER
from hub.api.meta import document as doc
from hub.api.meta.change import CREDENTIAL_ISSUERS, Kind
from hub.ports import Transaction
from hub.ports.identities import Issuer
from hub.registry import certificates
from hub.registry.generic import objects
from hub.registry.generic.definition import ResourceDefinition
from hub.registry.generic.schemas import (
    CONDITIONS,
    MOMENT,
    NAME,
    OBSERVED_GENERATION,
    TEXT,
    Schema,
    cell,
    described,
    listing,
    record,
)
from machinery import pki
from machinery.apiserver.resource import AGE, STATUS, Column, Resource, TableRow
from machinery.errors import Cause, InvalidError, forbidden, invalid_value
from machinery.identity import CredentialId
from machinery.meta.conditions import Condition
from machinery.meta.objects import Document, Key, StoredObject
from machinery.meta.urls import https_url_error
from machinery.product import NAME as PRODUCT


def authenticator(tx: Transaction, reference: Reference) -> AuthenticatorConfig | None:
    """The authenticator's configuration; None if it does not exist. Raises InvalidError if it cannot be parsed."""
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


def write_status(
    tx: Transaction, kind: Kind, name: str, conditions: Sequence[Condition], *, seen: Mapping[str, Any], actor: str
) -> None:
    """Update an authenticator's status if it differs. `seen`: status fields other than conditions."""
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
    """Store the state of a strategy, and create the issuer if it is missing. Returns whether anything was written."""
    stored = find_credential_issuer(tx)
    created = {"apiVersion": api_version, "kind": "CredentialIssuer", "metadata": {"name": issuer_rules.NAME}}
    before = stored.document if stored else created
    strategies = issuer_rules.merge(doc.sequence(before, "status", "strategies"), strategy.as_document(tx.now))
    after = doc.with_status(before, strategies=strategies)
    if stored is not None and after == before:
        return False
    objects.put(tx, CREDENTIAL_ISSUERS, after, stored, actor, writer=HUB_WRITER)
    return True


_ADDRESS = {**NAME, "maxLength": 2048}
_TLS = record(
    "How the server's certificate is verified.",
    certificateAuthorityData=described(TEXT, "Base64 of the CAs in PEM; empty: the CAs of the hub's machine."),
)
_OPERATORS = listing(
    NAME,
    description="Groups, after the mapping, whose members become system:masters, which no token can claim by itself. "
    "Setting it requires the right to impersonate all users and groups, as does every change of this object.",
)
_CLAIMS = record(
    "Claims that name the user.",
    username=described(TEXT, "The claim with the user name; sub by default. An unverified email is rejected."),
    usernamePrefix={**TEXT, "maxLength": 128, "description": "Put before the user name."},
    groups=described(TEXT, "The claim that lists the groups; groups by default."),
    groupsPrefix={**TEXT, "maxLength": 128, "description": "Put before each group."},
)
_CONDITIONS = (
    "conditions: Ready and TLSConfigurationValid; of a JWTAuthenticator IssuerURLValid, DiscoveryURLValid and JWKSFetchValid; "
    "of a WebhookAuthenticator EndpointURLValid and WebhookConnectionValid."
)
_STATUS = record(
    "Result of the hub's last check.",
    phase={**TEXT, "enum": ["Pending", "Ready", "Error"], "description": "Summary of the conditions."},
    conditions=described(CONDITIONS, _CONDITIONS),
    observedGeneration=OBSERVED_GENERATION,
)
JWT_SCHEMA = record(
    "JWTAuthenticator lets operators exchange tokens of an OpenID Connect issuer for certificates. Signatures are verified "
    "with the issuer's keys; RS, PS and ES algorithms.",
    ("spec",),
    spec=record(
        "The issuer, and how its tokens name users.",
        ("issuer", "audience"),
        issuer=described(_ADDRESS, "The issuer's https:// URL: the claim iss, and the base of its configuration."),
        audience=described(NAME, "Required audience of the tokens (aud)."),
        claims=_CLAIMS,
        requiredClaims={
            "type": "object",
            "additionalProperties": TEXT,
            "description": "Required claims, with exactly these values.",
        },
        tls=_TLS,
        operatorGroups=_OPERATORS,
    ),
    status=_STATUS,
)
WEBHOOK_SCHEMA = record(
    "WebhookAuthenticator lets operators exchange tokens that a webhook verifies. The hub posts a TokenReview (v1) to it.",
    ("spec",),
    spec=record(
        "The webhook.",
        ("endpoint",),
        endpoint=described(_ADDRESS, "The webhook's https:// URL."),
        tls=_TLS,
        operatorGroups=_OPERATORS,
    ),
    status=_STATUS,
)


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


_PHASES = "Pending, Ready or Error."


def _authenticator(kind: str, schema: Schema, *columns: Column) -> ResourceDefinition:
    return ResourceDefinition(
        Resource(
            group="login",
            version="v1alpha1",
            name=f"{kind.lower()}s",
            kind=kind,
            categories=(PRODUCT, f"{PRODUCT}-authenticators"),
            schema=schema,
            validate=_violations,
            subresources=(STATUS,),
            columns=(*columns, Column("Status", cell("status", "phase", absent="Pending"), description=_PHASES), AGE),
            counts_generations=True,
        )
    )


JWT_AUTHENTICATOR = _authenticator(
    JWT,
    JWT_SCHEMA,
    Column("Issuer", cell("spec", "issuer"), description="Issuer of the tokens."),
    Column("Audience", cell("spec", "audience"), description="Required audience of the tokens."),
)
WEBHOOK_AUTHENTICATOR = _authenticator(
    WEBHOOK, WEBHOOK_SCHEMA, Column("Endpoint", cell("spec", "endpoint"), description="The webhook.")
)


_REACHED = record(
    "The cluster that accepts the credential, from kube-public/cluster-info.",
    server=described(TEXT, "URL of its API server."),
    certificateAuthorityData=described(TEXT, "PEM of what verifies it, in base64."),
)
_FRONTEND = record(
    "How a client gets a credential.",
    ("type",),
    type=described(TEXT, "TokenCredentialRequestAPI."),
    tokenCredentialRequestInfo=_REACHED,
)
_STRATEGY = record(
    "A way to sign logins.",
    ("type", "status", "reason"),
    type=described(TEXT, "KubeClusterSigningCertificate: by the CA that the controller-manager signs with."),
    status={**TEXT, "enum": ["Success", "Error"], "description": "Whether it works."},
    reason=described(TEXT, "FetchedKey, CouldNotFetchKey, CouldNotGetClusterInfo."),
    message=described(TEXT, "Details for people."),
    lastUpdateTime=described(MOMENT, "When this state was found."),
    signer=described(TEXT, "The CA, as records of certificates name it."),
    frontend=_FRONTEND,
)
ISSUER_SCHEMA = record(
    "CredentialIssuer shows how the CA of the hub's own Kubernetes cluster signs logins.",
    status=record(
        "The state.", strategies=listing(_STRATEGY, "type", description="Those that clients should prefer come first.")
    ),
)


def _strategy(field: str) -> Callable[[TableRow], str]:
    """Returns a table cell with a field of the preferred strategy."""
    return lambda row: next((str(each.get(field) or "") for each in doc.sequence(row.document, "status", "strategies")), "")


_ISSUER_COLUMNS = (
    Column("Strategy", _strategy("type"), description="The strategy that clients should prefer."),
    Column("Status", _strategy("status"), description="Success or Error."),
    Column("Reason", _strategy("reason"), description="Reason of the status."),
    Column("Signer", _strategy("signer"), description="The CA.", priority=1),
    Column("Message", _strategy("message"), description="Description of the status.", priority=1),
    AGE,
)


CREDENTIAL_ISSUER = ResourceDefinition(
    Resource(
        group="hub",
        version="v1alpha1",
        name="credentialissuers",
        kind="CredentialIssuer",
        schema=ISSUER_SCHEMA,
        subresources=(STATUS,),
        columns=_ISSUER_COLUMNS,
    )
)
