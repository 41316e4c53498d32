"""HTTPS client for JSON documents that authenticators need, and the allowlist of URLs that an administrator of the API chose.

Each request has a time limit; the size of a response is limited and it is not decompressed. Redirects are not followed and the
environment (proxies, netrc) is ignored. Each request opens a new connection, so a replaced CA or address takes effect at once.
"""

import asyncio
import re
import ssl
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

import aiohttp
import msgspec

from machinery.errors import InvalidError, UnavailableError
from machinery.meta.urls import https_flaw
from machinery.product import NAME
from machinery.runtime.tls import client_context

HTTPS_PORT = 443
_HOST = re.compile(r"[a-z0-9._-]+|[0-9a-f:.]+")


@dataclass(frozen=True, slots=True)
class AllowedUrls:
    """Without entries, no URL is allowed.

    An entry is a whole URL, or `https://HOST[:PORT]` for all URLs of that host. `*.` before a host matches its subdomains.
    """

    entries: tuple[str, ...] = ()

    def allow(self, url: str) -> bool:
        host, port = _https_host(url)
        return bool(host) and any(entry == url or _is_at(entry, host, port) for entry in self.entries)

    def allow_keys(self, issuer: str, url: str) -> bool:
        """Whether keys of an allowed issuer may be fetched from `url`: the issuer's own host and port, or an allowed URL."""
        return _https_host(url) == _https_host(issuer) != ("", 0) or self.allow(url)


def _is_at(entry: str, host: str, port: int) -> bool:
    """Whether an entry for a whole host matches this host and port."""
    named, named_port = _https_host(entry.replace("*.", "any.", 1))
    if urlsplit(entry).path or port != named_port:
        return False
    return host.endswith(named.removeprefix("any")) if "//*." in entry else host == named


def _https_host(url: str) -> tuple[str, int]:
    """Lower-case host and port of an https URL; ("", 0): not https, or invalid characters in the host."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or HTTPS_PORT
    except ValueError:
        return "", 0
    return (host, port) if parts.scheme == "https" and _HOST.fullmatch(host) else ("", 0)


T = TypeVar("T")

PATIENCE = timedelta(seconds=10)
MAX_ANSWER = 512 * 1024
_CHUNK = 64 * 1024


class JsonDocuments(Protocol):
    """Port for JSON documents of external servers."""

    async def get(self, url: str) -> Mapping[str, Any]:
        """Raises UnavailableError about the server, the connection or the response, without the response's text."""

    async def post(self, url: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """As `get`; the error contains nothing of `body`."""

    async def reach(self, url: str) -> None:
        """Connect to the server and verify it. Raises UnavailableError."""


@dataclass(frozen=True, slots=True)
class HttpsDocuments(JsonDocuments):
    """`authorities`: PEM of the CAs that verify servers; b"": the CAs that this machine trusts."""

    context: ssl.SSLContext
    patience: timedelta = PATIENCE

    @classmethod
    def trusting(cls, authorities: bytes, patience: timedelta = PATIENCE) -> "HttpsDocuments":
        """Raises InvalidError for unreadable CAs."""
        return cls(client_context(authorities) if authorities else ssl.create_default_context(), patience)

    async def get(self, url: str) -> Mapping[str, Any]:
        return await self._ask("GET", url, None)

    async def post(self, url: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        return await self._ask("POST", url, msgspec.json.encode(body))

    async def reach(self, url: str) -> None:
        await self._guarded(urlsplit(url).netloc, self._connected(url))

    async def _connected(self, url: str) -> None:
        parts = urlsplit(url)
        host = parts.hostname or ""
        _reader, writer = await asyncio.open_connection(host, parts.port or 443, ssl=self.context, server_hostname=host)
        writer.transport.abort()

    async def _ask(self, method: str, url: str, body: bytes | None) -> Mapping[str, Any]:
        host = urlsplit(url).netloc
        return _document(await self._guarded(host, self._exchange(method, url, body)), host)

    async def _guarded(self, host: str, asking: Coroutine[Any, Any, T]) -> T:
        """Await `asking` within the time limit and convert every failure to UnavailableError."""
        try:
            async with asyncio.timeout(self.patience.total_seconds()):
                return await asking
        except TimeoutError:
            raise UnavailableError(f"{host} does not answer within {self.patience.total_seconds():g} s") from None
        except aiohttp.ClientConnectorCertificateError as error:
            why = getattr(error.certificate_error, "verify_message", "") or "it cannot be verified"
            raise UnavailableError(f"the certificate of {host} is not good: {why}") from None
        except aiohttp.ClientConnectorError as error:
            raise UnavailableError(
                f"{host} cannot be reached: {error.os_error.strerror or type(error.os_error).__name__}"
            ) from None
        except ssl.SSLCertVerificationError as error:
            raise UnavailableError(f"the certificate of {host} is not good: {error.verify_message}") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise UnavailableError(f"{host} cannot be asked: {type(error).__name__}") from None

    async def _exchange(self, method: str, url: str, body: bytes | None) -> bytes:
        headers = {
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            "User-Agent": NAME,
            **({"Content-Type": "application/json"} if body is not None else {}),
        }
        connector = aiohttp.TCPConnector(ssl=self.context, force_close=True)
        async with (
            aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False) as session,
            session.request(method, url, data=body, headers=headers, allow_redirects=False) as response,
        ):
            if response.status not in (200, 201):
                raise UnavailableError(f"{urlsplit(url).netloc} answers with HTTP status {response.status}")
            content = bytearray()
            async for chunk in response.content.iter_chunked(_CHUNK):
                content += chunk
                if len(content) > MAX_ANSWER:
                    raise UnavailableError(f"the answer of {urlsplit(url).netloc} is longer than {MAX_ANSWER} bytes")
            return bytes(content)


def _document(content: bytes, host: str) -> Mapping[str, Any]:
    try:
        document = msgspec.json.decode(content)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        document = None
    if not isinstance(document, dict):
        raise UnavailableError(f"the answer of {host} is not a JSON document")
    return document


def check_https(what: str, url: object) -> str:
    """Return the URL. Raises InvalidError that states what is wrong with it."""
    flaw = https_flaw(url)
    if flaw is not None:
        raise InvalidError(f"{what} is not an https:// address: {flaw}")
    return str(url)
