"""Who may use a hollow cluster: its administrators, by certificate or token. Others are known, and may see its health."""

import secrets

from aiohttp import web

from machinery.apiserver.access import ANONYMOUS, OPEN_PATHS, Attributes, Authenticator, Authorizer, Decision
from machinery.apiserver.storage import Actor
from machinery.errors import UnauthorizedError
from machinery.identity import AUTHENTICATED_GROUP, OPERATOR_GROUP
from machinery.pki import parse_certificate
from machinery.tls import peer_certificate

ADMINISTRATOR = Actor("kubernetes-admin", (OPERATOR_GROUP, "system:authenticated"))
_SCHEME = "bearer "


class Administrators(Authenticator):
    """Whom a client certificate of the cluster's CA names, as on any cluster; the one bearer token is the administrator's."""

    def __init__(self, token: str) -> None:
        self._expected = token.encode()

    async def authenticate(self, request: web.Request) -> Actor:
        shown = peer_certificate(request.transport)
        if shown is not None:
            subject = parse_certificate(shown).subject
            return Actor(subject.common_name, (*sorted(subject.organizations), AUTHENTICATED_GROUP))
        header = request.headers.get("Authorization", "")
        if not header:
            return ANONYMOUS
        token = header[len(_SCHEME) :].strip().encode() if header.lower().startswith(_SCHEME) else b""
        if not secrets.compare_digest(token, self._expected):
            raise UnauthorizedError("Unauthorized")
        return ADMINISTRATOR


class OnlyAdministrators(Authorizer):
    """Administrators may do everything, the others read what is open on any cluster."""

    async def authorize(self, actor: Actor, attributes: Attributes) -> Decision:
        if OPERATOR_GROUP in actor.groups or (attributes.verb == "get" and _is_open(attributes.path)):
            return Decision(allowed=True)
        return Decision(allowed=False)


def _is_open(path: str) -> bool:
    return any(path == known or path.startswith(f"{known}/") for known in OPEN_PATHS)
