"""Signs operators' logins with the CA of the hub's own Kubernetes cluster, so that they are valid there too.

Its API server accepts such a certificate until it expires; there is no revocation. So the issuer signs only logins, which last
for minutes, and no name with the prefix `system:`: a token for `system:masters` does not make its bearer an administrator of
that cluster.
"""

from collections.abc import Callable
from datetime import datetime

from hub.api.certificates import IssuedCertificate, Profile, Purpose
from hub.issuer.rotating import Listeners
from hub.ports import LoginIssuer
from machinery import pki
from machinery.errors import InvalidError, UnavailableError
from machinery.identity import SerialNumber

NAME, SHORT = "kubernetes", 16


class AuthorityProvider:
    """Holds one CA or none. Thread-safe: certificate and key always match."""

    def __init__(self) -> None:
        self._current: pki.CertificateAuthority | None = None
        self._listeners = Listeners()

    def __repr__(self) -> str:
        return "AuthorityProvider(...)"

    @property
    def current(self) -> pki.CertificateAuthority | None:
        return self._current

    @property
    def certificate(self) -> bytes:
        """PEM; b"" if there is none."""
        current = self._current
        return b"" if current is None else current.certificate

    @property
    def signer(self) -> str:
        """`kubernetes/<beginning of the hex SHA-256 of the CA's public key>`; "" if there is none."""
        current = self._current
        return "" if current is None else signer(current)

    def set(self, certificate: bytes, key: bytes) -> None:
        """Set the CA from exactly one certificate and its key, and notify the listeners.

        Raises InvalidError; then nothing changes.
        """
        if len(pki.split_bundle(certificate)) != 1:
            raise InvalidError("there is more than one certificate: expected the CA's alone")
        self._take(pki.CertificateAuthority(certificate, key))

    def unset(self) -> None:
        """Remove the CA and notify the listeners."""
        self._take(None)

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after each change, in the thread that makes it. Returns a function that removes it."""
        return self._listeners.listen(listener)

    def _take(self, authority: pki.CertificateAuthority | None) -> None:
        self._current = authority
        self._listeners.tell()


def signer(authority: pki.CertificateAuthority) -> str:
    """Name of such a CA in records, status and logs."""
    return f"{NAME}/{authority.facts.key_hash[:SHORT]}"


RESERVED = "system:"


class KubernetesIssuer(LoginIssuer):
    """Signs with the CA that `provider` holds at each call."""

    def __init__(self, provider: AuthorityProvider) -> None:
        self._provider = provider

    @property
    def name(self) -> str:
        return NAME

    def issue_login(self, profile: Profile, serial: SerialNumber, now: datetime) -> IssuedCertificate:
        """`signed_by` is `kubernetes/<beginning of the hex SHA-256 of the CA's public key>`."""
        if profile.purpose is not Purpose.LOGIN:
            raise InvalidError(f"it signs operators' logins and nothing else, and this is for: {profile.purpose}")
        names = (profile.subject.common_name, *profile.subject.organizations)
        if any(name.startswith(RESERVED) for name in names):
            raise InvalidError(f'it signs no name that begins with "{RESERVED}": Kubernetes gives those itself')
        authority = self._provider.current
        if authority is None:
            raise UnavailableError("the cluster's CA is not known here now")
        facts = authority.facts
        if not facts.not_before <= now < profile.not_after <= facts.not_after:
            raise UnavailableError("the cluster's CA ends before this certificate would, or has not begun")
        plan = pki.Plan(
            subject=profile.subject,
            public_key=profile.public_key,
            serial=serial,
            not_before=max(profile.not_before, facts.not_before),
            not_after=profile.not_after,
        )
        return IssuedCertificate(serial, authority.sign(plan), signed_by=signer(authority))
