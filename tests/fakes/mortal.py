"""Secrets whose user is killed around a write: from then on it reaches nothing, until its next life."""

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field

from spoke.ports import Secrets, SecretSnapshot
from tests.fakes.credentials import MemorySecrets


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
