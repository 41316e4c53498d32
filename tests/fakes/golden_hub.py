"""What stood behind the recorded server, on a whole hub: its users, its objects, and a CA."""

import base64
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from hub.api import namespaces as rules
from hub.api.meta import document as doc
from hub.composition.core import HubCore
from hub.https_door.callers.authentication import ExternalAuthenticator
from hub.https_door.storage.storage import ServiceStorage
from hub.registry.managedclusters.resource import MANAGED_CLUSTER
from hub.serve import EXTENSIONS
from hub.store import SqlStore
from machinery.apiserver.access import Authenticator
from machinery.apiserver.authn.chain import Identity, RequestAuthenticator, TokenAuthenticator
from machinery.apiserver.http.listener import Listening, serve
from machinery.apiserver.kinds.certificates import CERTIFICATE_SIGNING_REQUEST
from machinery.apiserver.kinds.core import NAMESPACE
from machinery.apiserver.kinds.rbac import CLUSTER_ROLE, CLUSTER_ROLE_BINDING, RBAC
from machinery.apiserver.resource import Resource
from machinery.apiserver.storage import Actor
from machinery.meta.objects import Document, Key, Query
from machinery.pki import Plan, parse_request, random_serial
from machinery.product import GROUP_SUFFIX
from machinery.runtime.clock import SystemClock
from tests.checks import present
from tests.fakes.authority import OtherCA
from tests.fakes.identity import EveryoneIsAdmin
from tests.fakes.inprocess_hub import hub_in_process
from tests.golden.replay import TOKENS, World, exchanges, recorded_objects

ADMIN = Actor("admin", ("system:masters", "system:authenticated"), "admin")
CLUSTERS = MANAGED_CLUSTER.named()
LIST_OF_CLUSTERS, LIST_OF_REQUESTS, TABLE_OF_NAMESPACES = 68, 170, 174
RECORDED_ROLES = (
    {"metadata": {"name": "well-known"}, "rules": [{"verbs": ["get"], "nonResourceURLs": ["/.well-known", "/.well-known/*"]}]},
    {
        "metadata": {"name": "well-known"},
        "roleRef": {"apiGroup": RBAC.name, "kind": "ClusterRole", "name": "well-known"},
        "subjects": [{"apiGroup": RBAC.name, "kind": "Group", "name": "system:authenticated"}],
    },
)  # what the recorded server allowed beside the defaults of the hub
MADE_BY_REPLAY = ("g", "x")
MADE_BY_NAMESPACE_CASE = "gold-ns"


class RecordedTokens(TokenAuthenticator):
    """The admin's, as it is sent and as the recorded review names it."""

    async def identify(self, token: str, audiences: Sequence[str]) -> Identity | None:
        return Identity(ADMIN, audiences=tuple(audiences)) if token in (TOKENS["admin"], "admintoken") else None


class RecordedUsers(ExternalAuthenticator, RequestAuthenticator):
    """The recorded admin, by its token or, where `everyone` is the admin, by nothing: kubectl sends no token without TLS."""

    def __init__(self, *, everyone: bool) -> None:
        self.authenticator, self.tokens = self, RecordedTokens()
        self._everyone = everyone

    async def identify(self, _request: web.Request) -> Identity | None:
        return Identity(ADMIN) if self._everyone else None


