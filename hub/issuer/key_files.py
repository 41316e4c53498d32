"""CA keys in files with mode 0600: `ca.crt` and `ca.key` of the first CA, `ca-ID.crt` and `ca-ID.key` of later ones.

A folder given by `--keys-dir`, or one that other replicas do not see, is only read: an operator puts the next CA's two files
there, for every replica.
"""

from collections.abc import Collection, Iterable
from pathlib import Path

import structlog

from hub.api.certificateauthorities.authority import AuthorityId
from hub.issuer import files
from hub.ports import KeyPair, KeyPlace
from machinery import pki
from machinery.errors import InvalidError, UnavailableError

log = structlog.get_logger(__name__)


class KeyFiles(KeyPlace):
    """`read_only`: this replica must not write here, or the other replicas could not see it."""

    def __init__(self, folder: Path, *, read_only: bool) -> None:
        self._folder = folder
        self._read_only = read_only

    @property
    def refusal(self) -> str | None:
        if not self._read_only:
            return None
        return (
            f"this hub only reads the keys in {self._folder}: make the next CA with `hub keys next FOLDER`, put its two files "
            "beside the other keys of every replica, and ask again; or keep the keys where all replicas can write them "
            "(--ca-key-place database or secret)"
        )

    async def find(self, authority: AuthorityId) -> KeyPair | None:
        return next((pair for pair in self._pairs() if id_of(pair) == authority), None)

    async def offered(self, known: Collection[AuthorityId]) -> KeyPair | None:
        return newest(self._pairs(), known)

    async def keep(self, authority: AuthorityId, pair: KeyPair) -> None:
        if self.refusal is not None:
            raise InvalidError(self.refusal)
        key, certificate = key_file(authority), certificate_file(authority)
        files.replace(self._folder / key, pair.key)
        files.replace(self._folder / certificate, pair.certificate)

    async def forget(self, authority: AuthorityId) -> None:
        if self._read_only:
            return
        for path in self._key_files():
            certificate = path.with_suffix(".crt")
            pair = self._pair(path)
            if pair is not None and id_of(pair) == authority:
                files.remove(path)
                files.remove(certificate)

    def _key_files(self) -> list[Path]:
        try:
            return sorted(path for path in self._folder.iterdir() if path.name == "ca.key" or path.match("ca-*.key"))
        except OSError as error:
            raise UnavailableError(f"{self._folder} cannot be read: {error.strerror}") from error

    def _pairs(self) -> list[KeyPair]:
        found = (self._pair(path) for path in self._key_files())
        return [pair for pair in found if pair is not None]

    def _pair(self, path: Path) -> KeyPair | None:
        """A CA's files; None: incomplete, possibly still being copied, or not a CA."""
        certificate, key = files.read(path.with_suffix(".crt")), files.read(path)
        if certificate is None or key is None:
            return None
        try:
            pki.CertificateAuthority(certificate, key)
        except InvalidError as error:
            log.warning("a file is not the key of a CA", file=str(path), error=error.message)
            return None
        return KeyPair(certificate, key)


def newest(pairs: Iterable[KeyPair], known: Collection[AuthorityId]) -> KeyPair | None:
    """The newest of the unknown CAs, by the start of its validity."""
    unknown = [pair for pair in pairs if id_of(pair) not in known]
    return max(unknown, key=lambda pair: pki.parse_certificate(pair.certificate).not_before, default=None)


def key_file(authority: AuthorityId) -> str:
    return f"ca-{authority}.key"


def certificate_file(authority: AuthorityId) -> str:
    return f"ca-{authority}.crt"


def id_of(pair: KeyPair) -> AuthorityId:
    return AuthorityId(pki.parse_certificate(pair.certificate).key_hash[:16])
