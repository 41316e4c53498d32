"""Hubs behind a HubClient, each with the same few levers: in memory, in memory behind gRPC, and the hub's own two doors."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

from hub.apiserver.credentials import HubAddress as ApiAddress
from hub.apiserver.door import build_door
from hub.domain import addon as addon_rules
from hub.domain import document as doc
from hub.domain.addon_versions import KUBE_CLIENT
from hub.domain.change import Key
from hub.ports import Transaction
from hub.services import addon_tokens, addons, clusters, namespaces, requests
from machinery.apiserver.serving import serve
from machinery.clock import SystemClock
from machinery.identity import AddOnName, AgentId, ClusterName, HubId, agent_subject
from machinery.kubeconfig import Credential
from machinery.pki import parse_certificate
from machinery.tasks import GuardedTasks
from spoke.domain.addon import KUBE_SIGNER, AddOn, AddOnRegistration
from spoke.domain.namespace import ManagedNamespace
from spoke.domain.reach import Driver
from spoke.hubapi.client import ApiHubClient
from spoke.hubclient.client import GrpcHubClient
from spoke.ports import ClientIdentity, HubAddress, HubClient
from tests.fakes.hub import MemoryHub
from tests.fakes.rpc_stage import ADMIN, RpcStage, rpc_stage
from tests.fakes.wire_hub import listen

CLUSTER, AGENT, UID = ClusterName("berlin"), AgentId("abcde"), "uid-of-kube-system"


class Rig(Protocol):
    """One hub, where nothing is approved and every cluster is accepted by itself."""

    @property
    def hub_id(self) -> HubId: ...
    @property
    def trust(self) -> bytes: ...

    async def bootstrap(self) -> Credential:
        """A bootstrap credential for CLUSTER."""

    async def agent(self) -> Credential:
        """The agent's own certificate; its cluster is known and accepted."""

    def client(self, credential: Credential) -> HubClient: ...

    async def approve(self, request: str) -> None: ...

    async def deny(self, request: str, message: str) -> None: ...

    async def accept(self, *, accepted: bool) -> None: ...

    async def revoke(self, credential: Credential) -> None: ...

    async def add_on(self, name: str) -> None:
        """An add-on of CLUSTER that identifies itself at the hub, in a way that is not noted yet."""

    async def note(self, name: str) -> None:
        """What the hub does by itself when an add-on is by token: its account."""

    async def want_namespace(self, name: str, cluster_set: str) -> None:
        """A namespace that is wanted on CLUSTER."""


class MemoryRig(Rig):
    """A MemoryHub, without a network or behind a port."""

    def __init__(self, hub: MemoryHub, address: HubAddress | None = None) -> None:
        self.hub = hub
        hub.approve = False
        self._address = address

    @property
    def hub_id(self) -> HubId:
        return self.hub.hub_id

    @property
    def trust(self) -> bytes:
        return self.hub.authority.certificate

    async def bootstrap(self) -> Credential:
        return self.hub.credential()

    async def agent(self) -> Credential:
        client = self.client(await self.bootstrap())
        await client.ensure_cluster(CLUSTER, AGENT, UID, endpoints=(), annotations={})
        await client.close()
        return self.hub.credential(agent_subject(CLUSTER, AGENT))

    def client(self, credential: Credential) -> HubClient:
        identity = ClientIdentity(credential.chain, credential.key)
        if self._address is not None:
            return GrpcHubClient(self._address, identity, SystemClock())
        return self.hub.dial(HubAddress("nowhere:1", self.trust), identity)

    async def approve(self, request: str) -> None:
        self.hub.approve_request(request)

    async def deny(self, request: str, message: str) -> None:
        self.hub.deny_request(request, message)

    async def accept(self, *, accepted: bool) -> None:
        self.hub.set_accepted(CLUSTER, accepted=accepted)

    async def revoke(self, credential: Credential) -> None:
        self.hub.revoked.add(parse_certificate(credential.chain).serial)

    async def add_on(self, name: str) -> None:
        self.hub.set_addons([AddOn(AddOnName(name), "x", registrations=(AddOnRegistration(KUBE_SIGNER, "u"),))])

    async def note(self, name: str) -> None:
        """It is noted with the driver."""

    async def want_namespace(self, name: str, cluster_set: str) -> None:
        self.hub.set_namespaces(ManagedNamespace(name, cluster_set))


