"""A kube-apiserver with Open Cluster Management's CRDs, and its hub's rights and controllers as far as an agent sees them."""

import asyncio
import copy
import ssl
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import msgspec
from aiohttp import web

from hub.registry.managedclusteraddons.resource import MANAGED_CLUSTER_ADD_ON
from hub.registry.managedclusters.resource import MANAGED_CLUSTER
from machinery.apiserver.access import ANONYMOUS, OPEN_PATHS, Attributes, Authenticator, Authorizer, Decision
from machinery.apiserver.http.listener import serve
from machinery.apiserver.kinds import core
from machinery.apiserver.kinds.certificates import CERTIFICATE_SIGNING_REQUEST, CERTIFICATES
from machinery.apiserver.kinds.core import COORDINATION, LEASE
from machinery.apiserver.kinds.events import EVENTS, EVENTS_V1
from machinery.apiserver.resource import ApiGroup, Resource, selectable_fields
from machinery.apiserver.server import ApiServer
from machinery.apiserver.storage import Actor
from machinery.apiserver.storages.memory import MemoryStorage
from machinery.client.kubeconfig import ClusterEntry, write_kubeconfig
from machinery.errors import NotFoundError, UnauthorizedError
from machinery.identity import CertificateSubject, parse_agent_user
from machinery.meta.conditions import AVAILABLE, FALSE, HUB_ACCEPTED, TRUE, UNKNOWN, Condition, with_condition
from machinery.meta.objects import Key, Query
from machinery.meta.timestamps import format_micro_time
from machinery.pki import Plan, create_authority, generate_key, parse_certificate, parse_request, random_serial
from machinery.runtime.clock import SystemClock
from machinery.runtime.tls import peer_certificate, server_context
from tests.fakes.identity import serving_material

TOKEN = "bootstrap.secret"  # noqa: S105 - of a test
HUB = Actor("system:hub", ("system:masters",))
BOOTSTRAP = Actor("system:bootstrap", ("system:bootstrappers:managedcluster",))
CLUSTER, ADD_ON = MANAGED_CLUSTER.named(), MANAGED_CLUSTER_ADD_ON.named()
GROUPS = (
    ApiGroup("", (core.NAMESPACE,)),
    CERTIFICATES,
    COORDINATION,
    EVENTS,
    ApiGroup(CLUSTER.group, (CLUSTER,)),
    ApiGroup(ADD_ON.group, (ADD_ON,)),
)
READ = frozenset(("get", "list", "watch"))
PAUSE = 0.02


