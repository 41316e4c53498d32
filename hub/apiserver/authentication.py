"""Who asks, by the client certificate of the connection and the hub's record of its serial."""

from collections.abc import Awaitable, Callable

from aiohttp import web

from hub.domain.certificate import CertificateRecord, Purpose
from machinery.apiserver.access import ANONYMOUS, Authenticator, peer_certificate
from machinery.apiserver.storage import Actor
from machinery.errors import UnauthorizedError
from machinery.identity import OPERATOR_GROUP

Identify = Callable[[bytes], Awaitable[CertificateRecord]]
"""The record behind a certificate (DER). Raises UnauthorizedError when there is none, or it is revoked or not valid now."""


class CertificateAuthenticator(Authenticator):
    """The names in the record are the asker's. No certificate: anonymous. A bearer token: refused, none is known yet."""

    def __init__(self, identify: Identify) -> None:
        self._identify = identify

    async def authenticate(self, request: web.Request) -> Actor:
        certificate = peer_certificate(request)
        if certificate is not None:
            record = await self._identify(certificate)
            return Actor(record.user, (*_groups(record), "system:authenticated"))
        if request.headers.get("Authorization"):
            raise UnauthorizedError("Unauthorized")
        return ANONYMOUS


def _groups(record: CertificateRecord) -> tuple[str, ...]:
    """An add-on's registration may name any group; the operators' one counts in an operator's certificate alone."""
    return tuple(group for group in record.groups if group != OPERATOR_GROUP or record.purpose is Purpose.OPERATOR)
