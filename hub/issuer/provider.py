"""Holds a CA that may appear, change and disappear at run time; a signer gets it anew for each signature."""

from collections.abc import Callable

from hub.issuer.callbacks import Listeners
from hub.ports import AuthorityKeeper
from machinery import pki
from machinery.errors import InvalidError

NAME, SHORT = "kubernetes", 16


class AuthorityProvider(AuthorityKeeper):
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
