"""Certificates, authentication, authorization and the token issuer of a hollow cluster."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from ipaddress import ip_address

from aiohttp import web

from hollow import kinds
from machinery import pki
from machinery.apiserver.access import OPEN_PATHS, Attributes, Authorizer, Decision, peer_certificate
from machinery.apiserver.authn.chain import Identity, RequestAuthenticator, TokenAuthenticator
from machinery.apiserver.authz.rbac import EVERYTHING, HeldRules, RoleIndex
from machinery.apiserver.http.filters import Incoming
from machinery.apiserver.kinds.core import SERVICE_ACCOUNT
from machinery.apiserver.kinds.rbac import ROLES_AND_BINDINGS
from machinery.apiserver.kinds.tokens import Account, ServiceAccountTokenIssuer, ServiceAccountTokens, service_account
from machinery.apiserver.resource import ApiGroup
from machinery.apiserver.server import Page
from machinery.apiserver.storage import Actor, Storage
from machinery.identity import AUTHENTICATED_GROUP, OPERATOR_GROUP, CertificateSubject
from machinery.meta.objects import Query
from machinery.runtime.clock import Clock

LIFETIME = timedelta(days=365)
BACKDATED = timedelta(hours=48)
_ADMINISTRATOR = CertificateSubject(common_name="kubernetes-admin", organizations=frozenset((OPERATOR_GROUP,)))
_SERVER = CertificateSubject(common_name="kube-apiserver")
_HOSTS = ("127.0.0.1", "localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")


def is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


class ClusterAuthority:
    """The CA of the cluster `name`. Each instance creates a new key and a new certificate."""

    def __init__(self, name: str, now: datetime) -> None:
        now = now.replace(microsecond=0)  # times in certificates are whole seconds
        self.key = pki.generate_key()
        self._not_before = now - BACKDATED
        self._not_after = now + LIFETIME
        self._authority: pki.CertificateAuthority = pki.create_authority(
            CertificateSubject(common_name=f"hollow {name} CA"),
            self.key,
            pki.random_serial(),
            self._not_before,
            self._not_after,
        )

    @property
    def certificate(self) -> bytes:
        """The certificate of the CA (PEM)."""
        return self._authority.certificate

    def serving(self, *hosts: str) -> tuple[bytes, bytes]:
        """Return certificate and key (PEM) of the API server for `hosts` (addresses, names) and for the names that pods use."""
        every = dict.fromkeys((*_HOSTS, *hosts))
        return self._issue(
            _SERVER,
            pki.Usage.SERVER,
            dns_names=tuple(host for host in every if not is_address(host)),
            ip_addresses=tuple(host for host in every if is_address(host)),
        )

    def administrator(self) -> tuple[bytes, bytes]:
        """Return client certificate and key (PEM) of the administrator."""
        return self._issue(_ADMINISTRATOR, pki.Usage.CLIENT)

    def _issue(self, subject: CertificateSubject, usage: pki.Usage, **names: tuple[str, ...]) -> tuple[bytes, bytes]:
        key, serial = pki.generate_key(), pki.random_serial()
        plan = pki.Plan(subject, pki.public_key_of(key), serial, self._not_before, self._not_after, usage=usage, **names)
        return self._authority.sign(plan), key


ADMINISTRATOR = Actor("kubernetes-admin", (OPERATOR_GROUP, "system:authenticated"))
SELF_REVIEWS = ("selfsubjectaccessreviews", "selfsubjectrulesreviews", "selfsubjectreviews")
"""Resources that the role system:basic-user allows. Every cluster has this role."""
DISCOVERY = ("/api", "/apis", "/openapi")
ISSUER_PATHS = ("/.well-known", "/openid")
OnDecision = Callable[[Actor, Attributes, Decision], None]
"""Called after each authorization with user, request and decision."""


class CertificateUsers(RequestAuthenticator):
    async def identify(self, request: web.Request) -> Identity | None:
        certificate = peer_certificate(request)
        if certificate is None:
            return None
        subject = pki.parse_certificate(certificate).subject
        return Identity(Actor(subject.common_name, tuple(sorted(subject.organizations))))


class AdministratorToken(TokenAuthenticator):
    def __init__(self, token: str) -> None:
        self._expected = token.encode()

    async def identify(self, token: str, audiences: Sequence[str]) -> Identity | None:
        del audiences
        return Identity(ADMINISTRATOR) if secrets.compare_digest(token.encode(), self._expected) else None


class ByRoles(Authorizer):
    """Authorizes by RBAC. Administrators may do everything. As in every cluster, some paths are open to everybody."""

    def __init__(self, storage: Storage, on_decision: OnDecision = lambda _actor, _attributes, _decision: None) -> None:
        self._storage = storage
        self._on_decision = on_decision

    async def authorize(self, actor: Actor, attributes: Attributes) -> Decision:
        if OPERATOR_GROUP in actor.groups or _is_open(actor, attributes):
            decision = Decision(allowed=True)
        else:
            decision = (await self._index()).decide(actor, attributes)
        self._on_decision(actor, attributes, decision)
        return decision

    async def rules(self, actor: Actor, namespace: str) -> HeldRules:
        held = (await self._index()).held(actor, namespace)
        return HeldRules((*held.rules, *EVERYTHING), ()) if OPERATOR_GROUP in actor.groups else held

    async def _index(self) -> RoleIndex:
        """Return the current roles. Each request reads them again; this is cheap, because a hollow cluster has few roles."""
        index = RoleIndex()
        for resource in ROLES_AND_BINDINGS:
            for stored in (await self._storage.list(resource.key, Query())).items:
                index.put(resource.name, stored.key, stored.document)
        return index


def _is_open(actor: Actor, attributes: Attributes) -> bool:
    """Whether a request needs no role: health, version and token issuer for everybody; discovery and self reviews for users."""
    is_known = AUTHENTICATED_GROUP in actor.groups
    if attributes.resource:
        return is_known and attributes.resource in SELF_REVIEWS and attributes.verb == "create"
    paths = (*OPEN_PATHS, *ISSUER_PATHS, *(DISCOVERY if is_known else ()))
    is_below = any(attributes.path == path or attributes.path.startswith(f"{path}/") for path in paths)
    return attributes.verb == "get" and is_below


AUDIENCE = "https://kubernetes.default.svc.cluster.local"
CONFIGURATION_PAGE, KEYS_PAGE = "/.well-known/openid-configuration", "/openid/v1/jwks"


class TokenIssuer(TokenAuthenticator):
    """The token issuer of one cluster. The name of the issuer is the URL of the cluster, which is known after the start.

    `identify` accepts a token only while the token's ServiceAccount exists.
    """

    def __init__(self, url: Callable[[], str], storage: Storage, clock: Clock) -> None:
        self._url = url
        self._keys = pki.TokenKeys([pki.generate_key()])
        self._storage = storage
        self._clock = clock

    async def identify(self, token: str, audiences: Sequence[str]) -> Identity | None:
        issuer = ServiceAccountTokenIssuer(self._url(), (AUDIENCE,), self._keys)
        return await ServiceAccountTokens(issuer, self._storage, self._clock).identify(token, audiences)

    def groups(self) -> tuple[ApiGroup, ...]:
        """Return the cluster's API groups. Their ServiceAccounts have the subresource `token`."""
        resource = service_account(_Issuer("", (AUDIENCE,), self._keys, self._url), self._storage)
        own = SERVICE_ACCOUNT.key
        return tuple(
            replace(group, resources=tuple(resource if each.key == own else each for each in group.resources))
            for group in kinds.GROUPS
        )

    def pages(self) -> Mapping[str, Page]:
        async def discovery(_incoming: Incoming) -> web.Response:
            configuration = {
                "issuer": self._url(),
                "jwks_uri": self._url() + KEYS_PAGE,
                "response_types_supported": ["id_token"],
                "subject_types_supported": ["public"],
                "id_token_signing_alg_values_supported": ["ES256"],
            }
            return web.json_response(configuration)

        async def keys(_incoming: Incoming) -> web.Response:
            return web.json_response(self._keys.key_set())

        return {CONFIGURATION_PAGE: discovery, KEYS_PAGE: keys}


@dataclass(frozen=True, slots=True)
class _Issuer(ServiceAccountTokenIssuer):
    """An issuer whose name is the cluster's URL at the time of the request."""

    url: Callable[[], str]

    def token(self, account: Account, audiences: Sequence[str], begin: datetime, end: datetime) -> str:
        return ServiceAccountTokenIssuer(self.url(), self.audiences, self.keys).token(account, audiences, begin, end)
