"""Hubs behind a HubClient, each with the same few levers: in memory, and the hub's own two doors."""

from base64 import b64decode
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from hub.api.managedclusteraddons import addon as addon_rules
from hub.api.managedclusteraddons.versions import CUSTOM_SIGNER, KUBE_CLIENT
from hub.api.managedclusters import agent_annotations
from hub.api.meta import document as doc
from hub.api.meta.change import ADDONS
from hub.ports import Transaction
from hub.registry.certificatesigningrequests import service as requests
from hub.registry.managedclusteraddons import service as addons
from hub.registry.managedclusters import actions, service as clusters
from machinery.client.kubeconfig import Credential
from machinery.errors import ConflictError, ForbiddenError, NotFoundError, UnauthorizedError, UnavailableError
from machinery.identity import AddOnName, AgentId, ClusterName, HubId, agent_subject
from machinery.meta.objects import Key
from machinery.pki import parse_certificate
from machinery.runtime.clock import SystemClock
from spoke.domain.addon import KUBE_SIGNER, AddOn, AddOnRegistration
from spoke.domain.names import AgentIdentity, AgentNames
from spoke.domain.next_step import SessionLoss
from spoke.domain.report import ManagedNamespace
from spoke.domain.route import Driver
from spoke.ports.hub import ClientIdentity, HubAddress, HubClient, HubLostError
from spoke.transports.grpc.client import GrpcHubClient
from spoke.transports.kubernetes.client import ApiHubClient
from tests.checks import present
from tests.fakes.hub import MemoryHub
from tests.fakes.rpc_stage import ADMIN, RpcStage, rpc_stage

AT_THE_HUB = AddOnRegistration(KUBE_SIGNER, "u")
ENDS = {
    SessionLoss.UNREACHABLE: UnavailableError,
    SessionLoss.SUPERSEDED: ConflictError,
    SessionLoss.UNAUTHENTICATED: UnauthorizedError,
    SessionLoss.REFUSED: ForbiddenError,
    SessionLoss.FORGOTTEN: NotFoundError,
}
CLUSTER, AGENT, UID = ClusterName("berlin"), AgentId("abcde"), "uid-of-kube-system"
IDENTITY = AgentIdentity(AgentNames(CLUSTER, AGENT), UID)


class MemoryRig:
    """A MemoryHub, without a network."""

    def __init__(self, hub: MemoryHub) -> None:
        self.hub = hub
        hub.approve = False
        hub.again_after = timedelta(minutes=5)

    @property
    def hub_id(self) -> HubId:
        return self.hub.hub_id

    @property
    def trust(self) -> bytes:
        return self.hub.authority.certificate

    async def bootstrap(self) -> Credential:
        return self.hub.credential()

    async def stranger(self) -> Credential:
        return self.hub.credential(agent_subject(ClusterName("paris"), AGENT))

    async def agent(self) -> Credential:
        client = self.client(await self.bootstrap())
        await client.ensure_cluster(IDENTITY, endpoints=(), annotations={})
        await client.close()
        return self.hub.credential(agent_subject(CLUSTER, AGENT))

    def client(self, credential: Credential) -> HubClient:
        return self.hub.dial(HubAddress("nowhere:1", self.trust), ClientIdentity(credential.chain, credential.key))

    async def approve(self, request: str) -> None:
        self.hub.approve_request(request)

    async def deny(self, request: str, message: str) -> None:
        self.hub.deny_request(request, message)

    async def accept(self, *, accepted: bool) -> None:
        self.hub.set_accepted(CLUSTER, accepted=accepted)

    async def revoke(self, credential: Credential) -> None:
        self.hub.revoked.add(parse_certificate(credential.chain).serial)

    async def add_on(self, name: str, registration: AddOnRegistration = AT_THE_HUB, *, namespace: str = "x") -> None:
        self.hub.set_addons([AddOn(AddOnName(name), namespace, registrations=(registration,))])

    async def note(self, name: str) -> None:
        """It is noted with the driver."""

    async def want_namespace(self, name: str, cluster_set: str) -> None:
        self.hub.set_namespaces(ManagedNamespace(name, cluster_set))

    async def go_away(self) -> None:
        self.hub.away = True

    async def reported(self) -> Mapping[str, object]:
        last, (_, conditions) = self.hub.session.reports[-1], self.hub.session.addon_reports[-1]
        return {
            "capacity": last.capacity["cpu"],
            "allocatable": last.allocatable["cpu"],
            "version": last.kubernetes_version,
            "claims": [(claim.name, claim.value) for claim in last.claims],
            "endpoints": [(each.url, each.ca_bundle) for each in last.endpoints],
            "logs": [(each.type, each.status) for each in conditions],
        }

    async def refuse_addon_reports(self) -> None:
        self.hub.faults["report_addon"] = NotFoundError("refused")

    async def end_session(self, message: str, loss: SessionLoss) -> None:
        self.hub.session.end(HubLostError(message, loss))

    async def drain(self, target: HubId | None) -> None:
        self.hub.session.drain(target)

    def sessions(self) -> int:
        return len(self.hub.open_sessions)

    def hold_beats(self) -> None:
        self.hub.silent = True

    def is_holding_beats(self) -> bool:
        return self.hub.silent and len(self.hub.session.beats) > 1

    async def hubs(self) -> Sequence[tuple[str, str, str]]:
        return [(each.hub_id, each.name, each.state.name) for each in self.hub.clusters[CLUSTER].hubs]

    async def owner(self) -> tuple[str, int]:
        known = self.hub.clusters[CLUSTER]
        return str(known.owner), known.epoch

    @property
    def again_after(self) -> timedelta:
        return self.hub.again_after or timedelta()


