"""JWTAuthenticator, WebhookAuthenticator and CredentialIssuer, modelled on Pinniped's: how tokens become certificates."""

from collections.abc import Sequence

from hub.api.logins import JWT, RESERVED, WEBHOOK, authorities_of
from hub.api.meta import document as doc
from hub.registry.generic.definition import ResourceDefinition
from hub.registry.generic.schemas import CONDITIONS, MOMENT, NAME, TEXT, Schema, cell, described, listing, record
from machinery import pki
from machinery.apiserver.resource import AGE, STATUS, Column, Resource, TableRow
from machinery.errors import Cause, InvalidError, forbidden, invalid_value
from machinery.meta.objects import Document
from machinery.meta.urls import https_url_error
from machinery.product import NAME as PRODUCT

_ADDRESS: Schema = {**NAME, "maxLength": 2048}
_TLS = record(
    "How the server's certificate is verified.",
    certificateAuthorityData=described(TEXT, "Base64 of the CAs in PEM. Without it: those that the hub's machine trusts."),
)
_OPERATORS = listing(
    NAME,
    description="Groups, as they come out of the mapping, whose members may do everything (system:masters). No token can "
    "say so by itself. Setting it needs the right to impersonate all users and groups, as does every change of this object.",
)
_CLAIMS = record(
    "Which claims name the user.",
    username=described(TEXT, "The claim that is the user name; sub by default. An email must not be unverified."),
    usernamePrefix={**TEXT, "maxLength": 128, "description": "Put before the user name."},
    groups=described(TEXT, "The claim that lists the groups; groups by default."),
    groupsPrefix={**TEXT, "maxLength": 128, "description": "Put before each group."},
)
_STATUS = record(
    "What the hub has found when it looked last.",
    phase={**TEXT, "enum": ["Pending", "Ready", "Error"], "description": "All of the conditions in a word."},
    conditions=CONDITIONS,
    observedGeneration={"type": "integer", "format": "int64"},
)
JWT_SCHEMA: Schema = record(
    "JWTAuthenticator lets the tokens of an OpenID Connect issuer be exchanged for certificates of operators. Signatures are "
    "checked with the issuer's own keys: RS, PS and ES algorithms.",
    ("spec",),
    spec=record(
        "Whose tokens, and whom they name.",
        ("issuer", "audience"),
        issuer=described(_ADDRESS, "The https:// address that the tokens say (iss), and that its configuration is under."),
        audience=described(NAME, "What the tokens must be meant for (aud)."),
        claims=_CLAIMS,
        requiredClaims={
            "type": "object",
            "additionalProperties": TEXT,
            "description": "Claims that a token must have, with exactly these texts.",
        },
        tls=_TLS,
        operatorGroups=_OPERATORS,
    ),
    status=_STATUS,
)
WEBHOOK_SCHEMA: Schema = record(
    "WebhookAuthenticator lets tokens be exchanged that a webhook knows: it is posted a TokenReview (v1).",
    ("spec",),
    spec=record(
        "Who is asked.",
        ("endpoint",),
        endpoint=described(_ADDRESS, "The https:// address that is posted to."),
        tls=_TLS,
        operatorGroups=_OPERATORS,
    ),
    status=_STATUS,
)


def _violations(new: Document, _old: Document | None) -> Sequence[Cause]:
    return [
        *(cause for field in ("issuer", "endpoint") for cause in _of_address(new, field)),
        *_of_authorities(new),
        *_of_operators(new),
        *_of_prefixes(new),
    ]


def _of_address(new: Document, field: str) -> list[Cause]:
    spec = doc.mapping(new, "spec")
    error = https_url_error(spec[field]) if field in spec else None
    return [] if error is None else [invalid_value(f"spec.{field}", spec[field], f"must be an https:// address: {error}")]


def _of_authorities(new: Document) -> list[Cause]:
    try:
        bundle = authorities_of(new)
        if bundle:
            pki.parse_chain(bundle)
    except InvalidError as error:
        return [Cause("FieldValueInvalid", f"Invalid value: {error.message}", "spec.tls.certificateAuthorityData")]
    return []


def _of_operators(new: Document) -> list[Cause]:
    listed = enumerate(doc.sequence(new, "spec", "operatorGroups"))
    why = f'groups that begin with "{RESERVED}" never come out of a token'
    return [forbidden(f"spec.operatorGroups[{at}]", why) for at, group in listed if str(group).startswith(RESERVED)]


def _of_prefixes(new: Document) -> list[Cause]:
    claims = doc.mapping(new, "spec", "claims")
    why = f'a name that begins with "{RESERVED}" never comes out of a token'
    prefixes = ("usernamePrefix", "groupsPrefix")
    return [forbidden(f"spec.claims.{name}", why) for name in prefixes if str(claims.get(name) or "").startswith(RESERVED)]


def _phase(row: TableRow) -> str:
    return str(doc.mapping(row.document, "status").get("phase") or "Pending")


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
            columns=(*columns, Column("Status", _phase, description="Pending, Ready or Error."), AGE),
            counts_generations=True,
        )
    )


JWT_AUTHENTICATOR = _authenticator(
    JWT,
    JWT_SCHEMA,
    Column("Issuer", cell("spec", "issuer"), description="Whose tokens."),
    Column("Audience", cell("spec", "audience"), description="What the tokens must be meant for."),
)
WEBHOOK_AUTHENTICATOR = _authenticator(
    WEBHOOK, WEBHOOK_SCHEMA, Column("Endpoint", cell("spec", "endpoint"), description="Who is asked.")
)


_REACHED = record(
    "The cluster that such a credential opens, as it tells of itself in kube-public/cluster-info.",
    server=TEXT,
    certificateAuthorityData=described(TEXT, "PEM of what verifies it, in base64."),
)
_FRONTEND = record("How a client gets a credential.", ("type",), type=TEXT, tokenCredentialRequestInfo=_REACHED)
_STRATEGY = record(
    "",
    ("type", "status", "reason"),
    type=described(TEXT, "KubeClusterSigningCertificate: by the CA that the controller-manager signs with."),
    status={**TEXT, "enum": ["Success", "Error"]},
    reason=described(TEXT, "FetchedKey, CouldNotFetchKey, CouldNotGetClusterInfo."),
    message=TEXT,
    lastUpdateTime=MOMENT,
    signer=described(TEXT, "The CA, as records of certificates name it."),
    frontend=_FRONTEND,
)
ISSUER_SCHEMA: Schema = record(
    "CredentialIssuer tells how logins are signed by the CA of the Kubernetes cluster that the hub runs in.",
    status=record("", strategies=listing(_STRATEGY, "type", description="Those that clients should prefer come first.")),
)


def _newest(field: str, row: TableRow) -> str:
    return next((str(each.get(field) or "") for each in doc.sequence(row.document, "status", "strategies")), "")


_ISSUER_COLUMNS = (
    Column("Strategy", lambda row: _newest("type", row), description="The strategy that clients should prefer."),
    Column("Status", lambda row: _newest("status", row), description="Success or Error."),
    Column("Reason", lambda row: _newest("reason", row), description="Why."),
    Column("Signer", lambda row: _newest("signer", row), description="The CA.", priority=1),
    Column("Message", lambda row: _newest("message", row), description="For people.", priority=1),
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
    ),
)
