"""Storage of the CA keys: files, the database, or a Secret of the hub's own Kubernetes cluster.

Files have mode 0600: `ca.crt` and `ca.key` of the first CA, `ca-ID.crt` and `ca-ID.key` of later CAs. The hub writes no keys
into the folder `--keys-dir`, or into a folder that other replicas cannot see: an operator copies the two files of the next CA
into the folder of every replica. All replicas share the database and the Secret.
"""

from abc import abstractmethod
from collections.abc import Collection, Mapping
from pathlib import Path

import structlog

from hub.api.certificateauthorities.authority import AuthorityId, AuthorityRecord
from hub.ports import Store, Transaction
from hub.ports.identities import KeyPair, KeyPlace, KeySecret
from hub.registry.certificateauthorities.service import authority_id
from machinery import pki
from machinery.errors import InvalidError, UnavailableError
from machinery.pki.encryption import Seal
from machinery.runtime.directory import DataDirectory, read_file

log = structlog.get_logger(__name__)


class KeyPairs(KeyPlace):
    """Storage of CAs as named pairs, such as `ca-ID.key` and `ca-ID.crt`. An operator may add the pair of the next CA."""

    @abstractmethod
    async def _pairs(self) -> Mapping[str, KeyPair]:
        """Return the CAs by the names of their keys. Raises UnavailableError."""

    async def find(self, authority: AuthorityId) -> KeyPair | None:
        return next((pair for pair in (await self._pairs()).values() if authority_id(pair.certificate) == authority), None)

    async def offered(self, known: Collection[AuthorityId]) -> KeyPair | None:
        """Return the stored CA that is not in `known`; of several, the CA whose validity starts last. None: there is none."""
        unknown = [pair for pair in (await self._pairs()).values() if authority_id(pair.certificate) not in known]
        return max(unknown, key=lambda pair: pki.parse_certificate(pair.certificate).not_before, default=None)

    async def _files_of(self, authority: AuthorityId) -> list[str]:
        keys = [name for name, pair in (await self._pairs()).items() if authority_id(pair.certificate) == authority]
        return [name for key in keys for name in (key, _beside(key))]


class KeyFiles(KeyPairs):
    """Keys in files. `read_only`: the folder is `--keys-dir`, or other replicas could not see keys that this replica writes."""

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
            "beside the other keys of every replica, and repeat the command; or store the keys where all replicas can write "
            "them (--ca-key-place database or secret)"
        )

    async def keep(self, authority: AuthorityId, pair: KeyPair) -> None:
        if self.refusal is not None:
            raise InvalidError(self.refusal)
        key, certificate = key_file(authority), certificate_file(authority)
        self._directory.write(key, pair.key)
        self._directory.write(certificate, pair.certificate)

    async def forget(self, authority: AuthorityId) -> None:
        if not self._read_only:
            for name in await self._files_of(authority):
                self._directory.remove(name)

    async def _pairs(self) -> Mapping[str, KeyPair]:
        return read_pairs(self._folder)


def read_pairs(folder: Path) -> Mapping[str, KeyPair]:
    """Return the CAs in files, by the names of their keys. Raises UnavailableError."""
    try:
        keys = sorted(path for path in folder.iterdir() if path.name == "ca.key" or path.match("ca-*.key"))
    except OSError as error:
        raise UnavailableError(f"{folder} cannot be read: {error.strerror}") from error
    files = [file for key in keys for file in (key, key.with_suffix(".crt"))]
    content = {file.name: found for file in files if (found := read_file(file)) is not None}
    return _pairs(content, folder)


def key_file(authority: AuthorityId) -> str:
    return f"ca-{authority}.key"


def certificate_file(authority: AuthorityId) -> str:
    return f"ca-{authority}.crt"


class SealedKeys(KeyPlace):
    """Keys in the database, sealed with the key for Secrets, which is not in the database."""

    def __init__(self, store: Store, seal: Seal) -> None:
        self._store = store
        self._seal = seal

    def sealed(self, authority: AuthorityId, key: bytes) -> bytes:
        """Return the sealed key, as it is stored in the database."""
        return self._seal.closed(key, _place(authority))

    async def find(self, authority: AuthorityId) -> KeyPair | None:
        one, sealed = await self._store.read(_look, authority)
        if one is None or sealed is None:
            return None
        key = self._seal.opened(sealed, _place(authority))
        if not sealed.startswith(self._seal.header):  # sealed with an earlier key
            await self._store.run(_keep, authority, self.sealed(authority, key))
        return KeyPair(one.certificate, key)

    async def offered(self, known: Collection[AuthorityId]) -> KeyPair | None:  # noqa: ARG002 - always None
        """Return None: only a hub writes keys to the database, and it does so in the transaction that records the CA."""
        return None

    async def keep(self, authority: AuthorityId, pair: KeyPair) -> None:
        """Store the key of a recorded CA; a new CA's key is stored in the transaction that records it (`sealed`)."""
        await self._store.run(_keep, authority, self.sealed(authority, pair.key))

    async def forget(self, authority: AuthorityId) -> None:
        await self._store.run(_keep, authority, None)


class SecretKeys(KeyPairs):
    """Keys in a Secret that the hub reads and writes."""

    def __init__(self, secret: KeySecret) -> None:
        self._secret = secret

    async def _pairs(self) -> Mapping[str, KeyPair]:
        return _pairs(await self._secret.read())

    async def keep(self, authority: AuthorityId, pair: KeyPair) -> None:
        await self._secret.write({certificate_file(authority): pair.certificate, key_file(authority): pair.key})

    async def forget(self, authority: AuthorityId) -> None:
        if gone := await self._files_of(authority):
            await self._secret.write(dict.fromkeys(gone))


def _look(tx: Transaction, authority: AuthorityId) -> tuple[AuthorityRecord | None, bytes | None]:
    one = next((each for each in tx.authorities.all() if each.id == authority), None)
    return one, tx.authorities.sealed_key(authority)


def _keep(tx: Transaction, authority: AuthorityId, sealed: bytes | None) -> None:
    tx.authorities.keep_key(authority, sealed)


def _place(authority: AuthorityId) -> str:
    """Return the associated data of a sealed key, so that it can be decrypted only as the key of this CA."""
    return f"ca/{authority}"


def _pairs(content: Mapping[str, bytes], folder: Path | None = None) -> Mapping[str, KeyPair]:
    """Return the CAs in files or a Secret, by the names of their keys.

    Omits a key without a certificate, because an operator may still copy the files. Omits pairs that are not a CA. If `folder`
    is given, logs these pairs.
    """
    found = {}
    for name, key in content.items():
        certificate = content.get(_beside(name)) if name.endswith(".key") else None
        if certificate is None:
            continue
        try:
            pki.CertificateAuthority(certificate, key)
        except InvalidError as error:
            if folder is not None:
                log.warning("a file in the keys directory is not the key of a CA", file=str(folder / name), error=error.message)
        else:
            found[name] = KeyPair(certificate, key)
    return found


def _beside(key: str) -> str:
    """Return the certificate's name, derived from the key's name."""
    return f"{key.removesuffix('.key')}.crt"