class HubWorld(World):
    """The recorded world on a hub, in plain HTTP. Close it in the task that started it."""

    def __init__(self, folder: Path, authenticator: Authenticator | None = None) -> None:
        self._folder = folder
        self._everyone = isinstance(authenticator, EveryoneIsAdmin)
        self._clock = SystemClock()
        self._authority = OtherCA("test-ca").authority
        self._stack = AsyncExitStack()
        self._listening: Listening | None = None
        self._storage: ServiceStorage | None = None
        self._store: SqlStore | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{present(self._listening).port}"

    async def start(self) -> None:
        hub = await self._stack.enter_async_context(hub_in_process(self._folder, extensions=(*EXTENSIONS, self._install)))
        self._store, door = hub.core.resources.store, hub.operators.door
        self._storage = ServiceStorage(self._store, door.feed, GROUP_SUFFIX)
        await self._seed(self._storage)
        await self.forget()
        self._listening = await serve(door.server.application(), "127.0.0.1", 0)
        self._stack.push_async_callback(self._listening.close)

    @property
    def storage(self) -> ServiceStorage:
        return present(self._storage)

    @property
    def connections(self) -> int:
        """How many are open."""
        return 0 if self._listening is None else len(self._listening.connections)

    async def forget(self) -> None:
        """Compacts all that has happened."""
        await present(self._store).run(lambda tx: tx.changes.compact(tx.now + timedelta(days=1)))

    async def _install(self, core: HubCore) -> None:
        core.authenticators.append(RecordedUsers(everyone=self._everyone))

    async def close(self) -> None:
        await self._stack.aclose()

    async def settle(self) -> None:
        """Signs what is approved."""
        resource = CERTIFICATE_SIGNING_REQUEST.key
        for stored in (await self.storage.list(resource, Query())).items:
            await self.storage.update(resource, stored.key, self._issued, ADMIN)

    def _issued(self, document: Document) -> Document:
        """The request with a certificate, if it is approved and has none."""
        status = document.get("status", {})
        approved = any(condition["type"] == "Approved" for condition in status.get("conditions", ()))
        if not approved or status.get("certificate"):
            return document
        facts, now = parse_request(base64.b64decode(document["spec"]["request"])), self._clock.now()
        signed = self._authority.sign(Plan(facts.subject, facts.public_key, random_serial(), now, now + timedelta(days=1)))
        return {**document, "status": {**status, "certificate": base64.b64encode(signed).decode()}}

    async def _seed(self, storage: ServiceStorage) -> None:
        for row in exchanges()[TABLE_OF_NAMESPACES].response["body"]["rows"]:
            await _seed_namespace(storage, row["object"]["metadata"])
        for cluster in recorded_objects(LIST_OF_CLUSTERS):
            if not cluster["metadata"]["name"].startswith(MADE_BY_REPLAY):
                await _seed_cluster(storage, _complete(CLUSTERS, cluster))
        for request in recorded_objects(LIST_OF_REQUESTS):
            if not request["metadata"]["name"].startswith(MADE_BY_REPLAY):
                await _seed_request(storage, request)
        for role in RECORDED_ROLES:
            resource = CLUSTER_ROLE_BINDING if "roleRef" in role else CLUSTER_ROLE
            await storage.create(resource.key, Key("", "well-known"), _complete(resource, role), ADMIN)


async def _seed_namespace(storage: ServiceStorage, metadata: Mapping[str, Any]) -> None:
    name = metadata["name"]
    document = doc.with_metadata(rules.namespace(name, metadata.get("labels")), managedFields=metadata["managedFields"])
    if name not in (*rules.STANDING, MADE_BY_NAMESPACE_CASE):
        await storage.create(NAMESPACE.key, Key("", name), document, ADMIN)


async def _seed_cluster(storage: ServiceStorage, document: dict[str, Any]) -> None:
    """The cluster, changed as often as its recorded generation says."""
    generation, spec = document["metadata"]["generation"], document["spec"]

    def with_lease(seconds: int) -> dict[str, Any]:
        return {**document, "spec": {**spec, "leaseDurationSeconds": seconds}}

    lease = spec["leaseDurationSeconds"]
    await storage.create(CLUSTERS.key, _key(document), with_lease(lease + generation - 1), ADMIN)
    for step in range(generation - 2, -1, -1):

        def change(old: Document, step: int = step) -> Document:
            return {**with_lease(lease + step), "metadata": old["metadata"]}

        await storage.update(CLUSTERS.key, _key(document), change, ADMIN)


async def _seed_request(storage: ServiceStorage, request: Mapping[str, Any]) -> None:
    """As its requester made it, then as it was decided and issued."""
    resource, document = CERTIFICATE_SIGNING_REQUEST, _complete(CERTIFICATE_SIGNING_REQUEST, request)
    spec = document["spec"]
    requester = Actor(spec["username"], tuple(spec.get("groups", ())), spec.get("uid", ""))
    await storage.create(resource.key, _key(document), document, requester)
    await storage.update(resource.key, _key(document), lambda old: {**old, "status": document["status"]}, ADMIN)


def _key(document: Mapping[str, Any]) -> Key:
    return Key("", document["metadata"]["name"])


def _complete(resource: Resource, document: Mapping[str, Any]) -> dict[str, Any]:
    complete = {"apiVersion": resource.api_version(), "kind": resource.kind, **document}
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(complete))
    return plain
