"""Assembles the cert agent's controllers over one connection to the cluster."""

from collections.abc import Mapping
from typing import Any

from hub.kubecert import cleaner, controller
from hub.kubecert.cleaner import OutdatedPods
from hub.kubecert.cluster_client import HostCluster
from hub.kubecert.controller import KEY, KubeCertAgent
from hub.kubecert.deployment import AgentDeploymentShape
from hub.kubecert.status_writer import IssuerBook
from hub.kubecert.watch import mirrors
from hub.ports import AuthorityKeeper, Store
from machinery.client.rest import KubeClient
from machinery.runtime.clock import Clock
from machinery.runtime.controller import Controller
from machinery.runtime.tasks import GuardedTasks


class CertAgent:
    """`server`: see `KubeCertAgent`. `pod`: see `HostCluster`."""

    def __init__(
        self,
        client: KubeClient,
        shape: AgentDeploymentShape,
        keeper: AuthorityKeeper,
        book: IssuerBook,
        *,
        clock: Clock,
        server: str = "",
        pod: str | None = None,
    ) -> None:
        host = HostCluster(client, shape, pod)
        self._book = book
        self._looking = KubeCertAgent(host, shape, keeper, book, clock=clock, server=server)
        self._agent = Controller(controller.NAME, self._looking)
        self._cleaner = Controller(cleaner.NAME, OutdatedPods(host, shape, book.leads))
        self._mirrors = mirrors(client, shape, self.look, self._cleaner.enqueue)

    def look(self) -> None:
        self._agent.enqueue(KEY)

    def lead(self, fenced: Store) -> None:
        """This replica leads now: let the controllers write what they only read before."""
        self._book.lead(fenced)
        self.look()
        for key in self._mirrors.outdated.items:
            self._cleaner.enqueue(key.name)

    def snapshot(self) -> Mapping[str, Any]:
        return self._looking.snapshot()

    def start(self, tasks: GuardedTasks) -> None:
        self.look()  # record the status even if nothing ever changes
        for each in (self._agent, self._cleaner):
            tasks.start(each.name, each.run())
        for mirror in self._mirrors:
            tasks.start(f"mirror {mirror.path}", mirror.run())
