"""Authentication by the hub's own records: client certificates and bootstrap tokens."""

from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256

from aiohttp import web

from hub.access import counted_names
from hub.api.bootstrapcredentials import CredentialRecord
from hub.api.certificates import CertificateRecord
from machinery.apiserver.access import peer_certificate
from machinery.apiserver.authn.chain import CREDENTIAL_ID, Identity, RequestAuthenticator, TokenAuthenticator
from machinery.apiserver.authn.credential_end import Presence
from machinery.apiserver.storage import Actor
from machinery.identity import BOOTSTRAP_GROUP, CredentialId, SerialNumber, bootstrap_user, is_reserved

Identify = Callable[[bytes], Awaitable[CertificateRecord]]
"""Returns the record of a certificate (DER). Raises UnauthorizedError if there is none, or it is revoked or not valid now."""

IdentifyToken = Callable[[str], Awaitable[CredentialRecord | None]]
"""Returns the credential of a bootstrap token; None: not a bootstrap token. Raises UnauthorizedError if it is not valid."""

Listen = Callable[[Callable[[SerialNumber | None], None]], object]
"""Registers a listener for revoked serial numbers; it gets None when revocations cannot be read."""

ListenToCredentials = Callable[[Callable[[CredentialId], None]], object]
"""Registers a listener for revoked bootstrap credentials."""


class CertificateAuthenticator(RequestAuthenticator):
    """Authenticates by the names in the certificate's record, as far as they count."""

    def __init__(self, identify: Identify, is_anothers: Callable[[bytes], bool] = lambda _certificate: False) -> None:
        """`is_anothers`: whether only another authenticator may judge a certificate."""
        self._identify = identify
        self._is_anothers = is_anothers

    async def identify(self, request: web.Request) -> Identity | None:
        certificate = peer_certificate(request)
        if certificate is None or self._is_anothers(certificate):
            return None
        record = await self._identify(certificate)
        user, groups = counted_names(record)
        extra = {CREDENTIAL_ID: (f"X509SHA256={sha256(certificate).hexdigest()}",)}
        actor = Actor(user, groups, extra=extra, holder=record)
        return Identity(actor, mark_of_serial(record.serial), record.not_after)


class BootstrapTokenAuthenticator(TokenAuthenticator):
    """Authenticates a bootstrap token as the user of its bootstrap credential, as a certificate of it would be."""

    def __init__(self, identify: IdentifyToken) -> None:
        self._identify = identify

    async def identify(self, token: str, audiences: Sequence[str]) -> Identity | None:
        record = await self._identify(token)
        if record is None:
            return None
        extra = {CREDENTIAL_ID: (f"BOOTSTRAP={record.id}",)}
        actor = Actor(bootstrap_user(record.id), (BOOTSTRAP_GROUP,), extra=extra, holder=record)
        return Identity(actor, mark_of_credential(record.id), record.expires_at, tuple(audiences))


def end_with_revocations(presence: Presence, serials: Listen | None, credentials: ListenToCredentials | None) -> None:
    """Ends long-running requests of revoked certificates and bootstrap credentials."""

    def end_serial(serial: SerialNumber | None) -> None:
        if serial is None:
            presence.end_all()
        else:
            presence.end(mark_of_serial(serial))

    if serials is not None:
        serials(end_serial)
    if credentials is not None:
        credentials(lambda credential: presence.end(mark_of_credential(credential)))


def mark_of_serial(serial: SerialNumber) -> str:
    return f"certificate/{serial:x}"


def mark_of_credential(credential: CredentialId) -> str:
    return f"bootstrap/{credential}"


def takes_no_part(actor: Actor) -> bool:
    """Whether impersonation is impossible: only the hub's records make an actor an agent, add-on or bootstrap credential."""
    return is_reserved(actor.user, actor.groups)
