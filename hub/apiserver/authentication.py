"""Who asks, by the client certificate of the connection and the hub's record of its serial."""

import asyncio
from collections.abc import Awaitable, Callable
from weakref import WeakSet

from aiohttp import web

from hub.domain.certificate import CertificateRecord, Purpose
from machinery.apiserver.access import ANONYMOUS, Authenticator, peer_certificate
from machinery.apiserver.storage import Actor
from machinery.errors import UnauthorizedError
from machinery.identity import AUTHENTICATED_GROUP, OPERATOR_GROUP, SerialNumber, is_reserved

MAX_KEPT = 10_000
Identify = Callable[[bytes], Awaitable[CertificateRecord]]
"""The record behind a certificate (DER). Raises UnauthorizedError when there is none, or it is revoked or not valid now."""


Listener = Callable[[SerialNumber | None], None]
Listen = Callable[[Listener], object]
"""Has a listener called with each serial found revoked; None: revocations cannot be read, so nobody is known any more."""


class CertificateAuthenticator(Authenticator):
    """The names in the record are the asker's. No certificate: anonymous. A bearer token: refused, none is known yet.

    A connection ends when its certificate is revoked, and the watches on it with it.
    """

    def __init__(self, identify: Identify, listen: Listen | None = None) -> None:
        self._identify = identify
        self._connections: dict[SerialNumber, WeakSet[asyncio.Transport]] = {}
        if listen is not None:
            listen(self._end)

    async def authenticate(self, request: web.Request) -> Actor:
        certificate = peer_certificate(request)
        if certificate is not None:
            record = await self._identify(certificate)
            self._remember(record.serial, request.transport)
            return Actor(record.user, (*_groups(record), AUTHENTICATED_GROUP))
        if request.headers.get("Authorization"):
            raise UnauthorizedError("Unauthorized")
        return ANONYMOUS

    def _remember(self, serial: SerialNumber, transport: asyncio.Transport | None) -> None:
        if len(self._connections) > MAX_KEPT:
            self._connections = {known: open_ones for known, open_ones in self._connections.items() if open_ones}
        if transport is not None:
            self._connections.setdefault(serial, WeakSet()).add(transport)

    def _end(self, serial: SerialNumber | None) -> None:
        for each in tuple(self._connections) if serial is None else (serial,):
            for transport in tuple(self._connections.pop(each, ())):
                transport.abort()


def _groups(record: CertificateRecord) -> tuple[str, ...]:
    """An add-on's registration may name any group; the operators' one counts in an operator's certificate alone."""
    return tuple(group for group in record.groups if group != OPERATOR_GROUP or record.purpose is Purpose.OPERATOR)


def takes_no_part(actor: Actor) -> bool:
    """In impersonation: agents, add-ons and bootstrap credentials are who the hub's records say, and nobody else is."""
    return is_reserved(actor.user, actor.groups)
