"""The client with which the server's hooks call its own API, and its credential: a token and a certificate in memory only.

The token identifies the user `system:apiserver` in the group `system:masters`. The server presents the certificate to clients
that request its unique server name (SNI). So the loopback client does not depend on the public certificate and its names.
"""

import hmac
import http
import json
import secrets
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Self

import aiohttp
from aiohttp import web

from machinery import pki
from machinery.apiserver.access import Authenticator
from machinery.apiserver.storage import Actor
from machinery.errors import BY_REASON, UnavailableError
from machinery.identity import CertificateSubject
from machinery.product import NAME, version
from machinery.runtime.clock import Clock
from machinery.runtime.tls import Material, client_context, server_context

SERVER_NAME = f"{NAME}-loopback-client"
USER_AGENT = f"{NAME}-loopback/"
LIFETIME = timedelta(days=3 * 365)
BACKDATED = timedelta(hours=48)
ACTOR = Actor("system:apiserver", ("system:masters", "system:authenticated"))
TIMEOUT = 60


@dataclass(frozen=True, slots=True)
class Loopback:
    """The identity of one server for its own requests. It is never stored, logged or displayed."""

    token: str = field(repr=False)
    material: Material
    not_after: datetime

    @classmethod
    def fresh(cls, now: datetime) -> "Loopback":
        """Create an identity with its own CA, whose key is discarded after the signature."""
        signing, key = pki.generate_key(), pki.generate_key()
        begin, end = now - BACKDATED, now + LIFETIME
        authority = pki.create_authority(
            CertificateSubject(f"{SERVER_NAME}-ca"), signing, pki.random_serial(), begin, end + BACKDATED
        )
        plan = pki.Plan(
            subject=CertificateSubject(SERVER_NAME),
            public_key=pki.public_key_of(key),
            serial=pki.random_serial(),
            not_before=begin,
            not_after=end,
            usage=pki.Usage.SERVER,
            dns_names=(SERVER_NAME,),
        )
        return cls(secrets.token_urlsafe(32), Material(authority.sign(plan), key, authority.certificate), end)

    def shown_by(self, context: ssl.SSLContext) -> None:
        """Make a listener's TLS context present the loopback certificate for SERVER_NAME. Other names get its own."""
        mine, others = server_context(self.material), context.sni_callback

        def choose(connection: ssl.SSLObject, name: str, context: ssl.SSLContext) -> None:
            if name == SERVER_NAME:
                connection.context = mine
            elif others is not None:
                others(connection, name, context)

        context.sni_callback = choose

    def is_shown_by(self, request: web.Request) -> bool:
        """Whether a request contains the token and is therefore the server's own."""
        shown = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        return hmac.compare_digest(shown, f"Bearer {self.token}".encode())

    def check(self, clock: Clock) -> Callable[[], Awaitable[None]]:
        """Return a health check that fails when the certificate has expired, so that the process is restarted."""

        async def valid() -> None:
            if clock.now() > self.not_after:
                raise RuntimeError(f"the loopback certificate ended at {self.not_after:%Y-%m-%dT%H:%M:%SZ}")

        return valid


class LoopbackAuthenticator(Authenticator):
    """Authenticates the loopback token, and passes other requests to `others`."""

    def __init__(self, loopback: Loopback, others: Authenticator) -> None:
        self._loopback = loopback
        self._others = others

    async def authenticate(self, request: web.Request) -> Actor:
        if self._loopback.is_shown_by(request):
            return ACTOR
        return await self._others.authenticate(request)


class LoopbackClient:
    """Client for the server's own API, used in an `async with` block. Raises the errors of responses."""

    def __init__(self, loopback: Loopback, host: str, port: int) -> None:
        """`host`: the listen address; for a wildcard address the client uses the loopback address."""
        reached = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)  # noqa: S104 - compared, not bound
        self._url = f"https://[{reached}]:{port}" if ":" in reached else f"https://{reached}:{port}"
        self._loopback = loopback

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {self._loopback.token}", "User-Agent": f"{USER_AGENT}{version()}"},
            connector=aiohttp.TCPConnector(ssl=client_context(self._loopback.material.trust)),
            timeout=aiohttp.ClientTimeout(total=TIMEOUT),
            trust_env=False,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def get(self, path: str) -> Any:
        return await self.request("GET", path)

    async def request(self, method: str, path: str, body: Any = None) -> Any:
        """Return the response's document or text. Raises MusterError."""
        try:
            async with self._session.request(method, self._url + path, json=body, server_hostname=SERVER_NAME) as response:
                text = await response.text()
                document = json.loads(text) if response.content_type == "application/json" else text
        except (aiohttp.ClientError, TimeoutError) as error:
            raise UnavailableError(f"the server does not answer itself: {error or type(error).__name__}") from error
        if response.status >= http.HTTPStatus.BAD_REQUEST:
            if isinstance(document, dict):
                raise BY_REASON.get(str(document.get("reason")), UnavailableError)(str(document.get("message")))
            raise UnavailableError(str(document).strip())
        return document
