"""The result of authentication, and the ports of authenticators for requests and for tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from aiohttp import web

from machinery.apiserver.storage import Actor

CREDENTIAL_ID = "authentication.kubernetes.io/credential-id"
"""Key of `Actor.extra` that distinguishes the credentials of a user, as in Kubernetes."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The user of a credential. The chain adds the group `system:authenticated`."""

    actor: Actor
    mark: str = ""
    """Key by which all open requests of this credential can be ended; "": they cannot."""
    until: datetime | None = None
    """Expiry of the credential; None: none, or enforced elsewhere."""
    audiences: tuple[str, ...] = ()
    """The requested audiences for which the token is valid."""


IDENTITY = web.RequestKey("identity", Identity)
"""Key of the Identity on the aiohttp request, for filters after authentication."""


class RequestAuthenticator(Protocol):
    """Authenticates requests by one kind of credential."""

    async def identify(self, request: web.Request) -> Identity | None:
        """None: the request has no such credential. Raises UnauthorizedError (invalid credential), UnavailableError."""


class TokenAuthenticator(Protocol):
    """Authenticates one kind of token."""

    async def identify(self, token: str, audiences: Sequence[str]) -> Identity | None:
        """None: another kind of token. Raises UnauthorizedError with the reason, UnavailableError.

        `audiences`: a token for none of these audiences is invalid. Empty: this server's own audiences.
        """
