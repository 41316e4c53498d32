"""What the first start leaves in the database and the data directory, and what later starts find there and keep.

The hub's id, the suffix of its API groups and its CA's fingerprint are facts in the database. The admin kubeconfig is a file
with a recorded operator certificate; it is written again only when an address, the CA or the hub's id in it is no longer right,
or when its certificate nears its end.
"""

from dataclasses import dataclass
from datetime import datetime
from ipaddress import ip_address
from pathlib import Path
from uuid import uuid4

import structlog

from hub.domain.certificate import Lifetimes
from hub.issuer import LocalIssuer
from hub.issuer.local import CA_CERTIFICATE, CA_KEY
from hub.ports import Issuer, Store, Transaction
from hub.services import operators
from hub.settings import Address, Settings
from machinery import kubeconfig, pki
from machinery.directory import DataDirectory
from machinery.errors import InvalidError
from machinery.identity import HubId
from machinery.kubeconfig import ClusterEntry, Credential, HubEndpoint
from machinery.product import GROUP_SUFFIX, NAME
from machinery.sealing import Seal, shown

HUB_ID, SUFFIX, AUTHORITY, SEAL_KEY = "hub-id", "group-suffix", "ca-sha256", "secrets-key"
SEAL_FILE = "secrets.key"
ADMIN_FILE = "admin.kubeconfig"
ADMIN = "admin"
RENEW_AT = 1 / 3
"""Share of its lifetime that the admin certificate may still have before a start replaces it."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the doors are, as others see them."""

    grpc: Address
    https: Address
    dns_names: tuple[str, ...]
    ip_addresses: tuple[str, ...]

    @classmethod
    def of(cls, settings: Settings) -> "Addresses":
        """From the settings; a door that listens everywhere and has no advertised address is this machine to itself."""
        grpc = _seen(settings.grpc_listen, settings.grpc_advertised)
        https = _seen(settings.https_listen, settings.https_advertised)
        hosts = {"localhost", "127.0.0.1", "::1", grpc.host, https.host, *settings.serving_names}
        hosts |= {host for host in (settings.grpc_listen.host, settings.https_listen.host) if not _is_everywhere(host)}
        addresses = {host for host in hosts if _is_ip(host)}
        return cls(grpc, https, tuple(sorted(hosts - addresses)), tuple(sorted(addresses)))


def _seen(listening: Address, advertised: Address | None) -> Address:
    if advertised is not None:
        return Address(advertised.host, advertised.port or listening.port)
    if _is_everywhere(listening.host):
        return Address("::1" if ":" in listening.host else "127.0.0.1", listening.port)
    return listening


