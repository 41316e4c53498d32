"""Keys of an OpenID Connect issuer: discovered, cached and refreshed.

Keys are fetched when they are `FRESH` old, and when a token names an unknown key, because issuers rotate. Fetches begin at
least `APART` from one another for any reason, so that invented tokens cannot make a hub overload its issuer; concurrent callers
share one fetch. If a refresh fails, the cached keys are used until `STALE` after the last successful fetch: a short outage of
the issuer locks nobody out, and a withdrawn key does not stay valid during a long one.

Source: OpenID Connect Discovery 1.0.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from machinery.apiserver.authn.https_json import JsonDocuments, check_https
from machinery.errors import ForbiddenError, InvalidError, MusterError, UnauthorizedError, UnavailableError
from machinery.pki import KeySet, read_header
from machinery.runtime.clock import Clock

WELL_KNOWN = "/.well-known/openid-configuration"
FRESH = timedelta(minutes=5)
STALE = timedelta(hours=1)
APART = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class Discovered:
    """The used part of the issuer's configuration."""

    jwks_uri: str


async def discover(issuer: str, documents: JsonDocuments) -> Discovered:
    """Raises UnavailableError; InvalidError when the configuration is another issuer's, or names no keys."""
    configuration = await documents.get(issuer.rstrip("/") + WELL_KNOWN)
    named = configuration.get("issuer")
    if named != issuer:
        raise InvalidError(f"the discovered issuer is {str(named)[:200]!r} and not {issuer!r}")
    return Discovered(check_https("the jwks_uri of the issuer", configuration.get("jwks_uri")))


async def fetch_keys(found: Discovered, documents: JsonDocuments) -> KeySet:
    """Raises UnavailableError, InvalidError (no usable key)."""
    return KeySet.parse(await documents.get(found.jwks_uri))


class IssuerKeys:
    """Cached keys of one issuer."""

    def __init__(
        self, issuer: str, documents: JsonDocuments, clock: Clock, allow_keys: Callable[[str], bool] = lambda _url: True
    ) -> None:
        """`allow_keys`: whether keys may be fetched from the URL in the issuer's configuration."""
        self._allow_keys = allow_keys
        self._issuer = issuer
        self._documents = documents
        self._clock = clock
        self._keys: KeySet | None = None
        self._fetched_at = 0.0
        self._tried_at: float | None = None
        self._failure = ""
        self._fetching: asyncio.Task[None] | None = None
        self.fetches = 0
        """Number of fetches."""

    async def verified(self, token: str) -> Mapping[str, Any]:
        """Claims of a token that this issuer has signed. Raises UnauthorizedError, UnavailableError."""
        header = read_header(token)
        if header is None:
            raise UnauthorizedError("it is not a signed JSON web token of an algorithm that is accepted (RS, PS, ES)")
        keys = await self._current()
        if not keys.knows(header):
            keys = await self._again(keys)
        claims = keys.verified(token)
        if claims is None:
            why = "its signature is not the issuer's" if keys.knows(header) else "the issuer has no such key"
            raise UnauthorizedError(why)
        return claims

    async def _current(self) -> KeySet:
        """The fresh or still usable keys. Raises UnavailableError."""
        if self._keys is None or self._age() >= FRESH.total_seconds():
            await self._fetch()
        if self._keys is None or self._age() >= STALE.total_seconds():
            raise UnavailableError(f"the keys of the issuer cannot be had: {self._failure}")
        return self._keys

    async def _again(self, known: KeySet) -> KeySet:
        await self._fetch()
        return known if self._keys is None else self._keys

    def _age(self) -> float:
        return self._clock.monotonic() - self._fetched_at

    async def _fetch(self) -> None:
        """Fetch, unless a fetch began less than `APART` ago. Shared and shielded: one cancelled caller does not end it."""
        if self._fetching is None:
            now = self._clock.monotonic()
            if self._tried_at is not None and now - self._tried_at < APART.total_seconds():
                return
            self._tried_at = now
            self.fetches += 1
            self._fetching = asyncio.create_task(self._fetched(now), name=f"keys of {self._issuer}")
        await asyncio.shield(self._fetching)

    async def _fetched(self, now: float) -> None:
        """Fetch once. The failure is stored for callers without keys."""
        try:
            found = await discover(self._issuer, self._documents)
            if not self._allow_keys(found.jwks_uri):
                raise ForbiddenError(
                    f"the jwks_uri of the issuer is at another host, which is not allowed: {found.jwks_uri[:200]}"
                )
            self._keys = await fetch_keys(found, self._documents)
        except MusterError as error:
            self._failure = error.message
        else:
            self._fetched_at = now
        finally:
            self._fetching = None
