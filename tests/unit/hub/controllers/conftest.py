"""A store in memory with the hub's CA, and what agents and operators do to it."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from hub.api.certificates import CertificateRecord, Lifetimes
from hub.api.certificatesigningrequests import RequestState
from hub.api.managedclusters.cluster import JoinRequest
from hub.api.meta.change import REQUESTS
from hub.issuer.local import LocalIssuer, make_authority
from hub.registry.certificatesigningrequests import service as requests
from hub.registry.managedclusters import service as clusters
from machinery.identity import AgentId, ClusterName
from machinery.meta import conditions
from machinery.meta.conditions import Condition
from machinery.meta.objects import Query
from machinery.runtime.clock import ManualClock
from tests.fakes.inline_store import InlineStore
from tests.fakes.registration import Newcomer, set_accepted

AGENT = AgentId("xk7pq")


@dataclass
class Hub:
    """The world around a controller."""

    clock: ManualClock = field(default_factory=ManualClock)
    lifetimes: Lifetimes = field(default_factory=Lifetimes)

    def __post_init__(self) -> None:
        self.store = InlineStore(self.clock)
        self.issuer = LocalIssuer(make_authority(self.lifetimes, self.clock.now())[0])

    def of(self, name: str) -> Newcomer:
        return Newcomer(self.store, self.issuer, ClusterName(name), AGENT, "uid-" + name)  # type: ignore[arg-type]

    def credential(self, name: str) -> CertificateRecord:
        """A bootstrap credential's certificate for one cluster name."""
        return self.of(name).bootstrap(cluster=ClusterName(name), uses=1)

    def join(self, name: str) -> None:
        joining = JoinRequest(ClusterName(name), "uid-" + name, AGENT, credential=self.credential(name).credential)
        self.store.transact(clusters.ensure, joining, "agent")

    def submit(self, name: str, requester: CertificateRecord | None = None) -> str:
        return self.of(name).submit(requester or self.credential(name))

    def approve(self, request: str) -> None:
        self.store.transact(requests.decide, request, approve=True, reason="Tested", message="", actor="admin")

    def accept(self, name: str, *, accepted: bool = True) -> None:
        self.store.transact(set_accepted, ClusterName(name), accepted, "admin")

    def state(self, request: str) -> RequestState:
        return self.store.transact(requests.state, request)

    def cluster(self, name: str) -> dict[str, Any]:
        return dict(self.store.transact(clusters.find, ClusterName(name)).document)

    def condition(self, name: str, kind: str) -> Condition | None:
        return conditions.find(self.cluster(name).get("status", {}).get("conditions", []), kind)

    def count(self) -> int:
        return len(self.store.transact(lambda tx: tx.objects.find(REQUESTS, Query()).items))

    @property
    def revision(self) -> int:
        return self.store.state.revision


@pytest.fixture
def hub() -> Hub:
    return Hub()
