"""Who asks at the HTTPS door: the record of the client certificate's serial, never what the certificate says of itself."""

from collections.abc import Awaitable, Callable

from aiohttp import web

from hub.domain.certificate import CertificateRecord, Purpose
from machinery.apiserver.access import ANONYMOUS, Authenticator, peer_certificate
from machinery.apiserver.storage import Actor
from machinery.errors import UnauthorizedError

Resolve = Callable[[bytes], Awaitable[CertificateRecord]]
"""From a verified client certificate (DER) to its record. Raises UnauthorizedError: unknown, revoked or over."""

AUTHENTICATED_GROUP = "system:authenticated"
CLOSED = (Purpose.RECOVERY, Purpose.SERVING)
"""Purposes that open nothing at this door."""


class CertificateAuthenticator(Authenticator):
    """Client certificates only; a bearer token is refused, since this hub issues none yet."""

    def __init__(self, resolve: Resolve) -> None:
        self._resolve = resolve

    async def authenticate(self, request: web.Request) -> Actor:
        if "Authorization" in request.headers:
            raise UnauthorizedError("Unauthorized")
        certificate = peer_certificate(request)
        if certificate is None:
            return ANONYMOUS
        record = await self._resolve(certificate)
        if record.purpose in CLOSED:
            raise UnauthorizedError("Unauthorized")
        return Actor(record.user, (*record.groups, AUTHENTICATED_GROUP))