class HubRig:
    """The hub's own gRPC door."""

    def __init__(self, stage: RpcStage) -> None:
        self.stage = stage

    @property
    def hub_id(self) -> HubId:
        return self.stage.parts.hub_id

    @property
    def trust(self) -> bytes:
        return self.stage.issuer.trust_bundle

    async def bootstrap(self) -> Credential:
        """A bootstrap credential for CLUSTER."""
        return await self.stage.bootstrap(CLUSTER)

    async def stranger(self) -> Credential:
        """A credential that has to do with another cluster alone."""
        return await self.stage.enrol("paris")

    async def agent(self) -> Credential:
        """The agent's own certificate; its cluster is known and accepted."""
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

    async def add_on(self, name: str, registration: AddOnRegistration = AT_THE_HUB, *, namespace: str = "x") -> None:
        """An add-on of CLUSTER; by default one that identifies itself at the hub, in a way that is not noted yet."""
        subject = {"user": registration.user, "groups": list(registration.groups)}
        custom = {"type": CUSTOM_SIGNER, "customSigner": {"signerName": registration.signer_name, "subject": subject}}
        registrations = [{"type": KUBE_CLIENT} if registration == AT_THE_HUB else custom]
        kind = {"apiVersion": addon_rules.API_VERSION, "kind": addon_rules.KIND}
        metadata, status = {"name": name, "namespace": CLUSTER}, {"namespace": namespace, "registrations": registrations}
        await self.stage.store.run(addons.put, {**kind, "metadata": metadata, "status": status}, None, ADMIN)

    async def note(self, name: str) -> None:
        """What the hub does by itself when an add-on is by token: its account."""
        await self.stage.store.run(addons.update_token, Key(CLUSTER, name), ADMIN)

    async def want_namespace(self, name: str, cluster_set: str) -> None:
        def want(tx: Transaction) -> None:
            stored = clusters.find(tx, CLUSTER)
            wanted = doc.with_status(stored.document, managedNamespaces=[{"name": name, "clusterSet": cluster_set}])
            clusters.put(tx, wanted, stored, ADMIN)

        await self.stage.store.run(want)

    async def go_away(self) -> None:
        """It answers nobody any more."""
        self.stage.parts.gate.close()

    async def reported(self) -> Mapping[str, object]:
        """What the last report said of CLUSTER, and the conditions of the add-on `logs`."""
        cluster = await self.stage.cluster(CLUSTER)
        logs = present(await self.stage.store.read(lambda tx: tx.objects.get(ADDONS, Key(CLUSTER, "logs"))))
        status = cluster["status"]
        return {
            "capacity": status["capacity"]["cpu"],
            "allocatable": status["allocatable"]["cpu"],
            "version": status["version"]["kubernetes"],
            "claims": [(claim["name"], claim["value"]) for claim in status["clusterClaims"]],
            "endpoints": [
                (each["url"], b64decode(each["caBundle"])) for each in cluster["spec"]["managedClusterClientConfigs"]
            ],
            "logs": [(each["type"], each["status"]) for each in doc.sequence(logs.document, "status", "conditions")],
        }

    async def refuse_addon_reports(self) -> None:
        """As it always does."""

    async def end_session(self, message: str, loss: SessionLoss) -> None:
        (session,) = self.stage.parts.sessions.all()
        session.end(ENDS[loss](message))

    async def drain(self, target: HubId | None) -> None:
        """Asks the agent to leave, for another hub of its list where one is named."""
        if target is not None:
            await self.stage.store.run(actions.order_move, CLUSTER, target, ADMIN)
            return
        (session,) = self.stage.parts.sessions.all()
        session.drain(timedelta(seconds=1))

    def sessions(self) -> int:
        return len(self.stage.parts.sessions)

    def hold_beats(self) -> None:
        """Its --flush-window does."""

    def is_holding_beats(self) -> bool:
        return len(self.stage.parts.beats) > 0

    async def hubs(self) -> Sequence[tuple[str, str, str]]:
        """The agent's list as the hub knows it: id, name and state."""
        listed = agent_annotations.hubs_of(await self.stage.cluster(CLUSTER))
        return [(each["id"], each["name"], agent_annotations.AgentHubState(each["state"]).name) for each in listed]

    async def owner(self) -> tuple[str, int]:
        """Which hub CLUSTER belongs to, and the epoch of that."""
        last = present(await self.stage.store.read(lambda tx: tx.heartbeats.of(CLUSTER)))
        return str(last.owner), last.epoch

    @property
    def again_after(self) -> timedelta:
        return self.stage.parts.standby_interval


class ApiRig(HubRig):
    """The same hub through its HTTPS door. It has no id there."""

    @property
    def hub_id(self) -> HubId:
        return HubId("")

    @property
    def server(self) -> str:
        return f"https://{self.stage.hub.core.context.settings.https_listen}"

    def client(self, credential: Credential) -> HubClient:
        return self.client_as(ClientIdentity(credential.chain, credential.key))

    def client_as(self, identity: ClientIdentity) -> ApiHubClient:
        return ApiHubClient(HubAddress(self.server, self.trust, Driver.CSR), identity, SystemClock())


Rig = MemoryRig | HubRig


@asynccontextmanager
async def rig_of(kind: str, folder: Path, **settings: Any) -> AsyncIterator[Rig]:
    """`memory`, or the doors of a hub with these settings: `grpc` and `api`."""
    if kind == "memory":
        yield MemoryRig(MemoryHub(SystemClock()))
        return
    async with rpc_stage(folder, **settings) as stage:
        yield HubRig(stage) if kind == "grpc" else ApiRig(stage)
