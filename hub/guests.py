"""Who comes in to the door for operators besides those whom the hub itself knows."""

from contextlib import AsyncExitStack

from hub.apiserver.aggregation import Aggregation
from hub.apiserver.clientca import ClientAuthorityFile
from hub.apiserver.entrance import WayIn
from hub.settings import Settings
from machinery.clock import Clock
from machinery.tls import Serving


async def ways_in(settings: Settings, serving: Serving, clock: Clock, stack: AsyncExitStack) -> list[WayIn]:
    """Those that were asked for; what they open closes with `stack`."""
    return [*_other_authorities(settings, serving, clock), *await _aggregation(settings, serving, clock, stack)]


def _other_authorities(settings: Settings, serving: Serving, clock: Clock) -> list[WayIn]:
    if settings.client_ca_file is None:
        return []
    return [ClientAuthorityFile(settings.client_ca_file, settings.client_ca_groups, serving, clock)]


async def _aggregation(settings: Settings, serving: Serving, clock: Clock, stack: AsyncExitStack) -> list[WayIn]:
    """The way through a kube-apiserver that has this hub behind it."""
    if settings.management_cluster is None:
        return []
    from hub.management import ManagementCluster  # noqa: PLC0415 - 60 MB that only such a hub needs

    namespace, _, name = (settings.aggregation_service or "").partition("/")
    connected = await ManagementCluster.connected(settings.management_cluster, (namespace, name) if name else None)
    return [Aggregation(await stack.enter_async_context(connected), serving, clock)]
