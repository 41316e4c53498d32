"""Agents reduced to the protocol: many can join from one process, each with its key, and none gives up."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

from machinery import pki
from machinery.clock import SystemClock
from machinery.errors import MusterError, UnavailableError
from machinery.identity import AgentId, ClusterName, Subject, agent_subject
from machinery.kube.client import KubeClient
from spoke.hubclient.client import GrpcHubClient
from spoke.ports import ClientIdentity, HubAddress, RequestState

CREDENTIALS = "/apis/hub.open-cluster-management.io/v1alpha1/bootstrapcredentials"
AGENT = AgentId("xk7pq")
PAUSE = 0.1


@dataclass(frozen=True, slots=True)
class Entrance:
    """A bootstrap credential for several cluster names, and the hub that it opens."""

    address: HubAddress
    identity: ClientIdentity


async def entrance(admin: Path, uses: int) -> Entrance:
    key = pki.generate_key()
    request = pki.build_request(Subject("bootstrap"), key).decode()
    body = {
        "apiVersion": "hub.open-cluster-management.io/v1alpha1",
        "kind": "BootstrapCredential",
        "metadata": {"generateName": "bootstrap-"},
        "spec": {"request": request, "uses": uses},
    }
    async with await KubeClient.from_file(admin) as client:
        status = (await client.create(CREDENTIALS, body))["status"]
    address = HubAddress(status["grpcServer"], status["certificateAuthority"].encode())
    return Entrance(address, ClientIdentity(status["certificate"].encode(), key))


@dataclass
class Joiner:
    """One agent: it knows its key and its name before it asks, and asks until it has its certificate."""

    name: ClusterName
    entrance: Entrance
    key: bytes = field(default_factory=pki.generate_key)
    attempts: int = 0
    request: str = ""
    issued: RequestState | None = None

    @property
    def identity(self) -> ClientIdentity:
        assert self.issued is not None
        return ClientIdentity(self.issued.certificate, self.key)

    async def join(self) -> RequestState:
        """Returns with the certificate. Raises what the hub refuses for good."""
        request = pki.build_request(agent_subject(self.name, AGENT), self.key)
        while self.issued is None:
            self.attempts += 1
            client = GrpcHubClient(self.entrance.address, self.entrance.identity, SystemClock())
            try:
                await self._attempt(client, request)
            except UnavailableError:
                await asyncio.sleep(PAUSE)
            except MusterError as error:
                if error.reason not in {"Timeout", "InternalError"}:
                    raise
                await asyncio.sleep(PAUSE)
            finally:
                await client.close()
        return self.issued

    async def _attempt(self, client: GrpcHubClient, request: bytes) -> None:
        uid = f"uid-of-{self.name}"
        await client.ensure_cluster(self.name, AGENT, uid, endpoints=(), annotations={})
        self.request = await client.submit_request(self.name, AGENT, uid, request, duration=None)
        async for state in client.follow_request(self.request):
            if state.state == "issued":
                self.issued = state
                return
