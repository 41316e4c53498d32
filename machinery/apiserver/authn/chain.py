"""The chain of a server's authenticators, as in Kubernetes' union authenticator, and the interfaces of its members.

The first authenticator that accepts a credential decides. For example, a token is ignored if the client certificate is valid.
If no credential is valid and at least one is invalid, the request is refused. Without any credential the user is anonymous. If
a dependency of an authenticator is unavailable, the request fails with UnavailableError.
"""

import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import Protocol

import structlog
from aiohttp import web

from machinery.apiserver.access import ANONYMOUS, Authenticator
from machinery.apiserver.http.limits import BACK_SOON, TOO_MANY, Rates, RefusalQueue, origin
from machinery.apiserver.storage import Actor
from machinery.errors import EndedCredentialError, TooManyRequestsError, UnauthorizedError
from machinery.identity import AUTHENTICATED_GROUP
from machinery.runtime.clock import Clock

CREDENTIAL_ID = "authentication.kubernetes.io/credential-id"
"""Key of `Actor.extra` that distinguishes the credentials of a user, as in Kubernetes."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The user of a credential. The chain adds the group `system:authenticated`."""

    actor: Actor
    mark: str = ""
    """Key by which `credential_end.Presence` ends open requests with this credential; "": it cannot end these requests."""
    until: datetime | None = None
    """Expiry of the credential; None: no expiry, or another part enforces it."""
    audiences: tuple[str, ...] = ()
    """The requested audiences for which the token is valid."""


IDENTITY = web.RequestKey("identity", Identity)
"""Key of the Identity on the aiohttp request, for filters after authentication."""


class RequestAuthenticator(Protocol):
    """Authenticates requests by one kind of credential."""

    async def identify(self, request: web.Request) -> Identity | None:
        """Return the identity; None if the request has no credential of this kind.

        Raises UnauthorizedError for an invalid credential, UnavailableError if a dependency is unavailable.
        """


class TokenAuthenticator(Protocol):
    """Authenticates one kind of token."""

    async def identify(self, token: str, audiences: Sequence[str]) -> Identity | None:
        """Return the identity; None if it is another kind of token. Raises UnauthorizedError with the reason, UnavailableError.

        `audiences`: the token must be for one of these; empty: for one of this server's own audiences.
        """


BEARER = "bearer"
INVALID_TOKEN = "invalid bearer token"  # noqa: S105 - a message
REFUSED = "Unauthorized"
LONGEST_TOKEN = 64 * 1024
"""Longest Authorization header in characters. A longer header is refused without being parsed."""

REFUSED_FOR = timedelta(seconds=10)
"""Time for which a refused token is cached. From an address with many refusals, it stays refused for this time."""
MAX_REMEMBERED = 10_000

log = structlog.get_logger(__name__)


class Chain(Authenticator):
    """Calls the authenticators in order. Stores the identity on the request with the key IDENTITY."""

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
    """Return the actor with the group `system:authenticated`."""
    if AUTHENTICATED_GROUP in actor.groups:
        return actor
    return replace(actor, groups=(*actor.groups, AUTHENTICATED_GROUP))


class TokenChecks:
    """Decides whether and when a token is checked. This bounds the cost of invalid tokens.

    While an address has few refusals, each of its tokens is checked immediately. If it has many, a token that was valid before
    is still checked immediately, a recently refused token is refused without a check, and any other token waits in a queue that
    serves the addresses in turn. So a valid token is refused only if its turn does not come in time. Tokens are cached only as
    keyed hashes.
    """

    def __init__(self, refusals: Rates, clock: Clock) -> None:
        self._refusals = refusals
        self._clock = clock
        self._turns = RefusalQueue(clock)
        self._key = secrets.token_bytes(32)
        self._good: OrderedDict[bytes, None] = OrderedDict()
        self._bad: OrderedDict[bytes, float] = OrderedDict()

    @asynccontextmanager
    async def one(self, address: str, token: str) -> AsyncIterator[None]:
        """Context manager for a check. An UnauthorizedError in it marks `token` as refused. Raises TooManyRequestsError."""
        host = origin(address)
        known = blake2b(token.encode(), key=self._key, digest_size=16).digest()
        if known in self._good or self._refusals.has_room(host):
            with self._remembering(known):
                yield
            return
        self._check_refused(known)
        async with self._turns.one(host):
            self._check_refused(known)  # the token may have been refused meanwhile
            with self._remembering(known):
                yield

    def _check_refused(self, known: bytes) -> None:
        if self._bad.get(known, 0.0) > self._clock.monotonic():
            raise TooManyRequestsError(TOO_MANY, retry_after=BACK_SOON)

    @contextmanager
    def _remembering(self, known: bytes) -> Iterator[None]:
        try:
            yield
        except UnauthorizedError:
            self._good.pop(known, None)
            self._bad.pop(known, None)
            self._bad[known] = self._clock.monotonic() + REFUSED_FOR.total_seconds()
            if len(self._bad) > MAX_REMEMBERED:
                self._bad.popitem(last=False)
            raise
        self._bad.pop(known, None)
        self._good[known] = None
        self._good.move_to_end(known)
        if len(self._good) > MAX_REMEMBERED:
            self._good.popitem(last=False)


class BearerTokens(RequestAuthenticator):
    """Authenticates `Authorization: Bearer`.

    The log and the status of a TokenReview contain the reason of a refusal. The response contains it only for
    EndedCredentialError, because this caller has proved that it held the credential.
    """

    def __init__(self, tokens: TokenAuthenticator, checks: TokenChecks | None = None) -> None:
        """`checks`: bounds the cost of invalid tokens; None: unbounded."""
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
    """Combines several token authenticators. The first that returns an identity or raises EndedCredentialError decides."""

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
