"""The chain of a server's authenticators, as in Kubernetes' union authenticator.

The first authenticator that recognises the request's credential decides: with a valid client certificate the token is ignored.
An invalid credential refuses the request unless a later one is valid; without a credential the user is anonymous. If a
dependency is unavailable, its error ends the request.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace

import structlog
from aiohttp import web

from machinery.apiserver.access import ANONYMOUS, Authenticator
from machinery.apiserver.authn.identity import IDENTITY, Identity, RequestAuthenticator, TokenAuthenticator
from machinery.apiserver.authn.token_checks import TokenChecks
from machinery.apiserver.storage import Actor
from machinery.errors import EndedCredentialError, UnauthorizedError
from machinery.identity import AUTHENTICATED_GROUP

BEARER = "bearer"
INVALID_TOKEN = "invalid bearer token"  # noqa: S105 - what is said of one
REFUSED = "Unauthorized"
LONGEST_TOKEN = 64 * 1024
"""Longest Authorization header in characters; longer ones are refused unread."""

log = structlog.get_logger(__name__)


class Chain(Authenticator):
    """Calls the authenticators in order. Stores the identity on the request under `IDENTITY`."""

    def __init__(self, *authenticators: RequestAuthenticator) -> None:
        self._authenticators = authenticators

    async def authenticate(self, request: web.Request) -> Actor:
        refusal: UnauthorizedError | None = None
        for each in self._authenticators:
            try:
                identity = await each.identify(request)
            except UnauthorizedError as error:
                refusal = refusal or error
                continue
            if identity is not None:
                request[IDENTITY] = identity
                return authenticated(identity.actor)
        if refusal is not None:
            raise refusal
        return ANONYMOUS


def authenticated(actor: Actor) -> Actor:
    """The actor with the group `system:authenticated`."""
    if AUTHENTICATED_GROUP in actor.groups:
        return actor
    return replace(actor, groups=(*actor.groups, AUTHENTICATED_GROUP))


class BearerTokens(RequestAuthenticator):
    """`Authorization: Bearer`. The reason of a refusal is logged and shown in reviews, and withheld from the caller.

    The exception is EndedCredentialError, since its caller has proved that it held the credential.
    """

    def __init__(self, tokens: TokenAuthenticator, checks: TokenChecks | None = None) -> None:
        """`checks`: bounds the cost of refused tokens; None: unbounded."""
        self._tokens = tokens
        self._checks = checks

    async def identify(self, request: web.Request) -> Identity | None:
        header = request.headers.get("Authorization", "").strip()
        if not header:
            return None
        scheme, _, token = header.partition(" ")
        if scheme.lower() != BEARER or not header.isascii() or len(header) > LONGEST_TOKEN:  # malformed
            raise UnauthorizedError(REFUSED)
        token = token.strip()
        try:
            async with self._checks.one(request.remote or "", token) if self._checks else nullcontext():
                return await self._identity(token)
        except UnauthorizedError as error:
            log.info("bearer token refused", why=error.message, peer=request.remote)
            if isinstance(error, EndedCredentialError):
                raise
            raise UnauthorizedError(REFUSED) from None

    async def _identity(self, token: str) -> Identity:
        found = await self._tokens.identify(token, ())
        if found is None:
            raise UnauthorizedError(INVALID_TOKEN)
        return found


class TokenUnion(TokenAuthenticator):
    """Several token authenticators as one: the first that recognises a token decides."""

    def __init__(self, *authenticators: TokenAuthenticator) -> None:
        self._authenticators = authenticators

    async def identify(self, token: str, audiences: Sequence[str]) -> Identity | None:
        refusals: list[str] = []
        for each in self._authenticators:
            try:
                found = await each.identify(token, audiences)
            except EndedCredentialError:
                raise
            except UnauthorizedError as error:
                refusals.append(error.message)
                continue
            if found is not None:
                return found
        if refusals:
            raise UnauthorizedError(refusals[0] if len(refusals) == 1 else f"[{', '.join(refusals)}]")
        return None
