"""The keys that all replicas share, and the check that they belong to the database's hub.

The keys are files: the CA (`ca.crt`, `ca.key`; unless `--ca-key-place` names another storage), the keys of ServiceAccount
tokens (`token-*.key`) and the key for Secrets (`secrets.key`). Without `--keys-dir` they are in the data directory, and the
first start makes them. The hub only reads `--keys-dir`, so it can be a Secret that every replica mounts. The database has a
fingerprint of each kind of key, so a replica with other keys, or without keys, does not start. If two replicas make keys for a
new database, the second stops and removes its keys.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import structlog

from hub.api.certificates import Lifetimes
from hub.issuer.key_storage import certificate_file, key_file
from hub.issuer.local import CA_CERTIFICATE, CA_KEY, LocalIssuer, make_authority
from hub.ports import Store, Transaction
from hub.registry.certificateauthorities.service import authority_id
from machinery import pki
from machinery.errors import AlreadyExistsError, InvalidError
from machinery.pki import TokenKeys
from machinery.pki.encryption import Seal, shown
from machinery.runtime.directory import DataDirectory

AUTHORITY, SEAL_KEY, TOKEN_KEY = "ca-sha256", "secrets-key", "token-key"
SEAL_FILE = "secrets.key"
SHARED = f"{CA_CERTIFICATE}, {CA_KEY}, {SEAL_FILE} and token-*.key"
CREATED = "%Y%m%dT%H%M%SZ"
TOKEN_FILE = f"token-{CREATED}.key"
"""Name of a token key's file, with its creation time."""
SIGNS_FOR = timedelta(days=90)
KEPT = 8
"""Number of keys that are kept. Each has signed for at least 90 days, so tokens of older keys have expired, for any clock."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class KeyFolder:
    """The location of the keys. `given`: the read-only folder of `--keys-dir`. `alone`: there can be no other replica."""

    directory: DataDirectory
    given: bool = False
    alone: bool = True

    @classmethod
    def of(cls, own: DataDirectory, keys_dir: Path | None, *, alone: bool) -> "KeyFolder":
        if keys_dir is None:
            return cls(own, alone=alone)
        return cls(DataDirectory(keys_dir, "hub"), given=True, alone=alone)

    @property
    def path(self) -> Path:
        return self.directory.path

    def __str__(self) -> str:
        return f"the folder {self.path} of --keys-dir" if self.given else f"the data directory {self.path}"

    @property
    def remedy(self) -> str:
        """Advice if keys of the database's hub are missing."""
        if self.given:
            return f"all replicas of a hub need the same keys: {SHARED}"
        return (
            "start the hub with its own data directory, or restore its keys from a backup; another replica of the hub needs a "
            f"copy of {SHARED}, in its data directory or in the folder of --keys-dir"
        )


@dataclass(frozen=True, slots=True)
class TokenKey:
    """A private key (PEM) and its creation time."""

    made: datetime
    key: bytes

    def __repr__(self) -> str:
        return f"TokenKey({self.name})"

    @property
    def name(self) -> str:
        return _token_file(self.made)

    @property
    def mark(self) -> str:
        """The text for the database: creation time and fingerprint of the public key."""
        return f"{self.made.strftime(CREATED)} {pki.key_hash(pki.public_key_of(self.key))}"


def read_token_keys(directory: DataDirectory) -> list[TokenKey]:
    """Return the token keys of the directory, newest first. Raises InvalidError for a file without a key, UnavailableError."""
    found = [
        TokenKey(made, directory.read(_token_file(made)) or b"") for made in sorted(_creation_times(directory), reverse=True)
    ]
    pki.TokenKeys([each.key for each in found] or [pki.generate_key()])
    return found


def make_token_key(directory: DataDirectory, now: datetime) -> str:
    """Make a key for ServiceAccount tokens, and return its file name. Raises UnavailableError."""
    directory.write(_token_file(now), pki.generate_key())
    log.info("key for ServiceAccount tokens created", key=_token_file(now))
    return _token_file(now)


