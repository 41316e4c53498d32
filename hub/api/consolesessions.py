"""ConsoleSessions: sign-ins of people at the console's own listener, and when they end.

The browser has a random secret. The hub stores only the SHA-256 of the secret, shortened to 128 bits, as the session's name.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any, Self

from hub.api.logins import AuthenticatorConfig
from hub.api.meta import document as doc
from machinery.meta.objects import Document
from machinery.meta.timestamps import format_time, parse_time

KIND, RESOURCE, GROUP, VERSION = "ConsoleSession", "consolesessions", "login", "v1alpha1"
MAX_LIFETIME = timedelta(hours=8)
MAX_PER_USER = 20
"""Largest number of open sessions of one user. Another sign-in ends the oldest session."""
SECRET_LENGTH = 43
"""Characters of 32 random bytes in base64url."""
_NAME_LENGTH = 32


def name_of(secret: str) -> str:
    """Return the name of the session with this secret."""
    return sha256(secret.encode()).hexdigest()[:_NAME_LENGTH]


@dataclass(frozen=True, slots=True)
class ConsoleSession:
    """One sign-in. `user`, `groups`: from the token. `authenticator`: a JWTAuthenticator; `mark`: its state at the sign-in."""

    name: str
    user: str
    groups: tuple[str, ...]
    authenticator: str
    mark: tuple[str, int]
    expires_at: datetime
    address: str = ""

    @classmethod
    def of(cls, document: Document) -> Self:
        status = doc.mapping(document, "status")
        made_by = doc.mapping(status, "authenticator")
        return cls(
            doc.name(document),
            str(status["user"]),
            tuple(map(str, doc.sequence(status, "groups"))),
            str(made_by["name"]),
            (str(made_by["uid"]), int(made_by["generation"])),
            parse_time(str(status["expirationTimestamp"])),
            str(status.get("address") or ""),
        )

    def document(self, api_version: str) -> dict[str, Any]:
        status = {
            "user": self.user,
            "groups": list(self.groups),
            "authenticator": {"name": self.authenticator, "uid": self.mark[0], "generation": self.mark[1]},
            "expirationTimestamp": format_time(self.expires_at),
            "address": self.address,
        }
        return {"apiVersion": api_version, "kind": KIND, "metadata": {"name": self.name}, "status": status}

    def is_open(self, authenticator: AuthenticatorConfig | None, now: datetime) -> bool:
        """Return whether the session has not expired and `authenticator`, the current one, is unchanged. None: deleted."""
        return authenticator is not None and authenticator.mark == self.mark and now < self.expires_at
