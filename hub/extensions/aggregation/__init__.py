"""The hub as an aggregated API server of a Kubernetes cluster (`--management-cluster`)."""

from hub.composition.core import HubCore
from hub.extensions.settings import AggregationSettings


async def install(core: HubCore) -> None:
    """Serve a kube-apiserver that aggregates this hub's API, if `management_cluster` is set. Raises InvalidError."""
    settings, context = core.context.settings, core.context
    if not isinstance(settings, AggregationSettings) or settings.management_cluster is None:
        return
    from hub.extensions.aggregation.management import Aggregation, ManagementCluster  # noqa: PLC0415 - 60 MB

    namespace, _, name = (settings.aggregation_service or "").partition("/")
    connected = await ManagementCluster.connected(settings.management_cluster, (namespace, name) if name else None)
    cluster = await context.stack.enter_async_context(connected)
    core.authenticators.append(Aggregation(cluster, core.certificates.doors.serving, context.clock))