def exchange_token_keys(directory: DataDirectory, now: datetime) -> str | None:
    """Make a token key if all are older than SIGNS_FOR. Keep KEPT keys. Returns the new file's name; None: no new key."""
    made, new = _creation_times(directory), None
    if not made or now - max(made) > SIGNS_FOR:
        new = make_token_key(directory, now)
    for each in sorted(made)[:-KEPT]:
        directory.remove(_token_file(each))
    return new


def _creation_times(directory: DataDirectory) -> list[datetime]:
    found = []
    for path in directory.path.glob("token-*.key"):
        with suppress(ValueError):  # another file
            found.append(datetime.strptime(path.name, TOKEN_FILE).replace(tzinfo=UTC))
    return found


def _token_file(made: datetime) -> str:
    return made.strftime(TOKEN_FILE)


def create_keys(folder: Path, lifetimes: Lifetimes, now: datetime) -> None:
    """Create the keys of a new hub. Raises AlreadyExistsError if the folder has keys, UnavailableError."""
    with DataDirectory(folder, "hub") as directory, _unlocked(directory):
        there = [name for name in (CA_CERTIFICATE, CA_KEY, SEAL_FILE) if directory.read(name) is not None]
        if there or read_token_keys(directory):
            raise AlreadyExistsError(f"{folder} has keys already, and keys are never replaced: choose an empty folder")
        LocalIssuer.open(folder, lifetimes, now)
        directory.write(SEAL_FILE, Seal.generate().written())
        make_token_key(directory, now)


def create_next_authority(folder: Path, lifetimes: Lifetimes, now: datetime) -> tuple[Path, Path]:
    """Create the next CA for a hub that only reads its keys. Returns certificate file and key file. Raises UnavailableError."""
    with DataDirectory(folder, "hub") as directory, _unlocked(directory):
        authority, key = make_authority(lifetimes, now)
        one = authority_id(authority.certificate)
        directory.write(key_file(one), key)
        return directory.write(certificate_file(one), authority.certificate), directory.path / key_file(one)


@contextmanager
def _unlocked(directory: DataDirectory) -> Iterator[None]:
    """Remove the lock file at the end, because the folder will be copied."""
    try:
        yield
    finally:
        directory.remove("hub.lock")


def find_seal(keys: KeyFolder, file: Path | None) -> tuple[Seal, bool]:
    """Return the seal for Secrets, from `file` or `keys`, and whether it is new. Raises InvalidError, UnavailableError."""
    if file is not None:
        try:
            return Seal.parse(file.read_bytes()), False
        except OSError as error:
            raise InvalidError(f"the key file for Secrets, {file}, cannot be read: {error.strerror or error}") from error
    kept = keys.directory.read(SEAL_FILE)
    if kept is None and keys.given:
        raise InvalidError(f"{SEAL_FILE} is not in {keys}: {_creation(keys)}")
    return (Seal.generate(), True) if kept is None else (Seal.parse(kept), False)


async def keep_seal(keys: KeyFolder, store: Store, seal: Seal, *, is_new: bool) -> None:
    """Compare the seal with the database, and write a new seal to the folder. Raises InvalidError."""
    if is_new and await store.read(lambda tx: tx.facts.get(SEAL_KEY)) is None:
        keys.directory.write(SEAL_FILE, seal.written())
    try:
        await store.run(_settle_seal, seal)
    except InvalidError:
        if is_new:
            keys.directory.remove(SEAL_FILE)
        raise


def _settle_seal(tx: Transaction, seal: Seal) -> None:
    known = tx.facts.settle(SEAL_KEY, seal.header.hex())
    if not seal.has_key_for(bytes.fromhex(known)):
        raise InvalidError(
            f"the database's hub seals Secrets with the key {shown(bytes.fromhex(known))}, which is not here: "
            f"restore {SEAL_FILE} into the data directory, or give all replicas the same file (--keys-dir, --secrets-key-file)"
        )
    if known != seal.header.hex():
        tx.facts.set(SEAL_KEY, seal.header.hex())


