"""What an agent left behind, over secrets in memory."""

from collections.abc import Sequence

from machinery.identity import ClusterName
from spoke.ports import Remains, SecretPlace
from tests.fakes.credentials import MemorySecrets


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