class HubRig(Rig):
    """The hub's own gRPC door."""

    def __init__(self, stage: RpcStage) -> None:
        self.stage = stage

    @property
    def hub_id(self) -> HubId:
        return self.stage.parts.hub.hub_id

    @property
    def trust(self) -> bytes:
        return self.stage.issuer.trust_bundle

    async def bootstrap(self) -> Credential:
        return await self.stage.bootstrap(CLUSTER)

    async def agent(self) -> Credential:
        return await self.stage.enrol(CLUSTER, agent=AGENT, uid=UID)

    def client(self, credential: Credential) -> HubClient:
        address = HubAddress(f"127.0.0.1:{self.stage.door.port}", self.trust)
        return GrpcHubClient(address, ClientIdentity(credential.chain, credential.key), SystemClock())

    async def approve(self, request: str) -> None:
        await self.stage.approve(request)

    async def deny(self, request: str, message: str) -> None:
        await self.stage.store.run(requests.decide, request, approve=False, reason="Test", message=message, actor=ADMIN)

    async def accept(self, *, accepted: bool) -> None:
        await self.stage.accept(CLUSTER, accepted=accepted)

    async def revoke(self, credential: Credential) -> None:
        serial = parse_certificate(credential.chain).serial
        await self.stage.store.run(lambda tx: tx.certificates.revoke([serial], tx.now, "test"))

    async def add_on(self, name: str) -> None:
        document = {
            "apiVersion": addon_rules.API_VERSION,
            "kind": addon_rules.KIND,
            "metadata": {"name": name, "namespace": CLUSTER},
            "status": {"registrations": [{"type": KUBE_CLIENT}]},
        }
        await self.stage.store.run(lambda tx: addons.put(tx, document, None, ADMIN))

    async def note(self, name: str) -> None:
        await self.stage.store.run(addon_tokens.settle, Key(CLUSTER, name), ADMIN)

    async def want_namespace(self, name: str, cluster_set: str) -> None:
        def want(tx: Transaction) -> None:
            stored = clusters.find(tx, CLUSTER)
            wanted = doc.with_status(stored.document, managedNamespaces=[{"name": name, "clusterSet": cluster_set}])
            clusters.put(tx, wanted, stored, ADMIN)

        await self.stage.store.run(want)


class ApiRig(HubRig):
    """The same hub through its HTTPS door. It tells no id there."""

    def __init__(self, stage: RpcStage, port: int) -> None:
        super().__init__(stage)
        self._port = port

    @property
    def hub_id(self) -> HubId:
        return HubId("")

    @property
    def server(self) -> str:
        return f"https://127.0.0.1:{self._port}"

    def client(self, credential: Credential) -> HubClient:
        return self.client_as(ClientIdentity(credential.chain, credential.key))

    def client_as(self, identity: ClientIdentity) -> ApiHubClient:
        return ApiHubClient(HubAddress(self.server, self.trust, Driver.CSR), identity, SystemClock())


@asynccontextmanager
async def https_door(stage: RpcStage) -> AsyncIterator[int]:
    """The HTTPS door over the same store; gives its port."""
    parts = stage.parts
    await stage.store.run(namespaces.ensure_standing)
    address = ApiAddress(parts.hub.hub_id, "https://127.0.0.1:6443", "127.0.0.1:8443")
    door = build_door(
        stage.store, stage.issuer, parts.peers.identify, address, clock=parts.clock, revocations=parts.peers.listen
    )
    await door.prepare()
    async with GuardedTasks("https door") as tasks:
        tasks.start("door", door.run())
        listening = await serve(door.application(), "127.0.0.1", 0, stage.serving.context)
        try:
            yield listening.port
        finally:
            await listening.close()


@asynccontextmanager
async def rig_of(kind: str, folder: Path) -> AsyncIterator[Rig]:
    """`memory`, `grpc`, `hub` or `api`."""
    if kind == "hub":
        async with rpc_stage(folder) as stage:
            yield HubRig(stage)
        return
    if kind == "api":
        async with rpc_stage(folder) as stage, https_door(stage) as port:
            yield ApiRig(stage, port)
        return
    hub = MemoryHub(SystemClock())
    async with listen(hub) as listening:
        address = HubAddress(f"127.0.0.1:{listening.port}", hub.authority.certificate)
        yield MemoryRig(hub, address if kind == "grpc" else None)
