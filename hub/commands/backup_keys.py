"""The hub's keys in a backup. They are always sealed with a passphrase, and never replace other keys in a restore.

scrypt (RFC 7914) derives the sealing key from the passphrase. Sealed keys are bound to the digest of the manifest, so a restore
that opens them knows that the rows are unchanged. A backup without keys has a proof instead: the digest, authenticated with the
key for Secrets.
"""

from base64 import b64decode, b64encode
from collections.abc import Mapping
from os import urandom
from pathlib import Path

import msgspec
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from hub.issuer.local import CA_CERTIFICATE, CA_KEY
from hub.replica.keys import SEAL_FILE, KeyFolder, find_seal, read_token_keys
from machinery.errors import InvalidError, UnavailableError
from machinery.pki.encryption import KEY_LENGTH, Seal
from machinery.runtime.directory import DataDirectory

LENGTH, BLOCK, PARALLEL, SALT = 1 << 15, 8, 1, 16
MAX_LENGTH = 1 << 20
"""Upper bound of the scrypt cost in a backup: 1 GiB of memory."""
SHORTEST = 12
"""Minimal length of a passphrase in characters."""


class _Sealed(msgspec.Struct, frozen=True):
    n: int
    salt: bytes
    sealed: bytes


def read_passphrase(file: Path) -> bytes:
    """Return the first line of a file. Raises InvalidError (shorter than SHORTEST), UnavailableError."""
    try:
        line = file.read_bytes().split(b"\n", 1)[0].strip()
    except OSError as error:
        raise UnavailableError(f"the passphrase's file {file} cannot be read: {error.strerror or error}") from error
    if len(line) < SHORTEST:
        raise InvalidError(f"the passphrase in {file} is too short: its first line needs {SHORTEST} characters at least")
    return line


def collect(folder: DataDirectory, seal_file: Path | None) -> dict[str, bytes]:
    """Return `folder`'s keys by name. `seal_file` replaces secrets.key. Raises InvalidError (no such key), UnavailableError."""
    names = [CA_CERTIFICATE, CA_KEY, SEAL_FILE, *(key.name for key in read_token_keys(folder)), *_further(folder)]
    found = {name: content for name in names if (content := folder.read(name)) is not None}
    if seal_file is not None:
        try:
            found[SEAL_FILE] = seal_file.read_bytes()
        except OSError as error:
            raise UnavailableError(f"{seal_file} cannot be read: {error.strerror or error}") from error
    if SEAL_FILE not in found:
        raise InvalidError(
            f"the hub's keys are not in {folder.path}: name the folder (--keys-dir in the hub's settings), or back up without "
            "them (--without-keys) and keep them apart"
        )
    return found


def _further(folder: DataDirectory) -> list[str]:
    try:
        return sorted(path.name for ending in ("crt", "key") for path in folder.path.glob(f"ca-*.{ending}"))
    except OSError as error:
        raise UnavailableError(f"{folder.path} cannot be read: {error.strerror or error}") from error


def sealed(keys: Mapping[str, bytes], passphrase: bytes, digest: bytes) -> bytes:
    """Seal the keys for the backup whose manifest has this digest."""
    salt = urandom(SALT)
    plain = msgspec.json.encode({name: b64encode(content).decode() for name, content in keys.items()})
    closed = _seal(passphrase, salt, LENGTH).closed(plain, digest.hex())
    return msgspec.json.encode(_Sealed(LENGTH, salt, closed))


def opened(content: bytes, passphrase: bytes, digest: bytes) -> dict[str, bytes]:
    """Open sealed keys. Raises InvalidError for another passphrase or a changed backup."""
    try:
        found = msgspec.json.decode(content, type=_Sealed)
    except msgspec.DecodeError:
        raise InvalidError("the keys in the backup cannot be read: it is damaged") from None
    if not 1 < found.n <= MAX_LENGTH:
        raise InvalidError("the keys in the backup cannot be read: it is damaged")
    seal = _seal(passphrase, found.salt, found.n)
    if not seal.has_key_for(found.sealed[: len(seal.header)]):
        raise InvalidError("this passphrase does not decrypt the keys in the backup")
    try:
        plain = seal.opened(found.sealed, digest.hex())
    except UnavailableError:
        raise InvalidError("the backup was changed after it was created: its keys belong to another manifest") from None
    return {name: b64decode(text) for name, text in msgspec.json.decode(plain, type=dict[str, str]).items()}


def read_seal(folder: DataDirectory, seal_file: Path | None) -> Seal | None:
    """Return the hub's seal for Secrets; None if there is no key for it. Raises InvalidError, UnavailableError."""
    seal, is_new = find_seal(KeyFolder(folder), seal_file)
    return None if is_new else seal


def proof(seal: Seal, digest: bytes) -> bytes:
    """Return the proof that a holder of the hub's key for Secrets made the manifest with this digest."""
    return seal.closed(b"", f"backup/{digest.hex()}")


def check_proof(found: bytes | None, seal: Seal | None, digest: bytes, folder: DataDirectory) -> None:
    """Raises InvalidError unless a holder of the hub's key for Secrets made this backup and it is unchanged."""
    unverified = "--unverified restores it anyway, if you are sure that it is unchanged"
    if found is None:
        raise InvalidError(f"the backup has no proof of its origin: {unverified}")
    if seal is None:
        raise InvalidError(
            f"the backup is checked with the hub's {SEAL_FILE}, which is not in {folder.path}: put it there first, or "
            f"name it in the hub's settings (HUB_SECRETS_KEY_FILE); {unverified}"
        )
    if not seal.has_key_for(found[: len(seal.header)]):
        raise InvalidError(f"the backup was made with another {SEAL_FILE}: give that hub's, or an earlier one; {unverified}")
    try:
        seal.opened(found, f"backup/{digest.hex()}")
    except UnavailableError:
        raise InvalidError("the backup was changed after it was created: use another one") from None


def check_place(keys: Mapping[str, bytes], folder: DataDirectory) -> None:
    """Raises InvalidError if the folder has another key under the name of one of `keys`: keys are never replaced."""
    for name, content in keys.items():
        if Path(name).name != name:
            raise InvalidError(f'the backup has a key for "{name}", which is not a file name: it is damaged')
        if folder.read(name) not in (None, content):
            raise InvalidError(
                f"{folder.path / name} differs from the key in the backup, and keys are never replaced: "
                "restore into an empty data directory, or move the other keys away"
            )


def put(keys: Mapping[str, bytes], folder: DataDirectory) -> list[str]:
    """Write those keys that the folder lacks. Returns the file names of these keys. Raises UnavailableError."""
    missing = [name for name in keys if folder.read(name) is None]
    for name in missing:
        folder.write(name, keys[name])
    return missing


def _seal(passphrase: bytes, salt: bytes, length: int) -> Seal:
    return Seal([Scrypt(salt=salt, length=KEY_LENGTH, n=length, r=BLOCK, p=PARALLEL).derive(passphrase)])
