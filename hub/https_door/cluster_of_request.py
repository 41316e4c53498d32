"""Finds the cluster of a request, for log lines and spans."""

from aiohttp import web
from structlog.contextvars import bound_contextvars

from hub.api.namespaces import STANDING
from machinery.apiserver.access import Attributes
from machinery.apiserver.http.filters import Incoming, Inner

CLUSTERS = "managedclusters"


async def named(incoming: Incoming, inner: Inner) -> web.StreamResponse:
    """Filter that adds the cluster of the request to log lines."""
    cluster = cluster_of(incoming.attributes)
    if not cluster:
        return await inner(incoming)
    with bound_contextvars(cluster=cluster):
        return await inner(incoming)


def cluster_of(asked: Attributes) -> str:
    """Returns the named ManagedCluster, or the cluster of the namespace; "": neither."""
    if asked.resource == CLUSTERS:
        return asked.name
    return "" if asked.namespace in STANDING else asked.namespace
