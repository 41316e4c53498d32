"""A managed cluster in memory; trusted because the contract suite runs on it too."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import datetime

from machinery.errors import ForbiddenError, MusterError
from spoke.domain.report import NodeResources, ReportedClaim
from spoke.ports.cluster import ApiServerHealth, Cluster

HEALTHY = ApiServerHealth(ok=True, status_code=200, detail="ok")


class MemoryCluster(Cluster):
    """Set what it shall answer; `fail` makes every read (not health) raise that error until it is None again."""

    def __init__(
        self,
        *,
        uid: str = "6b7f2d5e-0000-4000-8000-000000000001",
        version: str = "v1.34.2",
        nodes: Sequence[NodeResources] = (),
        claims: Sequence[ReportedClaim] = (),
    ) -> None:
        self.fail: MusterError | None = None
        self.answered_health = HEALTHY
        self.leases: dict[tuple[str, str], datetime] = {}
        self.namespaces: dict[str, dict[str, str]] = {}
        self.refused_namespaces: set[str] = set()
        self._uid = uid
        self._version = version
        self._nodes = tuple(nodes)
        self._claims = tuple(claims)
        self._listeners: list[asyncio.Queue[str]] = []

    def set_nodes(self, nodes: Sequence[NodeResources]) -> None:
        self._nodes = tuple(nodes)
        self._tell("nodes")

    def set_claims(self, claims: Sequence[ReportedClaim]) -> None:
        self._claims = tuple(claims)
        self._tell("claims")

    async def uid(self) -> str:
        self._check()
        return self._uid

    async def version(self) -> str:
        self._check()
        return self._version

    async def health(self) -> ApiServerHealth:
        return self.answered_health

    async def nodes(self) -> Sequence[NodeResources]:
        self._check()
        return self._nodes

    async def claims(self) -> Sequence[ReportedClaim]:
        self._check()
        return self._claims

    async def labelled_namespaces(self, label: str) -> frozenset[str]:
        self._check()
        return frozenset(name for name, labels in self.namespaces.items() if labels.get(label) == "true")

    async def namespace_exists(self, name: str) -> bool:
        self._check()
        return name not in self.refused_namespaces

    async def label_namespace(self, name: str, label: str, value: str, *, create: bool) -> None:
        self._check()
        if name in self.refused_namespaces:
            raise ForbiddenError(f'namespace "{name}" may not be written')
        if name in self.namespaces or create:
            self.namespaces.setdefault(name, {})[label] = value

    async def lease_renewed_at(self, namespace: str, name: str) -> datetime | None:
        self._check()
        return self.leases.get((namespace, name))

    async def changes(self) -> AsyncIterator[str]:
        queue: asyncio.Queue[str] = asyncio.Queue()
        for what, present in (("nodes", self._nodes), ("claims", self._claims)):
            if present:
                queue.put_nowait(what)
        self._listeners.append(queue)
        try:
            while True:
                yield await queue.get()
        finally:
            self._listeners.remove(queue)

    def _tell(self, what: str) -> None:
        for queue in self._listeners:
            queue.put_nowait(what)

    def _check(self) -> None:
        if self.fail:
            raise self.fail
