"""Ports of the agent in memory: Secrets, directory, managed cluster; trusted because the contract suites run on them."""

import asyncio
import errno
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from machinery.errors import AlreadyExistsError, ConflictError, ForbiddenError, MusterError
from machinery.identity import ClusterName
from spoke.domain.report import NodeResources, ReportedClaim
from spoke.ports.cluster import ApiServerHealth, Cluster, CredentialDirectory, Remains, SecretPlace, Secrets, SecretSnapshot

MISSING = SecretSnapshot(contents={}, version=None)


class MemorySecrets(Secrets):
    """A namespace's secrets. Every write and delete raises `refuse_writes`, and every read `refuse_reads`, unless None."""

    def __init__(self) -> None:
        self.refuse_writes: MusterError | None = None
        self.refuse_reads: MusterError | None = None
        self.written: list[str] = []  # the name of each write that was done, in order
        self.deleted: list[str] = []  # the names of those that were there and were deleted, in order
        self._secrets: dict[str, SecretSnapshot] = {}
        self._revision = 0
        self._changed = asyncio.Event()

    @property
    def names(self) -> set[str]:
        return set(self._secrets)

    def contents(self, name: str) -> Mapping[str, bytes]:
        return self._secrets.get(name, MISSING).contents

    async def read(self, name: str) -> SecretSnapshot:
        if self.refuse_reads:
            raise self.refuse_reads
        return self._secrets.get(name, MISSING)

    async def write(self, name: str, contents: Mapping[str, bytes], version: str | None) -> SecretSnapshot:
        self._check_writable()
        present = self._secrets.get(name)
        if version is None and present:
            raise AlreadyExistsError(f'secret "{name}" already exists')
        if version is not None and (present is None or present.version != version):
            raise ConflictError(f'secret "{name}" changed since it was read')
        if present and present.contents == contents:
            return present
        self._revision += 1
        self.written.append(name)
        snapshot = SecretSnapshot(contents=dict(contents), version=str(self._revision))
        self._secrets[name] = snapshot
        self._notify()
        return snapshot

    async def delete(self, name: str) -> None:
        self._check_writable()
        if self._secrets.pop(name, None):
            self.deleted.append(name)
            self._notify()

    async def named(self, prefix: str) -> Sequence[str]:
        return [name for name in self._secrets if name.startswith(prefix)]

    async def changes(self, name: str) -> AsyncIterator[SecretSnapshot]:
        seen: SecretSnapshot | None = None
        while True:
            changed = self._changed
            if (present := self._secrets.get(name, MISSING)) == seen:
                await changed.wait()
            else:
                seen = present
                yield present

    def _check_writable(self) -> None:
        if self.refuse_writes:
            raise self.refuse_writes

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


@dataclass
class MemoryDirectory(CredentialDirectory):
    """A credential directory without files; `replaced` counts the sets it was given, `full` refuses them."""

    contents: dict[str, bytes] = field(default_factory=dict)
    replaced: int = 0
    full: bool = False

    def replace(self, contents: Mapping[str, bytes]) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.contents = dict(contents)
        self.replaced += 1

    def read(self) -> Mapping[str, bytes]:
        return dict(self.contents)


class MemoryRemains(Remains):
    """`secrets`: the component namespace's; `addon_secrets`: those of all add-ons."""

    def __init__(self, secrets: MemorySecrets, addon_secrets: MemorySecrets) -> None:
        self.lease_forgotten = False
        self._secrets = secrets
        self._addon_secrets = addon_secrets

    async def slots(self) -> Sequence[str]:
        return sorted(name for name in self._secrets.names if name.startswith("hub-kubeconfig-secret-"))

    async def addons(self, _cluster: ClusterName) -> Sequence[SecretPlace]:
        return [SecretPlace("addons", name) for name in sorted(self._addon_secrets.names)]

    async def remove(self, place: SecretPlace) -> None:
        await self._addon_secrets.delete(place.name)

    async def forget_lease(self) -> None:
        self.lease_forgotten = True


class KilledError(BaseException):
    """The process is gone: nothing handles this."""


