"""Reports the agent's annotations and the URLs of its API server for the ManagedCluster, once per session.

OCM's agent does so only at registration. A hub writes nothing if it knows them already. Once per session is enough, because
they come from settings, which change only with a restart.
"""

from collections.abc import Mapping
from datetime import timedelta

import structlog

from machinery.errors import ForbiddenError, NotFoundError
from machinery.identity import AgentId, ClusterName
from machinery.runtime.controller import Reconciler
from spoke.domain.report import ExternalEndpoint
from spoke.ports import Cluster, HubClient

KEY = "cluster"

log = structlog.get_logger(__name__)


class ClusterUpkeep(Reconciler[str]):
    def __init__(
        self,
        client: HubClient,
        cluster: Cluster,
        names: tuple[ClusterName, AgentId] | None,
        annotations: Mapping[str, str],
        endpoints: tuple[ExternalEndpoint, ...],
    ) -> None:
        self._client = client
        self._cluster = cluster
        self._names = names
        self._annotations = annotations
        self._endpoints = endpoints
        self._told = False

    async def reconcile(self, key: str) -> timedelta | None:
        del key
        if self._told or self._names is None or not self._annotations:
            return None
        name, agent = self._names
        uid = await self._cluster.uid()
        try:
            await self._client.ensure_cluster(name, agent, uid, endpoints=self._endpoints, annotations=self._annotations)
        except (ForbiddenError, NotFoundError) as error:  # no permission, or deleted meanwhile, which the session reports
            log.info("cluster.not_kept", why=error.message)
        self._told = True
        return None
