"""JSON documents of external servers over HTTPS, and the keys of OpenID Connect issuers: discovered, cached and refreshed.

Requests have a time limit. Responses have a size limit and are not decompressed. The client follows no redirects and ignores
proxies and netrc of the environment. Each request opens a new connection, so that a new CA or address takes effect immediately.

Keys are fetched when they are CACHE_TTL old, and when a token names an unknown key, because issuers rotate keys. The time
between two fetches is at least APART, so that tokens with invented key ids cannot make a hub overload its issuer. Concurrent
callers share one fetch. If a refresh fails, the cached keys stay in use until STALE after the last successful fetch. So a short
outage of the issuer prevents no sign-in, and in a long outage a withdrawn key does not stay valid.

Source: OpenID Connect Discovery 1.0.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol
from urllib.parse import urlencode, urlsplit

import aiohttp
import msgspec

from machinery.errors import ForbiddenError, InvalidError, MusterError, UnauthorizedError, UnavailableError
from machinery.meta.urls import https_url_error
from machinery.pki import KeySet, read_header
from machinery.product import NAME
from machinery.runtime.clock import Clock
from machinery.runtime.tls import client_context

REQUEST_TIMEOUT = timedelta(seconds=10)
MAX_ANSWER = 512 * 1024
_CHUNK = 64 * 1024


class JsonDocuments(Protocol):
    """Interface for HTTPS requests to external servers that answer with JSON documents."""

    async def get(self, url: str) -> Mapping[str, Any]:
        """Return the document at `url`. Raises UnavailableError; its message has no text from the response."""

    async def post(self, url: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send `body` by POST, and return the document of the response. Errors as in `get`; they contain no part of `body`."""

    async def reach(self, url: str) -> None:
        """Connect to the server and verify it. Raises UnavailableError."""


@dataclass(frozen=True, slots=True)
class HttpsDocuments(JsonDocuments):
    """Requests JSON documents over HTTPS. `context` verifies the servers. `timeout`: for a whole request."""

    context: ssl.SSLContext
    timeout: timedelta = REQUEST_TIMEOUT

    @classmethod
    def with_authorities(cls, authorities: bytes, timeout: timedelta = REQUEST_TIMEOUT) -> "HttpsDocuments":
        """Return a client that trusts these CAs (PEM); b"": the CAs that this machine trusts. Raises InvalidError."""
        return cls(client_context(authorities) if authorities else ssl.create_default_context(), timeout)

    async def get(self, url: str) -> Mapping[str, Any]:
        return await self._exchange("GET", url, None, {})

    async def post(self, url: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        return await self._exchange("POST", url, msgspec.json.encode(body), {"Content-Type": "application/json"})

    async def post_form(self, url: str, form: Mapping[str, str], authorization: str = "") -> Mapping[str, Any]:
        """Like `post`, but send a form. `authorization`: the header Authorization; "": none."""
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        headers |= {"Authorization": authorization} if authorization else {}
        return await self._exchange("POST", url, urlencode(form).encode(), headers)

    async def reach(self, url: str) -> None:
        parts = urlsplit(url)
        host = parts.hostname or ""
        async with self._asking(parts.netloc):
            _reader, writer = await asyncio.open_connection(host, parts.port or 443, ssl=self.context, server_hostname=host)
            writer.transport.abort()

    @asynccontextmanager
    async def _asking(self, host: str) -> AsyncIterator[None]:
        """A block with the time limit. It raises UnavailableError for every failure in it."""
        try:
            async with asyncio.timeout(self.timeout.total_seconds()):
                yield
        except TimeoutError:
            raise UnavailableError(f"{host} does not answer within {self.timeout.total_seconds():g} s") from None
        except aiohttp.ClientConnectorCertificateError as error:
            why = getattr(error.certificate_error, "verify_message", "") or "it cannot be verified"
            raise UnavailableError(f"the certificate of {host} is not valid: {why}") from None
        except aiohttp.ClientConnectorError as error:
            why = error.os_error.strerror or type(error.os_error).__name__
            raise UnavailableError(f"{host} cannot be reached: {why}") from None
        except ssl.SSLCertVerificationError as error:
            raise UnavailableError(f"the certificate of {host} is not valid: {error.verify_message}") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise UnavailableError(f"{host} cannot be reached: {type(error).__name__}") from None

    async def _exchange(self, method: str, url: str, body: bytes | None, more: Mapping[str, str]) -> Mapping[str, Any]:
        host, content = urlsplit(url).netloc, bytearray()
        headers = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": NAME, **more}
        connector = aiohttp.TCPConnector(ssl=self.context, force_close=True)
        async with (
            self._asking(host),
            aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False) as session,
            session.request(method, url, data=body, headers=headers, allow_redirects=False) as response,
        ):
            if response.status not in (200, 201):
                raise UnavailableError(f"{host} answers with HTTP status {response.status}")
            async for chunk in response.content.iter_chunked(_CHUNK):
                content += chunk
                if len(content) > MAX_ANSWER:
                    raise UnavailableError(f"the answer of {host} is longer than {MAX_ANSWER} bytes")
        try:
            document = msgspec.json.decode(content)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            document = None
        if not isinstance(document, dict):
            raise UnavailableError(f"the answer of {host} is not a JSON document")
        return document