class OcmHub(Authenticator, Authorizer):
    """Serves until the block ends. `approve` and `accept` are the operator's."""

    def __init__(self, lifetime: timedelta) -> None:
        self._clock = SystemClock()
        self._lifetime = lifetime
        self.storage = MemoryStorage(selectable_fields(GROUPS), clock=self._clock)
        begins = self._clock.now() - timedelta(days=2)
        self.authority = create_authority(
            CertificateSubject("ocm hub"), generate_key(), random_serial(), begins, begins + timedelta(days=99)
        )
        self.accepted: set[str] = set()
        self.refused: list[Attributes] = []
        self.port = 0

    @property
    def application(self) -> web.Application:
        server = ApiServer(
            GROUPS, self.storage, authenticator=self, authorizer=self, clock=self._clock, version={"gitVersion": "v1.34.2"}
        )
        return server.application()

    def bootstrap_kubeconfig(self) -> bytes:
        entry = ClusterEntry("ocm", f"https://127.0.0.1:{self.port}", self.authority.certificate)
        return write_kubeconfig(entry, TOKEN, user="bootstrap")

    async def authenticate(self, request: web.Request) -> Actor:
        if (certificate := peer_certificate(request.transport)) is not None:
            subject = parse_certificate(ssl.DER_cert_to_PEM_cert(certificate).encode()).subject
            return Actor(subject.common_name, tuple(subject.organizations))
        given = request.headers.get("Authorization", "")
        if given and given != f"Bearer {TOKEN}":
            raise UnauthorizedError("Unauthorized")
        return BOOTSTRAP if given else ANONYMOUS

    async def authorize(self, actor: Actor, attributes: Attributes) -> Decision:
        allowed = attributes.path in OPEN_PATHS or self._allows(actor, attributes)
        if not allowed:
            self.refused.append(attributes)
        return Decision(allowed=allowed)

    def _allows(self, actor: Actor, asked: Attributes) -> bool:
        requests = asked.resource == CERTIFICATE_SIGNING_REQUEST.name and not asked.subresource
        if actor is BOOTSTRAP:
            return asked.verb in READ | {"create"} and (requests or asked.resource == CLUSTER.name) and not asked.subresource
        names = parse_agent_user(actor.user)
        if names is None or names[0] not in self.accepted:
            return False
        own, home = names[0] in (asked.name, asked.selected_name), asked.namespace == names[0]
        rights = {
            CERTIFICATE_SIGNING_REQUEST.name: requests and asked.verb in READ | {"create"},
            CLUSTER.name: own and asked.verb in ({"patch", "update"} if asked.subresource else READ | {"update"}),
            LEASE.name: home and asked.verb in {"get", "update"},
            ADD_ON.name: home and asked.verb in ({"patch", "update"} if asked.subresource else READ),
            EVENTS_V1.name: home and asked.verb in {"create", "patch", "update"},
        }
        return rights.get(asked.resource, False)

    async def accept(self, name: str, *, accepted: bool = True, lease_seconds: int = 1) -> None:
        """`hubAcceptsClient`, and what OCM's controllers do about it: rights first, the condition last."""
        await self.edit(
            CLUSTER, name, lambda one: one["spec"].update(hubAcceptsClient=accepted, leaseDurationSeconds=lease_seconds)
        )
        (self.accepted.add if accepted else self.accepted.discard)(name)
        if accepted:
            await self._make(core.NAMESPACE, Key("", name), {})
            held = {"holderIdentity": "managed-cluster-lease", "renewTime": format_micro_time(self._clock.now())}
            await self._make(LEASE, Key(name, "managed-cluster-lease"), {"spec": held})
        reason = "HubClusterAdminAccepted" if accepted else "HubClusterAdminDenied"
        await self.condition(name, Condition(HUB_ACCEPTED, TRUE if accepted else FALSE, reason, "by hub cluster admin"))

    async def fall_silent(self, name: str) -> None:
        """What the lease controller says after five lease durations."""
        await self.condition(name, Condition(AVAILABLE, UNKNOWN, "ManagedClusterLeaseUpdateStopped", "stopped"))

    async def condition(self, name: str, condition: Condition) -> None:
        def edit(one: dict[str, Any]) -> None:
            status = one.setdefault("status", {})
            status["conditions"] = with_condition(status.get("conditions", ()), condition, self._clock.now())

        await self.edit(CLUSTER, name, edit)

    async def add_on(self, cluster: str, name: str) -> None:
        status = {"registrations": [{"type": "kubeClient", "kubeClient": {}}]}
        await self._make(ADD_ON, Key(cluster, name), {"spec": {}, "status": status})

    async def approve(self, name: str) -> None:
        def edit(one: dict[str, Any]) -> None:
            condition = {"type": "Approved", "status": "True", "reason": "Test", "message": "", "lastUpdateTime": None}
            one.setdefault("status", {})["conditions"] = [condition]

        await self.edit(CERTIFICATE_SIGNING_REQUEST, name, edit)

    async def remove(self, resource: Resource, name: str) -> None:
        await self.storage.update(resource.key, Key("", name), lambda _: None, HUB)

    async def edit(self, resource: Resource, name: str, edit: Callable[[dict[str, Any]], object]) -> None:
        def change(old: Any) -> dict[str, Any]:
            document: dict[str, Any] = _copied(old)
            edit(document)
            return document

        await self.storage.update(resource.key, Key("", name), change, HUB)

    async def found(self, resource: Resource, namespace: str | None = None) -> list[dict[str, Any]]:
        page = await self.storage.list(resource.key, Query(namespace=namespace))
        return [_decoded(stored.document) for stored in page.items]

    async def cluster(self, name: str) -> dict[str, Any]:
        """Raises NotFoundError."""
        return _decoded((await self.storage.get(CLUSTER.key, Key("", name))).document)

    async def run(self) -> None:
        """Approves renewals of accepted agents, and signs."""
        while True:
            for request in await self.found(CERTIFICATE_SIGNING_REQUEST):
                await self._sign(request)
            await asyncio.sleep(PAUSE)

    async def _sign(self, request: dict[str, Any]) -> None:
        facts, name = parse_request(b64decode(request["spec"]["request"])), request["metadata"]["name"]
        status, agent = request.get("status", {}), parse_agent_user(request["spec"].get("username", ""))
        if not status.get("conditions") and agent and agent[0] in self.accepted:
            await self.approve(name)
        elif status.get("conditions", [{}])[0].get("type") == "Approved" and not status.get("certificate"):
            now = self._clock.now().replace(microsecond=0)
            plan = Plan(facts.subject, facts.public_key, random_serial(), now - timedelta(minutes=5), now + self._lifetime)
            chain = b64encode(self.authority.sign(plan)).decode()
            await self.edit(CERTIFICATE_SIGNING_REQUEST, name, lambda one: one["status"].update(certificate=chain))

    async def _make(self, resource: Resource, key: Key, content: dict[str, Any]) -> None:
        try:
            await self.storage.get(resource.key, key)
        except NotFoundError:
            metadata = {"name": key.name, **({"namespace": key.namespace} if key.namespace else {})}
            document = {"apiVersion": resource.api_version(), "kind": resource.kind, "metadata": metadata, **content}
            await self.storage.create(resource.key, key, document, HUB)


@asynccontextmanager
async def ocm_hub(*, lifetime: timedelta = timedelta(days=30)) -> AsyncIterator[OcmHub]:
    """A hub on a free port of the loopback interface."""
    hub = OcmHub(lifetime)
    listening = await serve(hub.application, "127.0.0.1", 0, server_context(serving_material(hub.authority)))
    hub.port = listening.port
    controllers = asyncio.create_task(hub.run(), name="ocm hub")
    try:
        yield hub
    finally:
        controllers.cancel()
        await asyncio.wait((controllers,))
        await listening.close()
        if not controllers.cancelled():
            controllers.result()


def _decoded(document: Any) -> dict[str, Any]:
    decoded: dict[str, Any] = msgspec.json.decode(document) if isinstance(document, bytes) else _copied(document)
    return decoded


def _copied(document: Any) -> dict[str, Any]:
    copied: dict[str, Any] = copy.deepcopy(dict(document))
    return copied
