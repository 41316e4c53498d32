"""Certificates, authentication and authorization of a hollow cluster.

Administrators use a certificate or a token. Other users have certificates of its CA or tokens of its ServiceAccounts, and the
permissions of their RBAC roles.
"""

import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import ip_address

from aiohttp import web

from machinery.apiserver.access import ANONYMOUS, OPEN_PATHS, Attributes, Authenticator, Authorizer, Decision
from machinery.apiserver.authz.rbac import EVERYTHING, HeldRules, RoleIndex
from machinery.apiserver.kinds.rbac import ROLES_AND_BINDINGS
from machinery.apiserver.storage import Actor, Storage
from machinery.errors import UnauthorizedError
from machinery.identity import AUTHENTICATED_GROUP, OPERATOR_GROUP, CertificateSubject
from machinery.meta.objects import Query
from machinery.pki import (
    CertificateAuthority,
    Plan,
    Usage,
    create_authority,
    generate_key,
    parse_certificate,
    public_key_of,
    random_serial,
)
from machinery.runtime.tls import peer_certificate

LIFETIME = timedelta(days=365)
BACKDATED = timedelta(hours=48)
_ADMINISTRATOR = CertificateSubject(common_name="kubernetes-admin", organizations=frozenset((OPERATOR_GROUP,)))
_SERVER = CertificateSubject(common_name="kube-apiserver")
_HOSTS = ("127.0.0.1", "localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")


def is_address(host: str) -> bool:
    """Whether `host` is an IP address and not a name."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class CertificateWithKey:
    """A certificate and its key, both PEM."""

    certificate: bytes
    key: bytes

    def __repr__(self) -> str:
        return "CertificateWithKey(...)"


class ClusterAuthority:
    """The CA of the cluster `name`, new in every process."""

    def __init__(self, name: str, now: datetime) -> None:
        now = now.replace(microsecond=0)  # certificates have whole seconds
        self.key = generate_key()
        self._not_before = now - BACKDATED
        self._not_after = now + LIFETIME
        self._authority: CertificateAuthority = create_authority(
            CertificateSubject(common_name=f"hollow {name} CA"), self.key, random_serial(), self._not_before, self._not_after
        )

    @property
    def certificate(self) -> bytes:
        """PEM."""
        return self._authority.certificate

    def serving(self, *hosts: str) -> CertificateWithKey:
        """Serving certificate for `hosts`, addresses or names, and for the names that pods use."""
        told = dict.fromkeys((*_HOSTS, *hosts))
        return self._pair(
            _SERVER,
            Usage.SERVER,
            dns_names=tuple(host for host in told if not is_address(host)),
            ip_addresses=tuple(host for host in told if is_address(host)),
        )

    def administrator(self) -> CertificateWithKey:
        """Client certificate of the administrator."""
        return self._pair(_ADMINISTRATOR, Usage.CLIENT)

    def _pair(
        self, subject: CertificateSubject, usage: Usage, *, dns_names: tuple[str, ...] = (), ip_addresses: tuple[str, ...] = ()
    ) -> CertificateWithKey:
        key = generate_key()
        plan = Plan(
            subject=subject,
            public_key=public_key_of(key),
            serial=random_serial(),
            not_before=self._not_before,
            not_after=self._not_after,
            usage=usage,
            dns_names=dns_names,
            ip_addresses=ip_addresses,
        )
        return CertificateWithKey(self._authority.sign(plan), key)


ADMINISTRATOR = Actor("kubernetes-admin", (OPERATOR_GROUP, "system:authenticated"))
SELF_REVIEWS = ("selfsubjectaccessreviews", "selfsubjectrulesreviews", "selfsubjectreviews")
"""Allowed by the role system:basic-user of every cluster."""
DISCOVERY = ("/api", "/apis", "/openapi")
_SCHEME = "bearer "

Identify = Callable[[str], Awaitable[Actor | None]]
"""Returns the user of a bearer token; None: unknown token. Raises UnauthorizedError for one that is no longer valid."""
OnDecision = Callable[[Actor, Attributes, Decision], None]
"""Called with each authorization: user, request and decision."""


class Identities(Authenticator):
    """Authenticates client certificates of the cluster's CA, the administrator's token and ServiceAccount tokens."""

    def __init__(self, token: str, identify: Identify) -> None:
        self._expected = token.encode()
        self._identify = identify

    async def authenticate(self, request: web.Request) -> Actor:
        shown = peer_certificate(request.transport)
        if shown is not None:
            subject = parse_certificate(shown).subject
            return Actor(subject.common_name, (*sorted(subject.organizations), AUTHENTICATED_GROUP))
        header = request.headers.get("Authorization", "")
        if not header:
            return ANONYMOUS
        token = header[len(_SCHEME) :].strip() if header.lower().startswith(_SCHEME) else ""
        if secrets.compare_digest(token.encode(), self._expected):
            return ADMINISTRATOR
        known = await self._identify(token) if token else None
        if known is None:
            raise UnauthorizedError("Unauthorized")
        return known


class ByRoles(Authorizer):
    """Administrators may do everything, others what RBAC allows; some paths are open as in every cluster."""

    def __init__(self, storage: Storage, on_decision: OnDecision) -> None:
        self._storage = storage
        self._on_decision = on_decision

    async def authorize(self, actor: Actor, attributes: Attributes) -> Decision:
        decision = await self._decide(actor, attributes)
        self._on_decision(actor, attributes, decision)
        return decision

    async def rules(self, actor: Actor, namespace: str) -> HeldRules:
        """All rules of the actor in a namespace."""
        held = (await self._index()).held(actor, namespace)
        return HeldRules((*held.rules, *EVERYTHING), ()) if OPERATOR_GROUP in actor.groups else held

    async def _decide(self, actor: Actor, attributes: Attributes) -> Decision:
        if OPERATOR_GROUP in actor.groups or _is_open(actor, attributes):
            return Decision(allowed=True)
        return (await self._index()).decide(actor, attributes)

    async def _index(self) -> RoleIndex:
        """The current roles, read for each request: a hollow cluster has few roles and few such requests."""
        index = RoleIndex()
        for resource in ROLES_AND_BINDINGS:
            for stored in (await self._storage.list(resource.key, Query())).items:
                index.put(resource.name, stored.key, stored.document)
        return index


def _is_open(actor: Actor, asked: Attributes) -> bool:
    """Health and version for everyone; discovery and reviews of one's own permissions for authenticated users."""
    if asked.resource in SELF_REVIEWS and asked.verb == "create":
        return AUTHENTICATED_GROUP in actor.groups
    known = (*OPEN_PATHS, *(DISCOVERY if AUTHENTICATED_GROUP in actor.groups else ()))
    bare = asked.verb == "get" and not asked.resource
    return bare and any(asked.path == each or asked.path.startswith(f"{each}/") for each in known)
