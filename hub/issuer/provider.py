"""A CA with its key that comes, changes and goes while the hub runs: whoever signs with it asks for it each time."""

from collections.abc import Callable

from hub.issuer.callbacks import Listeners
from hub.ports import AuthorityKeeper
from machinery import pki
from machinery.errors import InvalidError

NAME, SHORT = "kubernetes", 16


class AuthorityProvider(AuthorityKeeper):
    """Holds a CA, or none. Safe to call from several threads; what is held is one whole pair at every moment."""

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
        """PEM; b"": there is none."""
        current = self._current
        return b"" if current is None else current.certificate

    @property
    def signer(self) -> str:
        """`kubernetes/<beginning of the hex SHA-256 of the CA's public key>`, or empty."""
        current = self._current
        return "" if current is None else signer(current)

    def set(self, certificate: bytes, key: bytes) -> None:
        """Takes exactly one certificate, a CA's, and its key; tells every listener.

        Raises InvalidError; then nothing has changed and nobody is told.
        """
        if len(pki.split_bundle(certificate)) != 1:
            raise InvalidError("there is more than one certificate: expected the CA's alone")
        self._take(pki.CertificateAuthority(certificate, key))

    def unset(self) -> None:
        """Holds none from now on; tells every listener."""
        self._take(None)

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Has `listener` called after each change, in whatever thread makes it. Returns what ends that."""
        return self._listeners.listen(listener)

    def _take(self, authority: pki.CertificateAuthority | None) -> None:
        self._current = authority
        self._listeners.tell()


def signer(authority: pki.CertificateAuthority) -> str:
    """How records, status and logs name such a CA."""
    return f"{NAME}/{authority.facts.key_hash[:SHORT]}"
