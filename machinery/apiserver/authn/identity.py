"""What an authenticator finds out, and the two ports: one reads requests, the other tokens alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from aiohttp import web

from machinery.apiserver.storage import Actor

CREDENTIAL_ID = "authentication.kubernetes.io/credential-id"
"""The key of `Actor.extra` that tells one credential of a user from another, as Kubernetes has it."""


@dataclass(frozen=True, slots=True)
class Identity:
    """To whom a credential belongs. The chain adds `system:authenticated` to the actor's groups."""

    actor: Actor
    mark: str = ""
    """By which everything that this credential has open is ended at once; "": nothing ends it."""
    until: datetime | None = None
    """When the credential's time is over; None: it has no end, or an end that others look after."""
    audiences: tuple[str, ...] = ()
    """Of those that were asked for, the ones that a token is meant for."""


IDENTITY = web.RequestKey("identity", Identity)
"""Where the chain leaves the identity behind a request, for the filters further in."""


class RequestAuthenticator(Protocol):
    """Knows one kind of credential that a request can carry."""

    async def identify(self, request: web.Request) -> Identity | None:
        """None: the request carries none of this kind. Raises UnauthorizedError (it is not good), UnavailableError."""


class TokenAuthenticator(Protocol):
    """Knows one kind of token."""

    async def identify(self, token: str, audiences: Sequence[str]) -> Identity | None:
        """None: a token of another kind. Raises UnauthorizedError that says why it is not good, UnavailableError.

        `audiences`: who asks on whose behalf; a token for none of them is not good. Empty: whoever this server is.
        """