@dataclass
class DyingSecrets(Secrets):
    """Kills at the n-th write of a life: `before` it is done, or after."""

    inner: MemorySecrets = field(default_factory=MemorySecrets)
    fatal: int = 0
    before: bool = True
    writes: int = 0
    dead: bool = False
    on_death: Callable[[], object] = lambda: None

    def live(self, fatal: int = 0, *, before: bool = True) -> None:
        """A new life; `fatal` 0: nothing ends it."""
        self.fatal, self.before, self.writes, self.dead = fatal, before, 0, False

    async def read(self, name: str) -> SecretSnapshot:
        self._check()
        return await self.inner.read(name)

    async def write(self, name: str, contents: Mapping[str, bytes], version: str | None) -> SecretSnapshot:
        self._count(before=True)
        written = await self.inner.write(name, contents, version)
        self._count(before=False)
        return written

    async def delete(self, name: str) -> None:
        self._count(before=True)
        await self.inner.delete(name)
        self._count(before=False)

    def changes(self, name: str) -> AsyncIterator[SecretSnapshot]:
        return self.inner.changes(name)

    def _count(self, *, before: bool) -> None:
        self._check()
        self.writes += before
        if self.writes == self.fatal and before is self.before:
            self.dead = True
            self.on_death()
        self._check()

    def _check(self) -> None:
        if self.dead:
            raise KilledError


HEALTHY = ApiServerHealth(ok=True, status_code=200, detail="ok")


class MemoryCluster(Cluster):
    """Set what it shall answer; `fail` makes every read (not health) raise that error until it is None again."""

    def __init__(
        self,
        *,
        uid: str = "6b7f2d5e-0000-4000-8000-000000000001",
        version: str = "v1.34.2",
        nodes: Sequence[NodeResources] = (),
        claims: Sequence[ReportedClaim] = (),
    ) -> None:
        self.fail: MusterError | None = None
        self.answered_health = HEALTHY
        self.leases: dict[tuple[str, str], datetime] = {}
        self.namespaces: dict[str, dict[str, str]] = {}
        self.refused_namespaces: set[str] = set()
        self._uid = uid
        self._version = version
        self._nodes = tuple(nodes)
        self._claims = tuple(claims)
        self._listeners: list[asyncio.Queue[str]] = []

    def set_nodes(self, nodes: Sequence[NodeResources]) -> None:
        self._nodes = tuple(nodes)
        self._tell("nodes")

    def set_claims(self, claims: Sequence[ReportedClaim]) -> None:
        self._claims = tuple(claims)
        self._tell("claims")

    async def uid(self) -> str:
        self._check()
        return self._uid

    async def version(self) -> str:
        self._check()
        return self._version

    async def health(self) -> ApiServerHealth:
        return self.answered_health

    async def nodes(self) -> Sequence[NodeResources]:
        self._check()
        return self._nodes

    async def claims(self) -> Sequence[ReportedClaim]:
        self._check()
        return self._claims

    async def labelled_namespaces(self, label: str) -> frozenset[str]:
        self._check()
        return frozenset(name for name, labels in self.namespaces.items() if labels.get(label) == "true")

    async def namespace_exists(self, name: str) -> bool:
        self._check()
        return name not in self.refused_namespaces

    async def label_namespace(self, name: str, label: str, value: str, *, create: bool) -> None:
        self._check()
        if name in self.refused_namespaces:
            raise ForbiddenError(f'namespace "{name}" may not be written')
        if name in self.namespaces or create:
            self.namespaces.setdefault(name, {})[label] = value

    async def lease_renewed_at(self, namespace: str, name: str) -> datetime | None:
        self._check()
        return self.leases.get((namespace, name))

    async def changes(self) -> AsyncIterator[str]:
        queue: asyncio.Queue[str] = asyncio.Queue()
        for what, present in (("nodes", self._nodes), ("claims", self._claims)):
            if present:
                queue.put_nowait(what)
        self._listeners.append(queue)
        try:
            while True:
                yield await queue.get()
        finally:
            self._listeners.remove(queue)

    def _tell(self, what: str) -> None:
        for queue in self._listeners:
            queue.put_nowait(what)

    def _check(self) -> None:
        if self.fail:
            raise self.fail
