"""Which cluster a request is about, for the log and for its span."""

from aiohttp import web
from structlog.contextvars import bound_contextvars

from hub.api.core.namespace import STANDING
from machinery.apiserver.access import Attributes
from machinery.apiserver.http.filters import Incoming, Inner

CLUSTERS = "managedclusters"


async def named(incoming: Incoming, inner: Inner) -> web.StreamResponse:
    """The filter: a line that is written for a cluster bears its name."""
    cluster = cluster_of(incoming.attributes)
    if not cluster:
        return await inner(incoming)
    with bound_contextvars(cluster=cluster):
        return await inner(incoming)


def cluster_of(asked: Attributes) -> str:
    """A ManagedCluster that is named, or the one whose namespace it is; empty: neither."""
    if asked.resource == CLUSTERS:
        return asked.name
    return "" if asked.namespace in STANDING else asked.namespace
