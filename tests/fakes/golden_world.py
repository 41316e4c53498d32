"""What stood behind the recorded server, on MemoryStorage: its clusters, requests, namespaces, and a signer."""

import asyncio
import base64
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from hub.apiserver.groups import with_others
from hub.apiserver.kinds.addon import managed_cluster_add_on
from hub.apiserver.kinds.managedcluster import managed_cluster
from hub.domain.roles import CLUSTER_ROLE_BINDINGS, Groups, cluster_roles, path_rule
from machinery.apiserver.access import Authenticator
from machinery.apiserver.authentication import BearerTokens, Chain, Identity, TokenAuthenticator
from machinery.apiserver.authentication.kinds import token_review
from machinery.apiserver.escalation import rbac_storage
from machinery.apiserver.filters import Filters
from machinery.apiserver.health import HealthCheck
from machinery.apiserver.impersonation import Impersonation
from machinery.apiserver.kinds.certificates import CERTIFICATE_SIGNING_REQUEST, CERTIFICATES
from machinery.apiserver.kinds.coordination import COORDINATION
from machinery.apiserver.kinds.core import CONFIG_MAP, NAMESPACE, NODE, SERVICE_ACCOUNT
from machinery.apiserver.kinds.events import EVENT, EVENTS
from machinery.apiserver.kinds.rbac import CLUSTER_ROLE, CLUSTER_ROLE_BINDING, RBAC, ROLES_AND_BINDINGS
from machinery.apiserver.kinds.reviews import Reviewer, access_reviews
from machinery.apiserver.kinds.secrets import SECRET
from machinery.apiserver.memory import MemoryStorage
from machinery.apiserver.rbac_authorizer import RbacAuthorizer, WatchedRoles
from machinery.apiserver.resource import Group, Resource, selectable_fields
from machinery.apiserver.server import ApiServer
from machinery.apiserver.serving import Listening, serve
from machinery.apiserver.storage import Actor, Document, Key, Selection, Storage
from machinery.clock import SystemClock
from machinery.product import GROUP_SUFFIX
from tests.golden.replay import TOKENS, World, exchanges, recorded_objects

ADMIN = Actor("admin", ("system:masters", "system:authenticated"), "admin")


class RecordedTokens(TokenAuthenticator):
    """The admin's, as it is sent and as the recorded review names it."""

    async def identify(self, token: str, audiences: Sequence[str]) -> Identity | None:
        return Identity(ADMIN, audiences=tuple(audiences)) if token in (TOKENS["admin"], "admintoken") else None


def bearer_tokens() -> Authenticator:
    """The admin of the recording, anonymous, and refusal."""
    return Chain(BearerTokens(RecordedTokens()))


CLUSTERS = managed_cluster()
TOKEN_REVIEW = token_review(RecordedTokens(), ("https://kubernetes.default.svc",))
GROUPS = (
    Group("", (NAMESPACE, CONFIG_MAP, NODE, SERVICE_ACCOUNT, SECRET, EVENT)),
    EVENTS,
    COORDINATION,
    CERTIFICATES,
    Group(TOKEN_REVIEW.group, (TOKEN_REVIEW,)),
    Group(f"cluster.{GROUP_SUFFIX}", (CLUSTERS,)),
    Group(f"addon.{GROUP_SUFFIX}", (replace(managed_cluster_add_on(GROUP_SUFFIX), versions=()),)),
)
VERSION = {"major": "1", "minor": "36", "gitVersion": "v1.36.0+test", "platform": "linux/amd64"}
LIST_OF_CLUSTERS, LIST_OF_REQUESTS, TABLE_OF_NAMESPACES = 68, 170, 174
RECORDED_ROLES = (
    {"metadata": {"name": "well-known"}, "rules": [path_rule("/.well-known", "/.well-known/*")]},
    {
        "metadata": {"name": "well-known"},
        "roleRef": {"apiGroup": RBAC.name, "kind": "ClusterRole", "name": "well-known"},
        "subjects": [{"apiGroup": RBAC.name, "kind": "Group", "name": "system:authenticated"}],
    },
)
"""What the recorded server allowed beside the defaults of the hub."""
MADE_BY_REPLAY = ("g", "x")


def permissions(roles: Storage, reviewer: Reviewer) -> tuple[Resource, ...]:
    """Roles and bindings in this storage, and the reviews of access."""
    return (*(replace(resource, storage=roles) for resource in ROLES_AND_BINDINGS), *access_reviews(reviewer))