async def keep_authority(keys: KeyFolder, store: Store, lifetimes: Lifetimes, now: datetime) -> LocalIssuer:
    """Return the hub's CA, which the first start makes. Raises InvalidError, UnavailableError.

    The database has the CA's fingerprint, so a lost or wrong data directory cannot lead to a new CA, which would lock out
    every agent.
    """
    known = await store.read(lambda tx: tx.facts.get(AUTHORITY))
    if keys.directory.read(CA_CERTIFICATE) is None:
        if known is not None:
            raise InvalidError(f"the database belongs to a hub whose CA is not in {keys}: {keys.remedy}")
        if keys.given:
            raise InvalidError(f"there is no CA in {keys}: {_creation(keys)}")
        _set_aside_half(keys.directory)
    issuer = LocalIssuer.open(keys.path, lifetimes, now)
    here = pki.parse_certificate(issuer.trust_bundle).key_hash
    if await store.run(lambda tx: tx.facts.settle(AUTHORITY, here)) == here:
        return issuer
    if issuer.created:
        keys.directory.remove(CA_CERTIFICATE)
        keys.directory.remove(CA_KEY)
        raise InvalidError(f"another replica initialized this database at the same time, with another CA: {keys.remedy}")
    raise InvalidError(
        f"the CA in {keys} is not that of the hub in the database: start the hub with its own keys, or with another database"
    )


def _creation(keys: KeyFolder) -> str:
    return f"`hub keys create {keys.path}` makes the keys of a new hub, once for all its replicas"


def _set_aside_half(directory: DataDirectory) -> None:
    """Rename a key without a certificate, which an interrupted first start can leave. It has signed nothing."""
    if directory.read(CA_KEY) is not None:
        directory.rename(CA_KEY, f"{CA_KEY}.unused")
        log.warning("the first start was interrupted: a new CA is created", kept=f"{CA_KEY}.unused")


async def keep_token_keys(keys: KeyFolder, store: Store, now: datetime) -> TokenKeys:
    """Return the keys of ServiceAccount tokens; the newest key signs. Raises InvalidError, UnavailableError.

    A hub with a single replica replaces an old key. With several replicas the operator must replace it: a key on only one
    replica would sign tokens that other replicas cannot verify.
    """
    made = await _ensure_token_key(keys, store, now)
    found = read_token_keys(keys.directory)
    if not found:
        raise InvalidError(f"there is no key for ServiceAccounts' tokens in {keys}: {_creation(keys)}")
    try:
        lost = await store.run(_settle_token_key, found, keys)
    except InvalidError:
        if made is not None:
            keys.directory.remove(made)
        raise
    if lost:
        log.warning("tokens signed with an earlier key are no longer accepted", key=lost)
    if now - found[0].made > SIGNS_FOR:
        log.warning("the key for ServiceAccounts' tokens is old: give all replicas a newer one in addition", key=found[0].name)
    return TokenKeys([each.key for each in found])


async def _ensure_token_key(keys: KeyFolder, store: Store, now: datetime) -> str | None:
    """Make a key if there is none; a hub with a single replica also replaces an old key. Returns the new file's name."""
    if keys.given:
        return None
    if keys.alone:
        return exchange_token_keys(keys.directory, now)
    if read_token_keys(keys.directory):
        return None
    if await store.read(lambda tx: tx.facts.get(TOKEN_KEY)) is not None:
        raise InvalidError(f"the keys of the database's hub for ServiceAccounts' tokens are not in {keys}: {keys.remedy}")
    return make_token_key(keys.directory, now)


def _settle_token_key(tx: Transaction, found: Sequence[TokenKey], keys: KeyFolder) -> str | None:
    """Record the newest signing key of all replicas. Returns the replaced key if this replica does not have it."""
    newest, ours = found[0], {each.mark for each in found}
    known = tx.facts.settle(TOKEN_KEY, newest.mark)
    if known in ours and known >= newest.mark:
        return None
    if newest.mark.split()[0] <= known.split()[0]:
        raise InvalidError(f"the database's hub signs ServiceAccounts' tokens with a key that is not in {keys}: {keys.remedy}")
    tx.facts.set(TOKEN_KEY, newest.mark)
    return None if known in ours else known
