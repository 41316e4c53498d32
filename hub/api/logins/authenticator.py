"""JWTAuthenticators and WebhookAuthenticators: parsing of their documents."""

import binascii
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hub.api.logins.login import ClaimRules
from hub.api.meta import document as doc
from hub.api.meta.change import JWT_AUTHENTICATORS, WEBHOOK_AUTHENTICATORS, Document, Kind
from machinery.errors import InvalidError

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


def read(kind: str, document: Document) -> AuthenticatorConfig:
    """Raises InvalidError for CAs that are not base64."""
    spec, metadata = doc.mapping(document, "spec"), doc.mapping(document, "metadata")
    address = str(spec.get("issuer" if kind == JWT else "endpoint") or "")
    return AuthenticatorConfig(
        kind,
        doc.name(document),
        address,
        authorities_of(document),
        tuple(str(group) for group in doc.sequence(document, "spec", "operatorGroups")),
        (str(metadata.get("uid") or ""), int(metadata.get("generation") or 0)),
        _claims(address, spec) if kind == JWT else None,
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


def _claims(issuer: str, spec: Mapping[str, Any]) -> ClaimRules:
    chosen: Mapping[str, Any] = spec.get("claims") or {}
    return ClaimRules(
        issuer=issuer,
        audience=str(spec.get("audience") or ""),
        username=str(chosen.get("username") or "sub"),
        username_prefix=str(chosen.get("usernamePrefix") or ""),
        groups=str(chosen.get("groups") or "groups"),
        groups_prefix=str(chosen.get("groupsPrefix") or ""),
        required={str(name): str(value) for name, value in (spec.get("requiredClaims") or {}).items()},
    )
