"""Deletes pods of an older form of the cert agent, which remain when their Deployment was replaced."""

from collections.abc import Callable
from datetime import timedelta

import structlog

from hub.kubecert.cluster_client import ClusterClient, is_outdated
from hub.kubecert.deployment import AgentDeploymentShape
from machinery.errors import NotFoundError
from machinery.runtime.controller import Reconciler

NAME = "kube-cert-agent-cleaner"

log = structlog.get_logger(__name__)


class OutdatedPods(Reconciler[str]):
    """Keys are pod names. Only the leader deletes."""

    def __init__(self, cluster: ClusterClient, shape: AgentDeploymentShape, leads: Callable[[], bool]) -> None:
        self._cluster = cluster
        self._shape = shape
        self._leads = leads

    async def reconcile(self, key: str) -> timedelta | None:
        """Read the pod again and delete exactly that one. Raises MusterError."""
        if not self._leads():
            return None
        pod = await self._cluster.pod(key)
        if pod is None or not is_outdated(pod, self._shape):
            return None
        try:
            await self._cluster.remove_pod(pod)
        except NotFoundError:
            return None
        log.info("pod of an older cert agent removed", pod=key)
        return None
