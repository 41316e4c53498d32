"""Who may use a hollow cluster: its administrators, by certificate or token, and others as far as its roles let them.

Others come with certificates of its CA, or with the tokens of its ServiceAccounts.
"""

import secrets
from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web

from machinery.apiserver.access import ANONYMOUS, OPEN_PATHS, Attributes, Authenticator, Authorizer, Decision
from machinery.apiserver.authz.rbac_resources import ROLES_AND_BINDINGS
from machinery.apiserver.authz.role_index import HeldRules, RoleIndex
from machinery.apiserver.authz.rules import EVERYTHING
from machinery.apiserver.storage import Actor, Selection, Storage
from machinery.errors import UnauthorizedError
from machinery.identity import AUTHENTICATED_GROUP, OPERATOR_GROUP
from machinery.pki import parse_certificate
from machinery.runtime.tls import peer_certificate

ADMINISTRATOR = Actor("kubernetes-admin", (OPERATOR_GROUP, "system:authenticated"))
SELF_REVIEWS = ("selfsubjectaccessreviews", "selfsubjectrulesreviews", "selfsubjectreviews")
"""Open by the role system:basic-user of any cluster."""
DISCOVERY = ("/api", "/apis", "/openapi")
_SCHEME = "bearer "

Identify = Callable[[str], Awaitable[Actor | None]]
"""Whose bearer token this is; None: nobody's who is known. Raises UnauthorizedError for one that is not good any more."""
Tell = Callable[[Actor, Attributes, Decision], None]
"""What was asked, by whom, and what came of it."""


class Identities(Authenticator):
    """Whom a client certificate of the cluster's CA names; a bearer token is the administrator's, or a ServiceAccount's."""

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
    """Administrators may do everything, the others what roles give them; whoever asks reads what is open on any cluster."""

    def __init__(self, storage: Storage, tell: Tell) -> None:
        self._storage = storage
        self._tell = tell

    async def authorize(self, actor: Actor, attributes: Attributes) -> Decision:
        decision = await self._decide(actor, attributes)
        self._tell(actor, attributes, decision)
        return decision

    async def rules(self, actor: Actor, namespace: str) -> HeldRules:
        """All that the actor holds there."""
        held = (await self._index()).held(actor, namespace)
        return HeldRules((*held.rules, *EVERYTHING), ()) if OPERATOR_GROUP in actor.groups else held

    async def _decide(self, actor: Actor, attributes: Attributes) -> Decision:
        if OPERATOR_GROUP in actor.groups or _is_open(actor, attributes):
            return Decision(allowed=True)
        return (await self._index()).decide(actor, attributes)

    async def _index(self) -> RoleIndex:
        """The roles as they are now: few are asked, and a hollow cluster has few roles."""
        index = RoleIndex()
        for resource in ROLES_AND_BINDINGS:
            for stored in (await self._storage.list(resource.key, Selection())).items:
                index.put(resource.name, stored.key, msgspec.json.decode(stored.document))
        return index


def _is_open(actor: Actor, asked: Attributes) -> bool:
    """Health and version, to anybody; what the cluster serves and what a user may do, to each user that is known."""
    if asked.resource in SELF_REVIEWS and asked.verb == "create":
        return AUTHENTICATED_GROUP in actor.groups
    known = (*OPEN_PATHS, *(DISCOVERY if AUTHENTICATED_GROUP in actor.groups else ()))
    bare = asked.verb == "get" and not asked.resource
    return bare and any(asked.path == each or asked.path.startswith(f"{each}/") for each in known)
