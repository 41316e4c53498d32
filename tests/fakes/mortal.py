"""Secrets in memory whose user is killed around a write: the process is gone, nothing is tidied up."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

from spoke.ports import Secrets, SecretSnapshot
from tests.fakes.credentials import MemorySecrets


class KilledError(BaseException):
    """The process is gone: nothing handles this."""


@dataclass
class MortalSecrets(Secrets):
    """Kills the agent before or after its n-th write."""

    inner: MemorySecrets = field(default_factory=MemorySecrets)
    fatal: int = 0
    before: bool = True
    writes: int = 0

    async def read(self, name: str) -> SecretSnapshot:
        return await self.inner.read(name)

    async def write(self, name: str, contents: Mapping[str, bytes], version: str | None) -> SecretSnapshot:
        self._die(before=True)
        written = await self.inner.write(name, contents, version)
        self._die(before=False)
        return written

    async def delete(self, name: str) -> None:
        self._die(before=True)
        await self.inner.delete(name)
        self._die(before=False)

    def changes(self, name: str) -> AsyncIterator[SecretSnapshot]:
        return self.inner.changes(name)

    def _die(self, *, before: bool) -> None:
        self.writes += before
        if self.writes == self.fatal and before is self.before:
            self.fatal = 0
            raise KilledError
