"""A store in memory with the hub's CA, and what agents and operators do to it."""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from hub.domain.certificate import CertificateRecord, Lifetimes
from hub.domain.change import MANAGED_CLUSTERS, REQUESTS, Key, Query
from hub.domain.cluster import Joining
from hub.domain.request import RequestState, Submission
from hub.issuer import LocalIssuer
from hub.services import certificates, clusters, credentials, requests
from machinery import conditions, pki
from machinery.clock import ManualClock
from machinery.conditions import Condition
from machinery.identity import AgentId, ClusterName, Subject, agent_subject
from tests.fakes.inline_store import InlineStore

AGENT = AgentId("xk7pq")


@dataclass
class Hub:
    """The world around a controller."""

    clock: ManualClock = field(default_factory=ManualClock)
    lifetimes: Lifetimes = field(default_factory=Lifetimes)

    def __post_init__(self) -> None:
        self.store = InlineStore(self.clock)
        now = self.clock.now()
        key = pki.generate_key()
        authority = pki.create_authority(Subject("test-ca"), key, pki.random_serial(), now, now + timedelta(days=3650))
        self.issuer = LocalIssuer(authority)

    def credential(self, name: str) -> CertificateRecord:
        """A bootstrap credential's certificate for one cluster name."""
        _, issued = self.store.transact(
            credentials.create,
            cluster=ClusterName(name),
            uses=1,
            lifetime=None,
            public_key=pki.public_key_of(pki.generate_key()),
            issuer=self.issuer,
            lifetimes=self.lifetimes,
            actor="admin",
        )
        found = self.store.transact(certificates.resolve, issued.serial)
        assert found is not None
        return found

    def join(self, name: str) -> None:
        credential = self.credential(name).credential
        self.store.transact(clusters.ensure, Joining(ClusterName(name), "uid-" + name, AGENT, credential=credential), "agent")

    def submit(self, name: str, requester: CertificateRecord | None = None, key: bytes | None = None) -> str:
        request = pki.build_request(agent_subject(ClusterName(name), AGENT), key or pki.generate_key())
        submission = Submission(ClusterName(name), AGENT, request, requester or self.credential(name), "uid-" + name)
        return self.store.transact(requests.submit, submission)

    def approve(self, request: str) -> None:
        self.store.transact(requests.decide, request, approve=True, reason="Tested", message="", actor="admin")

    def accept(self, name: str, *, accepted: bool = True) -> None:
        self.store.transact(clusters.set_accepted, ClusterName(name), accepted, "admin")

    def state(self, request: str) -> RequestState:
        return self.store.transact(requests.state, request)

    def cluster(self, name: str) -> dict[str, Any]:
        stored = self.store.transact(lambda tx: tx.objects.get(MANAGED_CLUSTERS, Key("", name)))
        assert stored is not None
        return dict(stored.document)

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
