"""Secrets and a credential directory that live in memory; trusted because the contract suite runs on them too."""

import asyncio
import errno
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from machinery.errors import AlreadyExistsError, ConflictError, MusterError
from machinery.identity import ClusterName
from spoke.ports.cluster import CredentialDirectory, Remains, SecretPlace, Secrets, SecretSnapshot

MISSING = SecretSnapshot(contents={}, version=None)


class MemorySecrets(Secrets):
    """A namespace's secrets. `refuse_writes` makes every write and delete fail with that error until it is None again."""

    def __init__(self) -> None:
        self.refuse_writes: MusterError | None = None
        self.written: list[str] = []
        """The name of each write that was done, in order."""
        self.deleted: list[str] = []
        """The names of those that were there and were deleted, in order."""
        self._secrets: dict[str, SecretSnapshot] = {}
        self._revision = 0
        self._changed = asyncio.Event()

    @property
    def names(self) -> set[str]:
        return set(self._secrets)

    def contents(self, name: str) -> Mapping[str, bytes]:
        return self._secrets.get(name, MISSING).contents

    async def read(self, name: str) -> SecretSnapshot:
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
    """`secrets`: the component namespace's; `addons_of`: names of add-ons' secrets in `addon_secrets`."""

    def __init__(self, secrets: MemorySecrets, addon_secrets: MemorySecrets) -> None:
        self.lease_forgotten = False
        self._secrets = secrets
        self._addon_secrets = addon_secrets

    async def slots(self) -> Sequence[str]:
        return sorted(name for name in self._secrets.names if name.startswith("hub-kubeconfig-secret-"))

    async def addons(self, cluster: ClusterName) -> Sequence[SecretPlace]:
        del cluster
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
