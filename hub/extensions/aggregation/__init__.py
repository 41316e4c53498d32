"""The hub as an aggregated API server of a Kubernetes cluster (`--management-cluster`)."""

from pathlib import Path

from hub.composition.core import HubCore
from hub.extensions.settings import AggregationSettings
from hub.settings.fields import IN_CLUSTER


async def install(core: HubCore) -> None:
    """If `management_cluster` is set, let its kube-apiserver aggregate this hub's API. Raises InvalidError."""
    settings, context = core.context.settings, core.context
    if not isinstance(settings, AggregationSettings) or settings.management_cluster is None:
        return
    from hub.extensions.aggregation.management import Aggregation  # noqa: PLC0415 - 60 MB
    from machinery.client.rest import KubeClient  # noqa: PLC0415 - the same

    place = settings.management_cluster
    client = KubeClient.in_cluster() if place == IN_CLUSTER else await KubeClient.from_file(Path(place))
    await context.stack.enter_async_context(client)
    namespace, _, name = (settings.aggregation_service or "").partition("/")
    serving, issuer = core.certificates.doors.serving, core.certificates.issuer
    service = (namespace, name) if name else None
    core.authenticators.append(Aggregation(client, service, serving, lambda: issuer.trust_bundle, context.clock))
