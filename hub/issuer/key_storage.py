"""Storage of the CA keys: files, the database, or a Secret of the hub's own Kubernetes cluster.

Files have mode 0600: `ca.crt` and `ca.key` of the first CA, `ca-ID.crt` and `ca-ID.key` of later ones. A folder given by
`--keys-dir`, or one that other replicas do not see, is only read: an operator puts the next CA's two files there, for every
replica. The database and the Secret are shared by all replicas.
"""

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import structlog

from hub.api.certificateauthorities.authority import AuthorityId, AuthorityRecord
from hub.ports import KeyPair, KeyPlace, KeySecret, Store, Transaction
from machinery import pki
from machinery.errors import InvalidError, UnavailableError
from machinery.pki.encryption import Seal
from machinery.runtime.directory import DataDirectory, read_file

log = structlog.get_logger(__name__)


class KeyFiles(KeyPlace):
    """`read_only`: this replica must not write here, or the other replicas could not see it."""

    def __init__(self, folder: Path, *, read_only: bool) -> None:
        self._folder = folder
        self._directory = DataDirectory(folder, "hub")
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
        self._directory.write(key, pair.key)
        self._directory.write(certificate, pair.certificate)

    async def forget(self, authority: AuthorityId) -> None:
        if self._read_only:
            return
        for path in self._key_files():
            pair = self._pair(path)
            if pair is not None and id_of(pair) == authority:
                self._directory.remove(path.name)
                self._directory.remove(path.with_suffix(".crt").name)

    def _key_files(self) -> list[Path]:
        try:
            return sorted(path for path in self._folder.iterdir() if path.name == "ca.key" or path.match("ca-*.key"))
        except OSError as error:
            raise UnavailableError(f"{self._folder} cannot be read: {error.strerror}") from error

    def _pairs(self) -> list[KeyPair]:
        found = (self._pair(path) for path in self._key_files())
        return [pair for pair in found if pair is not None]

    @staticmethod
    def _pair(path: Path) -> KeyPair | None:
        """A CA's files; None: incomplete, possibly still being copied, or not a CA."""
        return _pair_of(read_file(path.with_suffix(".crt")), read_file(path), str(path))


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


class SealedKeys(KeyPlace):
    """In the database, sealed with the key for Secrets, which the database does not contain."""

    def __init__(self, store: Store, seal: Seal) -> None:
        self._store = store
        self._seal = seal

    @property
    def refusal(self) -> str | None:
        return None

    def sealed(self, authority: AuthorityId, key: bytes) -> bytes:
        """The key as stored in the database."""
        return self._seal.closed(key, _place(authority))

    async def find(self, authority: AuthorityId) -> KeyPair | None:
        one, sealed = await self._store.read(_look, authority)
        if one is None or sealed is None:
            return None
        key = self._seal.opened(sealed, _place(authority))
        if not sealed.startswith(self._seal.header):  # sealed with an earlier key
            await self._store.run(_keep, authority, self.sealed(authority, key))
        return KeyPair(one.certificate, key)

    async def offered(self, known: Collection[AuthorityId]) -> KeyPair | None:  # noqa: ARG002 - nothing ever is
        """None: only a hub writes keys here, in the transaction that records the CA."""
        return None

    async def keep(self, authority: AuthorityId, pair: KeyPair) -> None:
        """Store the key of a recorded CA; a new CA's key is stored in the transaction that records it (`sealed`)."""
        await self._store.run(_keep, authority, self.sealed(authority, pair.key))

    async def forget(self, authority: AuthorityId) -> None:
        await self._store.run(_keep, authority, None)


class SecretKeys(KeyPlace):
    """In a Secret that the hub reads and writes."""

    def __init__(self, secret: KeySecret) -> None:
        self._secret = secret

    @property
    def refusal(self) -> str | None:
        return None

    async def find(self, authority: AuthorityId) -> KeyPair | None:
        content = await self._secret.read()
        return next((pair for pair in _pairs(content).values() if id_of(pair) == authority), None)

    async def offered(self, known: Collection[AuthorityId]) -> KeyPair | None:
        return newest(_pairs(await self._secret.read()).values(), known)

    async def keep(self, authority: AuthorityId, pair: KeyPair) -> None:
        await self._secret.write({certificate_file(authority): pair.certificate, key_file(authority): pair.key})

    async def forget(self, authority: AuthorityId) -> None:
        content = await self._secret.read()
        gone = [name for name, pair in _pairs(content).items() if id_of(pair) == authority]
        if gone:
            await self._secret.write({name: None for key in gone for name in (key, _beside(key))})


def _look(tx: Transaction, authority: AuthorityId) -> tuple[AuthorityRecord | None, bytes | None]:
    one = next((each for each in tx.authorities.all() if each.id == authority), None)
    return one, tx.authorities.sealed_key(authority)


def _keep(tx: Transaction, authority: AuthorityId, sealed: bytes | None) -> None:
    tx.authorities.keep_key(authority, sealed)


def _place(authority: AuthorityId) -> str:
    """Associated data of a sealed key, so that it opens only as that CA's key."""
    return f"ca/{authority}"


def _pairs(content: Mapping[str, bytes]) -> Mapping[str, KeyPair]:
    """The CAs in a Secret, by the names of their keys; other content is ignored."""
    found = {name: _pair_of(content.get(_beside(name)), content[name]) for name in content if name.endswith(".key")}
    return {name: pair for name, pair in found.items() if pair is not None}


def _pair_of(certificate: bytes | None, key: bytes | None, file: str | None = None) -> KeyPair | None:
    """None: one is missing, or they are not a CA, which is logged for a `file`."""
    if certificate is None or key is None:
        return None
    try:
        pki.CertificateAuthority(certificate, key)
    except InvalidError as error:
        if file is not None:
            log.warning("a file is not the key of a CA", file=file, error=error.message)
        return None
    return KeyPair(certificate, key)


def _beside(key: str) -> str:
    """The certificate's name, derived from the key's."""
    return f"{key.removesuffix('.key')}.crt"
