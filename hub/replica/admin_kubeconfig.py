"""The admin kubeconfig, in the data directory and in a Secret.

Each replica keeps an admin kubeconfig with a recorded operator certificate in its data directory. It writes the file again when
address, CA or hub id have changed, or when the certificate has no record, is revoked, not valid yet or expires soon.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path

import structlog

from hub.api.certificates import Lifetimes
from hub.ports import Store
from hub.ports.identities import Issuer, KeySecret
from hub.registry import certificates
from machinery import pki
from machinery.client import kubeconfig
from machinery.client.kubeconfig import ClusterEntry, Credential
from machinery.errors import InvalidError, MusterError
from machinery.observability.logs import LogOnce
from machinery.runtime.clock import Clock
from machinery.runtime.directory import DataDirectory
from machinery.runtime.event_loop import wait_at_most

ADMIN_FILE = "admin.kubeconfig"
BUNDLE = "trust.crt"
"""Name of the file with the current trust bundle, for programs without a kubeconfig."""
ADMIN = "admin"
RENEW_AT = 1 / 3
"""Remaining share of its lifetime at which the admin certificate is replaced."""

LOOK_EVERY, SECRET_EVERY, AGAIN = timedelta(hours=12), timedelta(minutes=5), timedelta(seconds=5)
KUBECONFIG, TRUST = "kubeconfig", "ca.crt"

log = structlog.get_logger(__name__)


@dataclass(eq=False)
class AdminKubeconfig:
    """Keeps the admin kubeconfig up to date while CAs and certificates change."""

    directory: DataDirectory
    store: Store
    issuer: Issuer
    cluster: ClusterEntry
    lifetimes: Lifetimes
    clock: Clock
    _changed: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def look(self) -> None:
        self._changed.set()

    async def keep(self) -> Path:
        """Write the file if it is missing or invalid, and return its path. Raises UnavailableError."""
        directory, cluster = self.directory, self._current
        if directory.read(BUNDLE) != self.trust:
            directory.write(BUNDLE, self.trust)
        path = directory.path / ADMIN_FILE
        credential, written = _judged(directory.read(ADMIN_FILE), str(path), cluster, self.clock.now())
        if credential is not None and not await self._is_open(credential):
            log.info("admin certificate is issued again: it is revoked, not valid yet, or not in the database after a restore")
            credential = None
        if credential is not None and written == cluster:
            return path
        if credential is None:
            key = pki.generate_key()
            public_key = pki.public_key_of(key)
            issued = await self.store.run(certificates.admit_operator, ADMIN, public_key, self.issuer, self.lifetimes)
            credential = Credential(chain=issued.chain, key=key)
        directory.write(ADMIN_FILE, kubeconfig.write_kubeconfig(cluster, credential, user=ADMIN))
        log.info("admin kubeconfig written", path=str(path), server=cluster.server)
        return path

    @property
    def _current(self) -> ClusterEntry:
        return replace(self.cluster, certificate_authority=self.trust)

    @property
    def trust(self) -> bytes:
        return self.issuer.trust_bundle

    async def is_right(self, content: bytes | None) -> bool:
        """Whether this kubeconfig, which any replica may have written, gives access to this hub. Raises UnavailableError."""
        credential, found = _judged(content, "the Secret", self._current, self.clock.now())
        return credential is not None and found == self._current and await self._is_open(credential)

    async def _is_open(self, credential: Credential) -> bool:
        """Whether the record permits access now, by the clock that issued the certificate: the database's."""
        serial = pki.parse_certificate(credential.chain).serial
        record, now = await self.store.read(lambda tx: (tx.certificates.by_serial(serial), tx.now))
        return record is not None and record.is_open(now)

    async def run(self) -> None:
        await _repeat(self.keep, self._changed, LOOK_EVERY, "admin kubeconfig cannot be updated now")


class AdminSecret:
    """Keeps the admin kubeconfig in a Secret of the hub's Kubernetes cluster, so that an installer can read it without `exec`.

    All replicas share the Secret. If its content is invalid (other address, other CA, certificate revoked or near its end), a
    replica writes its own kubeconfig; valid content of any replica stays. The next check creates a deleted Secret again.
    """

    def __init__(self, secret: KeySecret, admin: AdminKubeconfig) -> None:
        self._secret = secret
        self._admin = admin
        self._changed = asyncio.Event()
        self._changed.set()

    def wake(self) -> None:
        self._changed.set()

    async def look(self) -> bool:
        """Check the Secret. Returns whether it was written. Raises MusterError."""
        held = await self._secret.read()
        if held.get(TRUST) == self._admin.trust and await self._admin.is_right(held.get(KUBECONFIG)):
            return False
        path = await self._admin.keep()
        content = await asyncio.to_thread(path.read_bytes)
        await self._secret.write({KUBECONFIG: content, TRUST: self._admin.trust})
        log.info("admin kubeconfig written to its Secret")
        return True

    async def run(self) -> None:
        """Check the Secret at the start, after `wake` and periodically, until cancelled."""
        failure = "the Secret with the admin kubeconfig cannot be updated: check the hub's permissions"
        await _repeat(self.look, self._changed, SECRET_EVERY, failure)


async def _repeat(check: Callable[[], Awaitable[object]], changed: asyncio.Event, every: timedelta, event: str) -> None:
    """Run a check when `changed` is set, and periodically. After a failure, log `event` and repeat the check soon."""
    failure, pause = LogOnce(log), every
    while True:
        await wait_at_most(changed, pause.total_seconds())
        changed.clear()
        pause = every
        try:
            await check()
            failure.reset()
        except MusterError as error:
            failure.warning(event, error)
            pause = AGAIN


def _judged(
    content: bytes | None, source: str, cluster: ClusterEntry, now: datetime
) -> tuple[Credential | None, ClusterEntry | None]:
    """Return the credential of a kubeconfig, if it is still usable, and the cluster entry."""
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
