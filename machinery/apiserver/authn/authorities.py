"""Client certificates of external CAs: which CA signed a certificate, and which names the certificate may contain.

Such a CA issues certificates for people and tools. The server refuses names that begin with `system:`, because only the server
itself assigns such names. It ignores groups that the operator has not allowed.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from aiohttp import web

from machinery import pki
from machinery.apiserver.access import peer_certificate
from machinery.apiserver.authn.chain import CREDENTIAL_ID, Identity, RequestAuthenticator
from machinery.apiserver.storage import Actor
from machinery.errors import InvalidError, UnauthorizedError
from machinery.pki import CertificateFacts
from machinery.runtime.clock import Clock

RESERVED = "system:"
MAX_KEPT = 10_000


@dataclass(frozen=True, slots=True)
class Signed:
    """A certificate and the fingerprint of the CA that signed it."""

    facts: CertificateFacts
    authority: str

    @property
    def mark(self) -> str:
        """Key by which `credential_end.Presence` ends the open requests with this certificate."""
        return f"{mark_of_authority(self.authority)}{self.facts.fingerprint}"


class TrustedAuthorities:
    """A replaceable set of CAs. TLS has already verified the client certificates, but possibly with other CAs."""

    def __init__(self, bundle: bytes = b"") -> None:
        """`bundle`: PEM; b"": no CA. Raises InvalidError."""
        self._bundle = b""
        self._known: dict[str, bytes] = {}
        self._seen: dict[bytes, Signed | None] = {}
        self.replace(bundle)

    @property
    def bundle(self) -> bytes:
        return self._bundle

    def replace(self, bundle: bytes) -> frozenset[str]:
        """Replace the CAs. Return the fingerprints of removed CAs. Raises InvalidError and then changes nothing."""
        certificates = pki.split_bundle(bundle) if bundle else ()
        known = {pki.parse_certificate(each).fingerprint: each for each in certificates}
        for facts in map(pki.parse_certificate, certificates):
            if not facts.is_ca:
                raise InvalidError(f'the certificate of "{facts.subject.common_name}" is no CA: specify the CA that signed it')
        gone = frozenset(self._known) - frozenset(known)
        self._bundle, self._known, self._seen = bundle, known, {}
        return gone

    def presented(self, request: web.Request) -> Signed | None:
        """Return the client certificate with its CA; None if there is none, or another CA has signed it."""
        certificate = peer_certificate(request)
        return None if certificate is None else self.signed(certificate)

    def signed(self, certificate: bytes) -> Signed | None:
        """Return the certificate with its CA; None if another CA has signed it."""
        if certificate not in self._seen:
            if len(self._seen) >= MAX_KEPT:
                self._seen.clear()
            issuers = (each for each, authority in self._known.items() if pki.is_issued_by(certificate, authority))
            issuer = next(issuers, None)
            self._seen[certificate] = None if issuer is None else Signed(pki.parse_certificate(certificate), issuer)
        return self._seen[certificate]


class ForeignCertificates(RequestAuthenticator):
    """Authenticates certificates of `authorities`: the CN is the user; the O entries that are in `groups` are the groups."""

    def __init__(self, authorities: TrustedAuthorities, groups: Iterable[str], clock: Clock) -> None:
        self._authorities = authorities
        self._groups = frozenset(group for group in groups if not group.startswith(RESERVED))
        self._clock = clock

    async def identify(self, request: web.Request) -> Identity | None:
        signed = self._authorities.presented(request)
        if signed is None:
            return None
        facts, user = signed.facts, signed.facts.subject.common_name
        if not facts.not_before <= self._clock.now() <= facts.not_after:
            raise UnauthorizedError("this certificate is not valid now")
        if not user or user.startswith(RESERVED):
            raise UnauthorizedError(f'a certificate of this CA cannot be for "{user[:80]}": only the server assigns such names')
        groups = tuple(sorted(facts.subject.organizations & self._groups))
        actor = Actor(user, groups, extra={CREDENTIAL_ID: (f"X509SHA256={facts.fingerprint}",)})
        return Identity(actor, signed.mark, facts.not_after)


def mark_of_authority(fingerprint: str) -> str:
    """Return the common prefix of `Signed.mark` for all certificates of a CA. `fingerprint`: of the CA."""
    return f"authority/{fingerprint}/"
