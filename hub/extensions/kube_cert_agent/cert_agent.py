"""Assembles the cert agent's controllers over one connection to the cluster."""

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from hub.election.fence import FencedStore
from hub.extensions.kube_cert_agent import controller
from hub.extensions.kube_cert_agent.cluster_client import OUTDATED, HostCluster, mirrors
from hub.extensions.kube_cert_agent.controller import KEY, IssuerBook, KubeCertAgent, OutdatedPods
from hub.extensions.kube_cert_agent.deployment import AgentDeploymentShape
from hub.extensions.kube_cert_agent.issuer import AuthorityProvider
from machinery.client.rest import KubeClient
from machinery.runtime.clock import Clock
from machinery.runtime.controller import Controller


class CertAgent:
    """`server`: see `KubeCertAgent`. `pod`: see `HostCluster`."""

    def __init__(
        self,
        client: KubeClient,
        shape: AgentDeploymentShape,
        keeper: AuthorityProvider,
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
        self._cleaner = Controller(controller.CLEANER, OutdatedPods(host, shape, book.leads))
        self._mirrors = mirrors(client, shape, self.look, self._cleaner.enqueue)

    def look(self) -> None:
        self._agent.enqueue(KEY)

    def lead(self, fenced: FencedStore) -> None:
        """This replica leads now: let the controllers write what they only read before."""
        self._book.lead(fenced)
        self.look()
        for key in self._mirrors[OUTDATED].items:
            self._cleaner.enqueue(key.name)

    def snapshot(self) -> Mapping[str, Any]:
        return self._looking.snapshot()

    def tasks(self) -> Mapping[str, Callable[[], Coroutine[Any, Any, None]]]:
        """What must run while the hub serves, by name. The first pass records the status even if nothing ever changes."""
        self.look()
        controllers = {each.name: each.run for each in (self._agent, self._cleaner)}
        return {**controllers, **{f"mirror of {name}": mirror.run for name, mirror in self._mirrors.items()}}