def check_https(what: str, url: object) -> str:
    """Return the URL. Raises InvalidError if it is not a usable https URL; `what` names it in the message."""
    error = https_url_error(url)
    if error is not None:
        raise InvalidError(f"{what} is not an https:// address: {error}")
    return str(url)


WELL_KNOWN = "/.well-known/openid-configuration"
CACHE_TTL = timedelta(minutes=5)
STALE = timedelta(hours=1)
APART = timedelta(seconds=10)


async def discover(issuer: str, documents: JsonDocuments) -> tuple[str, Mapping[str, Any]]:
    """Return the URL of the issuer's keys, and its whole configuration.

    Raises UnavailableError, or InvalidError if the configuration belongs to another issuer or names no keys.
    """
    configuration = await documents.get(issuer.rstrip("/") + WELL_KNOWN)
    named = configuration.get("issuer")
    if named != issuer:
        raise InvalidError(f"the discovered issuer is {str(named)[:200]!r} and not {issuer!r}")
    return check_https("the jwks_uri of the issuer", configuration.get("jwks_uri")), configuration


async def fetch_keys(url: str, documents: JsonDocuments) -> KeySet:
    """Fetch the keys at `url`. Raises UnavailableError, InvalidError (no usable key)."""
    return KeySet.parse(await documents.get(url))


class IssuerKeys:
    """Cached keys of one issuer."""

    def __init__(
        self, issuer: str, documents: JsonDocuments, clock: Clock, allow_keys: Callable[[str], bool] = lambda _url: True
    ) -> None:
        """`allow_keys` returns whether keys may be fetched from a URL, which comes from the issuer's configuration."""
        self._allow_keys = allow_keys
        self._issuer = issuer
        self._documents = documents
        self._clock = clock
        self._keys: KeySet | None = None
        self._configuration: Mapping[str, Any] = {}
        self._fetched_at = 0.0
        self._tried_at: float | None = None
        self._failure = ""
        self._fetching: asyncio.Task[None] | None = None
        self.fetches = 0

    async def verified(self, token: str) -> Mapping[str, Any]:
        """Return the claims of a token that this issuer has signed. Raises UnauthorizedError, UnavailableError."""
        header = read_header(token)
        if header is None:
            raise UnauthorizedError("it is not a signed JSON web token of an algorithm that is accepted (RS, PS, ES)")
        keys = await self._current()
        if not keys.has_key_for(header):
            await self._fetch()
            keys = self._keys or keys
        claims = keys.verified(token)
        if claims is None:
            why = "its signature is not the issuer's" if keys.has_key_for(header) else "the issuer has no such key"
            raise UnauthorizedError(why)
        return claims

    async def endpoint(self, name: str) -> str:
        """Return the https URL with this name in the issuer's configuration. Raises UnavailableError, InvalidError."""
        await self._current()
        return check_https(f"the {name} of the issuer", self._configuration.get(name))

    async def _current(self) -> KeySet:
        """Return the fresh or still usable keys. Raises UnavailableError."""
        if self._keys is None or self._age() >= CACHE_TTL.total_seconds():
            await self._fetch()
        if self._keys is None or self._age() >= STALE.total_seconds():
            raise UnavailableError(f"the keys of the issuer cannot be fetched: {self._failure}")
        return self._keys

    def _age(self) -> float:
        return self._clock.monotonic() - self._fetched_at

    async def _fetch(self) -> None:
        """Fetch, unless a fetch began less than APART ago. Callers share a fetch; a cancelled caller does not end it."""
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
            url, configuration = await discover(self._issuer, self._documents)
            if not self._allow_keys(url):
                raise ForbiddenError(f"the jwks_uri of the issuer is at another host, which is not allowed: {url[:200]}")
            self._keys, self._configuration = await fetch_keys(url, self._documents), configuration
        except MusterError as error:
            self._failure = error.message
        else:
            self._fetched_at = now
        finally:
            self._fetching = None
