"""The hub's identity and admin kubeconfig, made at the first start.

The hub's id and the suffix of its API groups are facts in the database, shared by all replicas; `hub.replica.keys` has its
keys. Each replica keeps an admin kubeconfig with a recorded operator certificate in its data directory, and writes it again
when its address, CA or hub id has changed, when its certificate is not on record, or when that is about to expire.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from uuid import uuid4

import structlog

from hub.api.certificates import Lifetimes
from hub.ports import Issuer, Store, Transaction
from hub.registry.certificates import service
from hub.registry.managedclusters.actions import HUB_ID
from hub.settings import HubSettings
from hub.settings.fields import Address
from machinery import pki
from machinery.client import kubeconfig
from machinery.client.kubeconfig import ClusterEntry, Credential, HubEndpoint
from machinery.errors import InvalidError, MusterError
from machinery.identity import HubId
from machinery.product import GROUP_SUFFIX, NAME
from machinery.runtime.clock import Clock
from machinery.runtime.directory import DataDirectory

SUFFIX = "group-suffix"
ADMIN_FILE = "admin.kubeconfig"
BUNDLE = "trust.crt"
"""The current trust bundle, for programs without a kubeconfig."""
ADMIN = "admin"
RENEW_AT = 1 / 3
"""Remaining share of its lifetime at which the admin certificate is replaced."""

LOOK_EVERY, AGAIN = timedelta(hours=12), timedelta(seconds=5)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Addresses:
    """The addresses at which peers reach the doors."""

    grpc: Address
    https: Address
    dns_names: tuple[str, ...]
    ip_addresses: tuple[str, ...]

    @classmethod
    def of(cls, settings: HubSettings) -> "Addresses":
        """From the settings. A door that listens everywhere without an advertised address gets a loopback address."""
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


def lifetimes_of(settings: HubSettings) -> Lifetimes:
    return Lifetimes(
        agent=settings.agent_lifetime,
        recovery=settings.recovery_lifetime,
        bootstrap=settings.bootstrap_lifetime,
        serving=settings.serving_lifetime,
        ca=settings.ca_lifetime,
    )


def settle(tx: Transaction, group_suffix: str = GROUP_SUFFIX) -> HubId:
    """The hub's id, made at the first start. Raises InvalidError if the database's hub has another API group suffix."""
    suffix = tx.facts.settle(SUFFIX, group_suffix)
    if suffix != group_suffix:
        raise InvalidError(
            f'the database belongs to a hub whose API groups end in "{suffix}", this one\'s end in "{group_suffix}": '
            "the suffix is fixed at the first start, so start it with --api-group-suffix as then"
        )
    return HubId(tx.facts.settle(HUB_ID, str(uuid4())))


def entry(hub: HubId, addresses: Addresses, trust: bytes, group_suffix: str = GROUP_SUFFIX) -> ClusterEntry:
    """The hub's entry for kubeconfigs."""
    return ClusterEntry(
        name=NAME,
        server=f"https://{addresses.https}",
        certificate_authority=trust,
        endpoint=HubEndpoint(grpc_server=str(addresses.grpc), hub_id=hub, group_suffix=group_suffix),
    )


async def keep_admin_kubeconfig(
    directory: DataDirectory, store: Store, issuer: Issuer, cluster: ClusterEntry, *, lifetimes: Lifetimes, now: datetime
) -> Path:
    """Write the admin kubeconfig if it is missing or invalid, and return its path. Raises UnavailableError."""
    path = directory.path / ADMIN_FILE
    credential, current = _kept(directory, cluster, now)
    if credential is not None and not await _is_known(credential, store):
        log.info("admin kubeconfig is not on record and is written again: the hub was restored, or is another")
        credential = None
    if credential is not None and current == cluster:
        return path
    if credential is None:
        key = pki.generate_key()
        issued = await store.run(service.admit_operator, ADMIN, pki.public_key_of(key), issuer, lifetimes)
        credential = Credential(chain=issued.chain, key=key)
    directory.write(ADMIN_FILE, kubeconfig.write_kubeconfig(cluster, credential, user=ADMIN))
    log.info("admin kubeconfig written", path=str(path), server=cluster.server)
    return path


async def _is_known(credential: Credential, store: Store) -> bool:
    return await store.read(service.resolve, pki.parse_certificate(credential.chain).serial) is not None


class AdminKubeconfig:
    """Keeps the admin kubeconfig up to date while CAs and certificates change."""

    def __init__(
        self,
        directory: DataDirectory,
        store: Store,
        issuer: Issuer,
        cluster: ClusterEntry,
        *,
        lifetimes: Lifetimes,
        clock: Clock,
    ) -> None:
        self._directory = directory
        self._store = store
        self._issuer = issuer
        self._cluster = cluster
        self._lifetimes = lifetimes
        self._clock = clock
        self._changed = asyncio.Event()

    def look(self) -> None:
        """Trigger a check."""
        self._changed.set()

    async def keep(self) -> Path:
        """Update the file and return its path. Raises UnavailableError."""
        cluster = replace(self._cluster, certificate_authority=self._issuer.trust_bundle)
        if self._directory.read(BUNDLE) != cluster.certificate_authority:
            self._directory.write(BUNDLE, cluster.certificate_authority)
        now = self._clock.now()
        return await keep_admin_kubeconfig(
            self._directory, self._store, self._issuer, cluster, lifetimes=self._lifetimes, now=now
        )

    @property
    def trust(self) -> bytes:
        """The trust bundle in PEM."""
        return self._issuer.trust_bundle

    def is_right(self, content: bytes | None) -> bool:
        """Whether this content, of any replica, still gives access to this hub."""
        cluster = replace(self._cluster, certificate_authority=self.trust)
        credential, found = _judged(content, "the Secret", cluster, self._clock.now())
        return credential is not None and found == cluster

    async def run(self) -> None:
        """Check after `look` and periodically, for ever."""
        told = ""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY.total_seconds()):
                    await self._changed.wait()
            self._changed.clear()
            try:
                await self.keep()
                told = ""
            except MusterError as error:
                if error.message != told:
                    log.warning("admin kubeconfig cannot be kept right now", error=error.message)
                told = error.message
                await asyncio.sleep(AGAIN.total_seconds())
                self._changed.set()


def _kept(directory: DataDirectory, cluster: ClusterEntry, now: datetime) -> tuple[Credential | None, ClusterEntry | None]:
    """The credential in the file, if still usable, and the file's cluster entry."""
    return _judged(directory.read(ADMIN_FILE), str(directory.path / ADMIN_FILE), cluster, now)


def _judged(
    content: bytes | None, source: str, cluster: ClusterEntry, now: datetime
) -> tuple[Credential | None, ClusterEntry | None]:
    if content is None:
        return None, None
    try:
        found = kubeconfig.parse_kubeconfig(content, source=source)
        credential = found.require_credential()
        facts = pki.parse_certificate(credential.chain)
        fits = pki.key_matches(credential.chain, credential.key)
    except InvalidError as error:
        log.warning("admin kubeconfig cannot be read and is written again", error=error.message)
        return None, None
    rest = (facts.not_after - now) / (facts.not_after - facts.not_before)
    ours = fits and pki.is_issued_by(credential.chain, cluster.certificate_authority)
    return (credential if ours and rest > RENEW_AT else None), found.cluster
