"""One secret that is changed by read, modify, write: the place where a credential or a pending request is kept."""

from collections.abc import Callable, Mapping

from machinery.errors import AlreadyExistsError, ConflictError
from machinery.identity import HubId
from spoke.ports import Secrets, SecretSnapshot

Contents = Mapping[str, bytes]
ATTEMPTS = 5
OWNER_SECRET = "hub-kubeconfig-secret"  # noqa: S105 - the name of a secret


class Slot:
    """The secret `name`; remembers what it read last, so that the first write after a read costs no second read."""

    def __init__(self, secrets: Secrets, name: str) -> None:
        self.name = name
        self._secrets = secrets
        self._last: SecretSnapshot | None = None

    async def read(self) -> Contents:
        """What is stored now; empty when there is no such secret."""
        self._last = await self._secrets.read(self.name)
        return self._last.contents

    async def change(self, edit: Callable[[Contents], Contents]) -> Contents:
        """Stores `edit(contents)`; when others changed the secret meanwhile, reads again and edits that."""
        for attempt in range(1, ATTEMPTS + 1):
            present = self._last or await self._secrets.read(self.name)
            self._last = None
            try:
                self._last = await self._secrets.write(self.name, edit(present.contents), present.version)
            except (ConflictError, AlreadyExistsError):
                if attempt == ATTEMPTS:
                    raise
            else:
                return self._last.contents
        raise AssertionError  # the loop returns or raises

    async def delete(self) -> None:
        self._last = None
        await self._secrets.delete(self.name)


def pending_slot(secrets: Secrets, hub: HubId) -> Slot:
    """Where a request to a hub is kept while it pends."""
    return Slot(secrets, f"{OWNER_SECRET}-{hub[:8]}")
