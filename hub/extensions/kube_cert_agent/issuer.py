"""Signs operators' logins with the CA of the hub's own Kubernetes cluster, so that they are valid there too.

Its API server accepts such a certificate until it expires; there is no revocation. So the issuer signs only logins, which last
for minutes, and no name with the prefix `system:`: a token for `system:masters` does not make its bearer an administrator of
that cluster.
"""

from collections.abc import Callable
from datetime import datetime

from hub.api.certificates import IssuedCertificate, Profile, Purpose
from hub.ports.identities import LoginIssuer
from machinery import pki
from machinery.errors import InvalidError, UnavailableError
from machinery.identity import SerialNumber

NAME, KEY_HASH_LENGTH = "kubernetes", 16
RESERVED = "system:"


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
        """PEM; b"" if there is no CA yet."""
        return self._authority.certificate if self._authority is not None else b""

    @property
    def signer(self) -> str:
        """Name of the CA in records: `kubernetes/<beginning of the hex SHA-256 of its public key>`; "" if there is none."""
        return _signer(self._authority) if self._authority is not None else ""

    def set_authority(self, certificate: bytes, key: bytes) -> None:
        """Set the CA from exactly one certificate and its key, and notify the listeners.

        Raises InvalidError; then nothing changes.
        """
        if len(pki.split_bundle(certificate)) != 1:
            raise InvalidError("there is more than one certificate: expected the CA's alone")
        self._authority = pki.CertificateAuthority(certificate, key)
        for listener in self._listeners:
            listener(self.certificate)

    def listen(self, listener: Callable[[bytes], None]) -> None:
        """Call `listener` with the certificate (PEM) of each CA that is set from now on."""
        self._listeners.append(listener)

    def issue_login(self, profile: Profile, serial: SerialNumber, now: datetime) -> IssuedCertificate:
        if profile.purpose is not Purpose.LOGIN:
            raise InvalidError(f"it signs operators' logins and nothing else, and this is for: {profile.purpose}")
        names = (profile.subject.common_name, *profile.subject.organizations)
        if any(name.startswith(RESERVED) for name in names):
            raise InvalidError(f'it signs no name that begins with "{RESERVED}": Kubernetes gives those itself')
        authority = self._authority
        if authority is None:
            raise UnavailableError("the cluster's CA is not known here now")
        facts = authority.facts
        if not facts.not_before <= now < profile.not_after <= facts.not_after:
            raise UnavailableError("the cluster's CA ends before this certificate would, or has not begun")
        begin = max(profile.not_before, facts.not_before)
        plan = pki.Plan(profile.subject, profile.public_key, serial, begin, profile.not_after)
        return IssuedCertificate(serial, authority.sign(plan), signed_by=_signer(authority))


def _signer(authority: pki.CertificateAuthority) -> str:
    return f"{NAME}/{authority.facts.key_hash[:KEY_HASH_LENGTH]}"
