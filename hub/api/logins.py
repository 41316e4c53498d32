"""Logins: user name and groups from the claims of an external token, and names that are never permitted.

Names of the hub's own identities begin with `system:` (agents, add-ons, bootstrap credentials, ServiceAccounts, operators). An
external token cannot have such an identity: the hub refuses users with such a name. The hub only drops groups with such a name,
because other clusters put every user into `system:authenticated`. Only `operator_groups` of an authenticator grant all rights:
members of these groups are operators. The names of these groups include the prefix that the authenticator adds.

Sources: Pinniped's TokenCredentialRequest (users that it refuses), OpenID Connect Core 1.0 (claims), Kubernetes' structured
authentication (`email` counts only if it is verified).
"""

from base64 import b64decode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from hub.api.meta import document as doc
from hub.api.meta.change import JWT_AUTHENTICATORS, WEBHOOK_AUTHENTICATORS, Kind
from machinery.errors import InvalidError, UnauthorizedError
from machinery.identity import OPERATOR_GROUP, CertificateSubject
from machinery.meta.objects import Document

RESERVED = "system:"
CREDENTIAL_ID = "authentication.kubernetes.io/credential-id"
"""The only accepted extra field; it does not describe the user."""
MAX_NAME, MAX_GROUPS = 512, 250
SKEW = timedelta(minutes=1)
"""Tolerance for differences between clocks: how far in the future a token may begin."""
LATEST = 9999 * 366 * 86_400
"""Largest valid timestamp in claims, in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class ClaimRules:
    """The claims that a token must have, and the claims that contain its user name and groups."""

    issuer: str
    audience: str
    username: str = "sub"
    username_prefix: str = ""
    groups: str = "groups"
    groups_prefix: str = ""
    required: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AuthenticatedUser:
    """A user as returned by an authenticator. `account`: uid, if the user is a ServiceAccount of this hub; else None."""

    user: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, Sequence[str]] = field(default_factory=dict)
    account: str | None = None


@dataclass(frozen=True, slots=True)
class Login:
    """A user that may get a certificate. `left_out`: dropped groups of the token."""

    user: str
    groups: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    account: str | None = None

    @property
    def subject(self) -> CertificateSubject:
        return CertificateSubject(self.user, frozenset(self.groups))

    @property
    def is_our_own_name(self) -> bool:
        """Whether a user or group name begins with `system:`. Other servers that trust the signer may give the name rights."""
        return any(name.startswith(RESERVED) for name in (self.user, *self.groups))


def user_of_claims(claims: Mapping[str, Any], rules: ClaimRules, now: datetime) -> AuthenticatedUser:
    """Return the user that the claims of a verified token name. Raises UnauthorizedError with the reason."""
    if claims.get("iss") != rules.issuer:
        raise UnauthorizedError("its issuer (iss) is another one")
    if rules.audience not in _texts(claims.get("aud"), "aud"):
        raise UnauthorizedError(f'it is not for the audience "{rules.audience}"')
    ends, begins = _instant(claims, "exp"), _instant(claims, "nbf")
    if ends is None:
        raise UnauthorizedError("it has no expiry (exp)")
    if now.timestamp() >= ends:
        raise UnauthorizedError("it has expired")
    if begins is not None and (now + SKEW).timestamp() < begins:
        raise UnauthorizedError("it is not valid yet")
    for claim, wanted in sorted(rules.required.items()):
        if claims.get(claim) != wanted:
            raise UnauthorizedError(f'its claim "{claim}" does not have the required value')
    user = claims.get(rules.username)
    if not isinstance(user, str) or not user:
        raise UnauthorizedError(f'it has no claim "{rules.username}" with a text')
    if rules.username == "email" and claims.get("email_verified", True) is not True:
        raise UnauthorizedError("its email is not verified")
    groups = _texts(claims.get(rules.groups), rules.groups) if rules.groups else ()
    return AuthenticatedUser(rules.username_prefix + user, tuple(rules.groups_prefix + group for group in groups if group))


def admit_user(named: AuthenticatedUser | None, operator_groups: Iterable[str] = ()) -> Login:
    """Return the Login of the user `named`. Raises UnauthorizedError with the reason, also for None, which means no user."""
    if named is None:
        raise UnauthorizedError("the authenticator names no user")
    if named.account is not None:
        return Login(named.user, named.groups, account=named.account)
    if not named.user:
        raise UnauthorizedError("the user name is empty")
    if named.uid:
        raise UnauthorizedError("the user has a UID, which a certificate cannot contain")
    if set(named.extra) - {CREDENTIAL_ID}:
        raise UnauthorizedError("the user has extra fields, which a certificate cannot contain")
    _check_name("the user name", named.user)
    if named.user.startswith(RESERVED):
        raise UnauthorizedError(f'user names that begin with "{RESERVED}" are reserved for the hub')
    groups = tuple(dict.fromkeys(named.groups))
    if len(named.groups) > MAX_GROUPS:
        raise UnauthorizedError(f"the user is in {len(named.groups)} groups; a certificate can contain {MAX_GROUPS}")
    for group in groups:
        _check_name("the name of a group", group)
    left_out = tuple(group for group in groups if group.startswith(RESERVED))
    counted = tuple(group for group in groups if group and not group.startswith(RESERVED))
    masters = (OPERATOR_GROUP,) if set(operator_groups).intersection(counted) else ()
    return Login(named.user, (*counted, *masters), left_out)


def _check_name(what: str, name: str) -> None:
    """Raise UnauthorizedError for names that a certificate cannot contain or that a log would show misleadingly."""
    if len(name) > MAX_NAME:
        raise UnauthorizedError(f"{what} is longer than {MAX_NAME} characters")
    if not name.isprintable() or name != name.strip():
        raise UnauthorizedError(f"{what} contains unprintable characters, or begins or ends with a space")


def _instant(claims: Mapping[str, Any], claim: str) -> float | None:
    value = claims.get(claim)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LATEST:
        raise UnauthorizedError(f'its claim "{claim}" is not a valid time')
    return float(value)


def _texts(value: object, claim: str) -> tuple[str, ...]:
    """The texts of a claim. Raises UnauthorizedError unless it is a text, a list of texts or absent."""
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list | tuple) and all(isinstance(each, str) for each in value):
        return tuple(value)
    raise UnauthorizedError(f'its claim "{claim}" is neither a text nor a list of texts')


JWT, WEBHOOK, ACCOUNT = "JWTAuthenticator", "WebhookAuthenticator", "ServiceAccount"
KINDS: Mapping[str, Kind] = {JWT: JWT_AUTHENTICATORS, WEBHOOK: WEBHOOK_AUTHENTICATORS}
"""Kinds of authenticators, by their names in a TokenCredentialRequest. ServiceAccounts of this hub need no object."""


@dataclass(frozen=True, slots=True)
class Reference:
    """The authenticator of a request. `kind` may not exist; ServiceAccounts have no `name`."""

    kind: str
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}" if self.name else self.kind


@dataclass(frozen=True, slots=True)
class AuthenticatorConfig:
    """A parsed authenticator. `authorities`: CAs for its TLS (PEM; b"": the system's).

    `operator_groups`: members of these groups are operators. `mark`: changes with every change of the spec.
    """

    kind: str
    name: str
    address: str
    authorities: bytes
    operator_groups: tuple[str, ...]
    mark: tuple[str, int]
    claims: ClaimRules | None = None


def read_authenticator(kind: str, document: Document) -> AuthenticatorConfig:
    """Parse an authenticator. Raises InvalidError for CAs that are not base64."""
    spec = doc.mapping(document, "spec")
    address = str(spec.get("issuer" if kind == JWT else "endpoint") or "")
    chosen, required = doc.mapping(document, "spec", "claims"), doc.mapping(document, "spec", "requiredClaims")
    claims = ClaimRules(
        issuer=address,
        audience=str(spec.get("audience") or ""),
        username=str(chosen.get("username") or "sub"),
        username_prefix=str(chosen.get("usernamePrefix") or ""),
        groups=str(chosen.get("groups") or "groups"),
        groups_prefix=str(chosen.get("groupsPrefix") or ""),
        required={str(name): str(value) for name, value in required.items()},
    )
    return AuthenticatorConfig(
        kind,
        doc.name(document),
        address,
        authorities_of(document),
        tuple(str(group) for group in doc.sequence(document, "spec", "operatorGroups")),
        mark_of(document),
        claims if kind == JWT else None,
    )


def mark_of(document: Document) -> tuple[str, int]:
    """Return the authenticator's `mark`: its uid and generation."""
    metadata = doc.mapping(document, "metadata")
    return str(metadata.get("uid") or ""), int(metadata.get("generation") or 0)


def authorities_of(document: Document) -> bytes:
    """Return the PEM of `spec.tls.certificateAuthorityData`; b"" if it is absent. Raises InvalidError."""
    text = doc.mapping(document, "spec", "tls").get("certificateAuthorityData")
    if not text:
        return b""
    try:
        return b64decode(str(text), validate=True)
    except ValueError:
        raise InvalidError("spec.tls.certificateAuthorityData is not base64") from None
