"""Logins: from the claims of an external token to user name and groups, and the names that are never permitted.

An external token cannot name an identity of the hub: no user or group that begins with `system:`, so no agent, add-on,
bootstrap credential, ServiceAccount or operator with all rights. Such a user is refused; such groups are dropped, since other
clusters put every user into `system:authenticated`. All rights are granted only by `operator_groups` of an authenticator:
groups, after the mapping, whose members are operators.

Sources: Pinniped's TokenCredentialRequest (what it refuses of an authenticator's answer), OpenID Connect Core 1.0 (claims),
Kubernetes' structured authentication (`email` counts only if it is verified).
"""

import binascii
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
"""The only extra field that is accepted, since it does not describe the user."""
MAX_NAME, MAX_GROUPS = 512, 250
SKEW = timedelta(minutes=1)
"""How far in the future a token's start may be, since clocks differ."""
LATEST = 9999 * 366 * 86_400
"""Largest timestamp in claims; greater numbers are invalid."""


@dataclass(frozen=True, slots=True)
class ClaimRules:
    """Required claims of a token, and the claims with user name and groups."""

    issuer: str
    audience: str
    username: str = "sub"
    username_prefix: str = ""
    groups: str = "groups"
    groups_prefix: str = ""
    required: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Named:
    """A user as named by an authenticator. `account`: the uid if it is a ServiceAccount of this hub; else None."""

    user: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, Sequence[str]] = field(default_factory=dict)
    account: str | None = None


@dataclass(frozen=True, slots=True)
class Login:
    """A user who may get a certificate. `left_out`: groups of the token that were dropped."""

    user: str
    groups: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    account: str | None = None

    @property
    def subject(self) -> CertificateSubject:
        return CertificateSubject(self.user, frozenset(self.groups))

    @property
    def is_our_own_name(self) -> bool:
        """Whether it has a reserved name of this hub, which means another identity to others that trust the signer."""
        return any(name.startswith(RESERVED) for name in (self.user, *self.groups))


def named_by_claims(claims: Mapping[str, Any], rules: ClaimRules, now: datetime) -> Named:
    """The user of a token whose signature was verified. Raises UnauthorizedError with the reason."""
    if claims.get("iss") != rules.issuer:
        raise UnauthorizedError("it is of another issuer")
    if rules.audience not in _texts(claims.get("aud"), "aud"):
        raise UnauthorizedError(f'it is not meant for the audience "{rules.audience}"')
    ends, begins = _instant(claims, "exp"), _instant(claims, "nbf")
    if ends is None:
        raise UnauthorizedError("it has no end (exp)")
    if now.timestamp() >= ends:
        raise UnauthorizedError("it has expired")
    if begins is not None and (now + SKEW).timestamp() < begins:
        raise UnauthorizedError("it is not valid yet")
    for claim, wanted in sorted(rules.required.items()):
        if claims.get(claim) != wanted:
            raise UnauthorizedError(f'its claim "{claim}" is not the one that is required')
    user = claims.get(rules.username)
    if not isinstance(user, str) or not user:
        raise UnauthorizedError(f'it has no claim "{rules.username}" that is a text')
    if rules.username == "email" and claims.get("email_verified", True) is not True:
        raise UnauthorizedError("its email is not verified")
    groups = _texts(claims.get(rules.groups), rules.groups) if rules.groups else ()
    return Named(rules.username_prefix + user, tuple(rules.groups_prefix + group for group in groups if group))


def admitted(named: Named | None, operator_groups: Iterable[str] = ()) -> Login:
    """The login of this user. Raises UnauthorizedError with the reason."""
    if named is None:
        raise UnauthorizedError("the authenticator names no user")
    if named.account is not None:
        return Login(named.user, named.groups, account=named.account)
    if not named.user:
        raise UnauthorizedError("the user name is empty")
    if named.uid:
        raise UnauthorizedError("the user has a UID, which a certificate cannot say")
    if set(named.extra) - {CREDENTIAL_ID}:
        raise UnauthorizedError("the user has extra fields, which a certificate cannot say")
    _check_name("the user name", named.user)
    if named.user.startswith(RESERVED):
        raise UnauthorizedError(f'user names that begin with "{RESERVED}" are given by the hub alone')
    groups = tuple(dict.fromkeys(named.groups))
    if len(named.groups) > MAX_GROUPS:
        raise UnauthorizedError(f"it is in {len(named.groups)} groups, and a certificate holds {MAX_GROUPS} at most")
    for group in groups:
        _check_name("a group's name", group)
    left_out = tuple(group for group in groups if group.startswith(RESERVED))
    counted = tuple(group for group in groups if group and not group.startswith(RESERVED))
    masters = (OPERATOR_GROUP,) if set(operator_groups).intersection(counted) else ()
    return Login(named.user, (*counted, *masters), left_out)


def _check_name(what: str, name: str) -> None:
    """Raise UnauthorizedError for names that a certificate cannot contain or that a log would show misleadingly."""
    if len(name) > MAX_NAME:
        raise UnauthorizedError(f"{what} is longer than {MAX_NAME} characters")
    if not name.isprintable() or name != name.strip():
        raise UnauthorizedError(f"{what} holds characters that are not shown, or begins or ends with a space")


def _instant(claims: Mapping[str, Any], claim: str) -> float | None:
    value = claims.get(claim)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LATEST:
        raise UnauthorizedError(f'its claim "{claim}" is no time')
    return float(value)


def _texts(value: object, claim: str) -> tuple[str, ...]:
    """A claim with a text or a list of texts. Raises UnauthorizedError for anything else."""
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list | tuple) and all(isinstance(each, str) for each in value):
        return tuple(value)
    raise UnauthorizedError(f'its claim "{claim}" is neither a text nor a list of texts')


JWT, WEBHOOK, ACCOUNT = "JWTAuthenticator", "WebhookAuthenticator", "ServiceAccount"
KINDS: Mapping[str, Kind] = {JWT: JWT_AUTHENTICATORS, WEBHOOK: WEBHOOK_AUTHENTICATORS}
"""By the name in a TokenCredentialRequest. ServiceAccounts of this hub need no authenticator object."""


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

    `operator_groups`: groups whose members are operators. `mark` changes with every change of the spec.
    """

    kind: str
    name: str
    address: str
    authorities: bytes
    operator_groups: tuple[str, ...]
    mark: tuple[str, int]
    claims: ClaimRules | None = None


def read_authenticator(kind: str, document: Document) -> AuthenticatorConfig:
    """Raises InvalidError for CAs that are not base64."""
    spec, metadata = doc.mapping(document, "spec"), doc.mapping(document, "metadata")
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
        (str(metadata.get("uid") or ""), int(metadata.get("generation") or 0)),
        claims if kind == JWT else None,
    )


def authorities_of(document: Document) -> bytes:
    """The PEM of `spec.tls.certificateAuthorityData`; b"" if it is absent. Raises InvalidError."""
    text = doc.mapping(document, "spec", "tls").get("certificateAuthorityData")
    if not text:
        return b""
    try:
        return b64decode(str(text), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidError("spec.tls.certificateAuthorityData is not base64") from None