def _is_ip(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _is_everywhere(host: str) -> bool:
    return _is_ip(host) and ip_address(host).is_unspecified


def settle(tx: Transaction, group_suffix: str = GROUP_SUFFIX) -> HubId:
    """The hub's id, made at the first start. Raises InvalidError when the database is of a hub with other API groups."""
    suffix = tx.facts.get(SUFFIX)
    if suffix is None:
        tx.facts.set(SUFFIX, group_suffix)
    elif suffix != group_suffix:
        raise InvalidError(
            f'the database belongs to a hub whose API groups end in "{suffix}", this one\'s end in "{group_suffix}": '
            "the suffix is fixed at the first start, so start it with --api-group-suffix as then"
        )
    known = tx.facts.get(HUB_ID)
    if known is None:
        known = str(uuid4())
        tx.facts.set(HUB_ID, known)
    return HubId(known)


def find_seal(directory: DataDirectory, file: Path | None) -> tuple[Seal, bool]:
    """What Secrets are sealed with, and whether it was made just now. Raises InvalidError, UnavailableError."""
    if file is not None:
        try:
            return Seal.parse(file.read_bytes()), False
        except OSError as error:
            raise InvalidError(f"the key file for Secrets, {file}, cannot be read: {error.strerror or error}") from error
    kept = directory.read(SEAL_FILE)
    return (Seal.generate(), True) if kept is None else (Seal.parse(kept), False)


async def keep_seal(directory: DataDirectory, store: Store, seal: Seal, *, is_new: bool) -> None:
    """The seal is the one that the database's hub uses, and the data directory has it when it is new. Raises InvalidError."""
    await store.run(_settle_seal, seal)
    if is_new:
        directory.write(SEAL_FILE, seal.written())


def _settle_seal(tx: Transaction, seal: Seal) -> None:
    known = tx.facts.get(SEAL_KEY)
    if known is not None and not seal.knows(bytes.fromhex(known)):
        raise InvalidError(
            f"the database's hub seals Secrets with the key {shown(bytes.fromhex(known))}, which is not here: "
            f"restore {SEAL_FILE} into the data directory, or give all replicas the same file with --secrets-key-file"
        )
    if known != seal.header.hex():
        tx.facts.set(SEAL_KEY, seal.header.hex())


async def keep_authority(directory: DataDirectory, store: Store, lifetimes: Lifetimes, now: datetime) -> LocalIssuer:
    """The hub's CA, made at the first start. Raises InvalidError, UnavailableError.

    The database knows its CA: a data directory that was lost or mistaken does not lock every agent out with a new one.
    """
    known = await store.read(_authority)
    if known is not None and directory.read(CA_CERTIFICATE) is None:
        raise InvalidError(
            f"the database belongs to a hub whose CA is not in the data directory {directory.path}: "
            "start it with that hub's data directory, or restore ca.crt and ca.key from a backup"
        )
    if known is None:
        _set_aside_half(directory)
    issuer = LocalIssuer.open(directory.path, lifetimes, now)
    here = pki.parse_certificate(issuer.trust_bundle).key_hash
    if known is None:
        await store.run(_note_authority, here)
    elif known != here:
        raise InvalidError(
            f"the CA in the data directory {directory.path} is not the one of the database's hub: "
            "start it with that hub's data directory, or with another database"
        )
    return issuer


def _set_aside_half(directory: DataDirectory) -> None:
    """A first start that was cut off can leave a key without its certificate. No database knows it: it has signed nothing."""
    if directory.read(CA_CERTIFICATE) is None and directory.read(CA_KEY) is not None:
        directory.rename(CA_KEY, f"{CA_KEY}.unused")
        log.warning("the first start was cut off: the CA is made again", kept=f"{CA_KEY}.unused")


def _authority(tx: Transaction) -> str | None:
    return tx.facts.get(AUTHORITY)


def _note_authority(tx: Transaction, fingerprint: str) -> None:
    tx.facts.set(AUTHORITY, fingerprint)


def entry(hub: HubId, addresses: Addresses, trust: bytes, group_suffix: str = GROUP_SUFFIX) -> ClusterEntry:
    """The hub as kubeconfigs have it."""
    return ClusterEntry(
        name=NAME,
        server=f"https://{addresses.https}",
        certificate_authority=trust,
        endpoint=HubEndpoint(grpc_server=str(addresses.grpc), hub_id=hub, group_suffix=group_suffix),
    )


async def keep_admin_kubeconfig(
    directory: DataDirectory, store: Store, issuer: Issuer, cluster: ClusterEntry, *, lifetimes: Lifetimes, now: datetime
) -> Path:
    """The admin kubeconfig's path; the file is right when this returns. Raises UnavailableError."""
    path = directory.path / ADMIN_FILE
    credential, current = _kept(directory, cluster, now)
    if credential is not None and current == cluster:
        return path
    if credential is None:
        key = pki.generate_key()
        issued = await store.run(operators.admit, ADMIN, pki.public_key_of(key), issuer, lifetimes)
        credential = Credential(chain=issued.chain, key=key)
    directory.write(ADMIN_FILE, kubeconfig.write_kubeconfig(cluster, credential, user=ADMIN))
    log.info("admin kubeconfig written", path=str(path), server=cluster.server)
    return path


def _kept(directory: DataDirectory, cluster: ClusterEntry, now: datetime) -> tuple[Credential | None, ClusterEntry | None]:
    """The credential of the file there is, when it can still be used, and the cluster that it leads to."""
    content = directory.read(ADMIN_FILE)
    if content is None:
        return None, None
    try:
        found = kubeconfig.parse_kubeconfig(content, source=str(directory.path / ADMIN_FILE))
        credential = found.require_credential()
        facts = pki.parse_certificate(credential.chain)
        fits = pki.key_matches(credential.chain, credential.key)
    except InvalidError as error:
        log.warning("admin kubeconfig cannot be read and is written again", error=error.message)
        return None, None
    rest = (facts.not_after - now) / (facts.not_after - facts.not_before)
    ours = fits and pki.is_issued_by(credential.chain, cluster.certificate_authority)
    return (credential if ours and rest > RENEW_AT else None), found.cluster
