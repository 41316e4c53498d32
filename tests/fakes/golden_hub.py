"""What stood behind the recorded server, on the hub's own objects: services on SQLite, and a signer."""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from hub.access.rolebook import RoleBook
from hub.apiserver.credentials import CredentialStorage, HubAddress
from hub.apiserver.door import namespaces_of
from hub.apiserver.events import EventStorage
from hub.apiserver.feed import ChangeFeed
from hub.apiserver.groups import groups_of, with_others
from hub.apiserver.leases import LeaseStorage
from hub.apiserver.storage import ServiceStorage
from hub.domain import document as doc
from hub.domain import namespace as rules
from hub.domain.certificate import IssuedCertificate, Lifetimes, Profile
from hub.domain.roles import Groups
from hub.ports import Issuer
from hub.services import namespaces
from hub.services.roles import reconcile
from machinery.apiserver.access import Authenticator
from machinery.apiserver.escalation import rbac_storage
from machinery.apiserver.filters import Filters
from machinery.apiserver.health import HealthCheck
from machinery.apiserver.impersonation import Impersonation
from machinery.apiserver.kinds.certificates import CERTIFICATE_SIGNING_REQUEST
from machinery.apiserver.kinds.core import NAMESPACE
from machinery.apiserver.kinds.rbac import CLUSTER_ROLE, CLUSTER_ROLE_BINDING
from machinery.apiserver.rbac_authorizer import RbacAuthorizer
from machinery.apiserver.resource import Resource
from machinery.apiserver.server import ApiServer
from machinery.apiserver.serving import Listening, serve
from machinery.apiserver.storage import Actor, Document, Key, Selection
from machinery.clock import SystemClock
from machinery.identity import HubId
from machinery.product import GROUP_SUFFIX
from tests.fakes.databases import sqlite_database
from tests.fakes.golden_world import (
    ADMIN,
    CLUSTERS,
    LIST_OF_CLUSTERS,
    LIST_OF_REQUESTS,
    MADE_BY_REPLAY,
    RECORDED_ROLES,
    TABLE_OF_NAMESPACES,
    TOKEN_REVIEW,
    VERSION,
    TinySigner,
    bearer_tokens,
    permissions,
)
from tests.golden.replay import World, exchanges, recorded_objects

MADE_BY_NAMESPACE_CASE = "gold-ns"
ADDRESS = HubAddress(HubId("golden"), "https://hub.example.org:6443", "hub.example.org:8443")


class NoIssuer(Issuer):
    """The recording has no bootstrap credentials."""

    def issue(self, profile: Profile, serial: Any, now: Any) -> IssuedCertificate:
        raise NotImplementedError

    @property
    def trust_bundle(self) -> bytes:
        return b""


class HubWorld(World):
    """The recorded world over the hub's services. Close it in the task that started it."""

    def __init__(self, folder: Path, authenticator: Authenticator | None = None) -> None:
        self._folder = folder
        self._authenticator = authenticator or bearer_tokens()
        self._clock = SystemClock()
        self._signer = TinySigner()
        self._stack = AsyncExitStack()
        self._listening: Listening | None = None
        self._storage: ServiceStorage | None = None

    @property
    def url(self) -> str:
        assert self._listening is not None
        return f"http://127.0.0.1:{self._listening.port}"

    async def start(self) -> None:
        store = await self._stack.enter_async_context(sqlite_database(self._folder).opened(None))
        feed = ChangeFeed(store)
        following = asyncio.create_task(feed.run(), name="feed")
        self._stack.callback(following.cancel)
        self._storage = objects = ServiceStorage(store, feed, GROUP_SUFFIX)
        await store.run(namespaces.ensure_standing)
        await store.run(reconcile, Groups())
        await self._seed(objects)
        await store.run(lambda tx: tx.changes.compact(tx.now + timedelta(days=1)))
        credentials = CredentialStorage(store, NoIssuer(), ADDRESS, Lifetimes(), f"hub.{GROUP_SUFFIX}/v1alpha1")
        roles = RoleBook(store, self._clock)
        await roles.load()
        authorizer = RbacAuthorizer(roles)
        following = asyncio.create_task(roles.run(), name="roles")
        self._stack.callback(following.cancel)
        server = ApiServer(
            with_others(
                groups_of(
                    store,
                    GROUP_SUFFIX,
                    credentials,
                    LeaseStorage(store, feed, objects, self._clock),
                    EventStorage(store, feed, GROUP_SUFFIX, self._clock),
                ),
                TOKEN_REVIEW,
                *permissions(rbac_storage(objects, authorizer, roles), authorizer),
            ),
            objects,
            authenticator=self._authenticator,
            authorizer=authorizer,
            filters=Filters(impersonation=(Impersonation(authorizer),)),
            clock=self._clock,
            version=VERSION,
            checks=(HealthCheck("etcd", store.check, ("healthz", "livez")),),
            namespaces=namespaces_of(store),
        )
        self._listening = await serve(server.application(), "127.0.0.1", 0)
        self._stack.push_async_callback(self._listening.close)

    async def close(self) -> None:
        await self._stack.aclose()

    async def settle(self) -> None:
        """Signs what is approved."""
        assert self._storage is not None
        resource = CERTIFICATE_SIGNING_REQUEST.key
        for stored in (await self._storage.list(resource, Selection())).items:
            await self._storage.update(resource, stored.key, lambda old: self._signer.issued(old, self._clock.now()), ADMIN)

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

    def decided(old: Document) -> Document:
        return {**old, "status": document["status"]}

    await storage.update(resource.key, _key(document), decided, ADMIN)


def _key(document: Mapping[str, Any]) -> Key:
    return Key("", document["metadata"]["name"])


def _complete(resource: Resource, document: Mapping[str, Any]) -> dict[str, Any]:
    complete = {"apiVersion": resource.api_version(), "kind": resource.kind, **document}
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(complete))
    return plain