class TinySigner:
    """A CA that issues what was approved."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test-ca")])

    def sign(self, request: bytes, now: datetime) -> bytes:
        parsed = x509.load_pem_x509_csr(request)
        builder = x509.CertificateBuilder(
            self._name, parsed.subject, parsed.public_key(), x509.random_serial_number(), now, now + timedelta(days=1)
        )
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def issued(self, document: Document, now: datetime) -> Document:
        """The request with a certificate, if it is approved and has none."""
        status = document.get("status", {})
        approved = any(condition["type"] == "Approved" for condition in status.get("conditions", ()))
        if not approved or status.get("certificate"):
            return document
        certificate = self.sign(base64.b64decode(document["spec"]["request"]), now)
        return {**document, "status": {**status, "certificate": base64.b64encode(certificate).decode()}}


class MemoryWorld(World):
    """The recorded world in memory. `authenticator`: kubectl sends no token without TLS."""

    def __init__(self, authenticator: Authenticator | None = None) -> None:
        self._authenticator = authenticator or bearer_tokens()
        self.storage = MemoryStorage(selectable_fields(GROUPS))
        self._clock = SystemClock()
        self._signer = TinySigner()
        self._listening: Listening | None = None
        self._following: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        assert self._listening is not None
        return f"http://127.0.0.1:{self._listening.port}"

    @property
    def connections(self) -> int:
        """How many are open."""
        return 0 if self._listening is None else len(self._listening.connections)

    async def start(self) -> None:
        await self._seed()
        checks = (HealthCheck("etcd", self._well, ("healthz", "livez")),)
        roles = WatchedRoles(self.storage)
        authorizer = RbacAuthorizer(roles)
        self._following = asyncio.create_task(roles.run(), name="roles")
        for resource in ROLES_AND_BINDINGS:
            await roles.seen(resource.key, 0)
        server = ApiServer(
            with_others(GROUPS, *permissions(rbac_storage(self.storage, authorizer, roles), authorizer)),
            self.storage,
            authenticator=self._authenticator,
            authorizer=authorizer,
            filters=Filters(impersonation=(Impersonation(authorizer),)),
            clock=self._clock,
            version=VERSION,
            checks=checks,
        )
        self._listening = await serve(server.application(), "127.0.0.1", 0)

    async def close(self) -> None:
        if self._following is not None:
            self._following.cancel()
        if self._listening is not None:
            await self._listening.close()

    async def settle(self) -> None:
        """Signs what is approved."""
        requests = await self.storage.list(CERTIFICATE_SIGNING_REQUEST.key, Selection())
        for stored in requests.items:
            await self.storage.update(
                CERTIFICATE_SIGNING_REQUEST.key, stored.key, lambda old: self._signer.issued(old, self._clock.now()), ADMIN
            )

    async def _well(self) -> None:
        await self.storage.revision()

    async def _seed(self) -> None:
        rows = exchanges()[TABLE_OF_NAMESPACES].response["body"]["rows"]
        for row in rows:
            name = row["cells"][0]
            told = row["object"]["metadata"]
            kept = {"labels": told["labels"], "managedFields": told["managedFields"]}
            active = {"spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}}
            if name != "gold-ns":
                await self._store(NAMESPACE, {"metadata": {"name": name, **kept}, **active})
        for cluster in recorded_objects(LIST_OF_CLUSTERS):
            if not cluster["metadata"]["name"].startswith(MADE_BY_REPLAY):
                await self._store(CLUSTERS, cluster)
        for request in recorded_objects(LIST_OF_REQUESTS):
            if not request["metadata"]["name"].startswith(MADE_BY_REPLAY):
                await self._store(CERTIFICATE_SIGNING_REQUEST, request)
        for role in (*cluster_roles(Groups()), *CLUSTER_ROLE_BINDINGS, *RECORDED_ROLES):
            await self._store(CLUSTER_ROLE_BINDING if "roleRef" in role else CLUSTER_ROLE, role)
        self.storage.compact(await self.storage.revision())

    async def _store(self, resource: Resource, document: Mapping[str, Any]) -> None:
        complete = {"apiVersion": resource.api_version(), "kind": resource.kind, **document}
        plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(complete))
        await self.storage.create(resource.key, Key("", plain["metadata"]["name"]), plain, ADMIN)
