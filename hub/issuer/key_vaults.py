"""CA keys that all replicas share without a common folder: sealed in the database, or in a Kubernetes Secret."""

from collections.abc import Collection, Mapping

from hub.api.certificateauthorities.authority import AuthorityId, AuthorityRecord
from hub.issuer.key_files import certificate_file, id_of, key_file, newest
from hub.ports import KeyPair, KeyPlace, KeySecret, Store, Transaction
from machinery import pki
from machinery.errors import InvalidError
from machinery.pki.encryption import Seal


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
        return next((pair for pair in _pairs(content) if id_of(pair) == authority), None)

    async def offered(self, known: Collection[AuthorityId]) -> KeyPair | None:
        return newest(_pairs(await self._secret.read()), known)

    async def keep(self, authority: AuthorityId, pair: KeyPair) -> None:
        await self._secret.write({certificate_file(authority): pair.certificate, key_file(authority): pair.key})

    async def forget(self, authority: AuthorityId) -> None:
        content = await self._secret.read()
        gone = [name for name in content if name.endswith(".key") and _is_of(content, name, authority)]
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


def _pairs(content: Mapping[str, bytes]) -> list[KeyPair]:
    """The CAs in a Secret; other content is ignored."""
    keys = [name for name in content if name.endswith(".key") and _beside(name) in content]
    found = (KeyPair(content[_beside(name)], content[name]) for name in keys)
    return [pair for pair in found if _is_authority(pair)]


def _is_authority(pair: KeyPair) -> bool:
    try:
        pki.CertificateAuthority(pair.certificate, pair.key)
    except InvalidError:
        return False
    return True


def _is_of(content: Mapping[str, bytes], name: str, authority: AuthorityId) -> bool:
    certificate = content.get(_beside(name))
    pair = KeyPair(certificate, content[name]) if certificate is not None else None
    return pair is not None and _is_authority(pair) and id_of(pair) == authority


def _beside(key: str) -> str:
    """The certificate's name, derived from the key's."""
    return f"{key.removesuffix('.key')}.crt"
