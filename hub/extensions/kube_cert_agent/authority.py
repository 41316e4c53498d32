"""Certificates of the CA of the hub's own Kubernetes cluster: the hub signs operators' logins with this CA, and accepts them.

The cluster's API server accepts a certificate that the hub has signed until it expires; there is no revocation. So the issuer
signs only logins, which last for minutes, and no name with the prefix `system:`: a token for `system:masters` does not make its
bearer an administrator of that cluster.

Only the HTTPS door accepts this CA. A certificate that the hub issued must have the record of a login that is neither expired
nor revoked. Any other certificate must have a group of `--kubernetes-ca-groups`. Its user is the CN with a prefix that no user
of the hub has. In both cases, only the groups of that setting count.
"""

from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime

import structlog
from aiohttp import web

from hub.api.certificates import CertificateRecord, IssuedCertificate, Profile, Purpose
from hub.https_door.callers.authentication import ExternalAuthenticator, Identify, recorded_identity
from hub.ports.identities import LoginIssuer
from machinery import pki
from machinery.apiserver.access import peer_certificate
from machinery.apiserver.authn.authorities import RESERVED, TrustedAuthorities, mark_of_authority
from machinery.apiserver.authn.chain import CREDENTIAL_ID, Identity, RequestAuthenticator
from machinery.apiserver.storage import Actor
from machinery.errors import InvalidError, UnauthorizedError, UnavailableError
from machinery.identity import SerialNumber
from machinery.runtime.clock import Clock
from machinery.runtime.tls import Serving

NAME, KEY_HASH_LENGTH = "kubernetes", 16
SOURCE = "kubernetes-ca"
USER_PREFIX = "kubernetes:"
"""Prefix of users whose certificates have no record. The CN follows."""

FindRecord = Callable[[bytes], Awaitable[CertificateRecord]]
"""Returns the record of a certificate, even if it is revoked or expired. Raises UnauthorizedError if there is none."""

log = structlog.get_logger(__name__)


class KubernetesIssuer(LoginIssuer):
    """Signs with the CA that was set last. Thread-safe: certificate and key always match."""

    def __init__(self) -> None:
        self._authority: pki.CertificateAuthority | None = None
        self._listeners: list[Callable[[bytes], None]] = []

    @property
    def name(self) -> str:
        return NAME

    @property
    def certificate(self) -> bytes:
        """The CA's certificate (PEM); b"" if there is no CA yet."""
        return self._authority.certificate if self._authority is not None else b""

    @property
    def signer(self) -> str:
        """Name of the CA in records: `kubernetes/<beginning of the hex SHA-256 of its public key>`; "" if there is none."""
        return _signer(self._authority) if self._authority is not None else ""

    def set_authority(self, certificate: bytes, key: bytes) -> None:
        """Set the CA (exactly one certificate) and notify the listeners. Raises InvalidError; then nothing changes."""
        if len(pki.split_bundle(certificate)) != 1:
            raise InvalidError("there is more than one certificate: expected only the CA's")
        self._authority = pki.CertificateAuthority(certificate, key)
        for listener in self._listeners:
            listener(self.certificate)

    def listen(self, listener: Callable[[bytes], None]) -> None:
        """Call `listener` with the certificate (PEM) of each CA that is set from now on."""
        self._listeners.append(listener)

    def issue_login(self, profile: Profile, serial: SerialNumber, now: datetime) -> IssuedCertificate:
        if profile.purpose is not Purpose.LOGIN:
            raise InvalidError(f"it signs only operators' logins, and this is for: {profile.purpose}")
        names = (profile.subject.common_name, *profile.subject.organizations)
        if any(name.startswith(RESERVED) for name in names):
            raise InvalidError(f'it signs no name that begins with "{RESERVED}", which is reserved for Kubernetes')
        authority = self._authority
        if authority is None:
            raise UnavailableError("the cluster's CA is not loaded yet")
        facts = authority.facts
        if not facts.not_before <= now < profile.not_after <= facts.not_after:
            raise UnavailableError("the cluster's CA ends before this certificate would, or has not begun")
        begin = max(profile.not_before, facts.not_before)
        plan = pki.Plan(profile.subject, profile.public_key, serial, begin, profile.not_after)
        return IssuedCertificate(serial, authority.sign(plan), signed_by=_signer(authority))


def _signer(authority: pki.CertificateAuthority) -> str:
    return f"{NAME}/{authority.facts.key_hash[:KEY_HASH_LENGTH]}"


class KubernetesAuthority(ExternalAuthenticator, RequestAuthenticator):
    """Accepts certificates of the CA that `take` sets. Only `groups` count. Without a record, a certificate must have one."""

    def __init__(self, groups: Iterable[str], serving: Serving, identify: Identify, find: FindRecord, clock: Clock) -> None:
        self._groups = frozenset(group for group in groups if not group.startswith(RESERVED))
        self._serving = serving
        self._identify = identify
        self._find = find
        self._clock = clock
        self._authorities = TrustedAuthorities()
        self.authenticator = self

    def owns(self, certificate: bytes) -> bool:
        return self._authorities.signed(certificate) is not None

    def take(self, authority: bytes) -> None:
        """Trusts only this CA (PEM) and ends watches of users of another CA. Refuses the hub's own CA with a log line."""
        own = {pki.parse_certificate(each).key_hash for each in pki.split_bundle(self._serving.material.trust)}
        if pki.parse_certificate(authority).key_hash in own:
            why = "it is the hub's own CA, whose certificates need a record"
            log.error("the Kubernetes CA is not trusted at the HTTPS door", error=why)
            return
        try:
            self._serving.trust_clients(SOURCE, authority)
            self.end_requests_under(self._authorities.replace(authority))
        except InvalidError as error:
            log.error("the Kubernetes CA is not trusted at the HTTPS door", error=error.message)  # noqa: TRY400 - expected

    async def identify(self, request: web.Request) -> Identity | None:
        certificate = peer_certificate(request)
        signed = self._authorities.signed(certificate) if certificate is not None else None
        if certificate is None or signed is None:
            return None
        try:
            record = await self._identify(certificate)
        except UnauthorizedError:
            if await self._is_recorded(certificate):
                raise
        else:
            if record.purpose is not Purpose.LOGIN:
                raise UnauthorizedError("the Kubernetes CA signs only operators' logins")
            return recorded_identity(record, certificate, record.user, self._counted(record.groups))
        facts = signed.facts
        groups = self._counted(facts.subject.organizations)
        if not groups or not facts.subject.common_name:
            raise UnauthorizedError("this certificate of the Kubernetes CA has no group that is accepted here")
        if not facts.not_before <= self._clock.now() <= facts.not_after:
            raise UnauthorizedError("this certificate is not valid now")
        user = f"{USER_PREFIX}{facts.subject.common_name}"
        actor = Actor(user, groups, extra={CREDENTIAL_ID: (f"X509SHA256={facts.fingerprint}",)})
        return Identity(actor, f"{mark_of_authority(signed.authority)}{facts.fingerprint}", facts.not_after)

    async def _is_recorded(self, certificate: bytes) -> bool:
        try:
            await self._find(certificate)
        except UnauthorizedError:
            return False
        return True

    def _counted(self, groups: Iterable[str]) -> tuple[str, ...]:
        return tuple(sorted(self._groups.intersection(groups)))
