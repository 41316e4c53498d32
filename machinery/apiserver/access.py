"""Ports for authentication and authorization of API requests."""

from dataclasses import dataclass
from typing import Protocol

from aiohttp import web

from machinery.apiserver.storage import Actor
from machinery.errors import DenialCause

ANONYMOUS = Actor("system:anonymous", ("system:unauthenticated",))
OPEN_PATHS = frozenset(("/healthz", "/livez", "/readyz", "/version"))


@dataclass(frozen=True, slots=True)
class Attributes:
    """Authorization attributes of a request. Without a `resource` they describe the path. Verbs are lower case."""

    verb: str
    path: str
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    selected_name: str = ""
    """Name to which the field selector of a list or watch restricts it, as Kubernetes' authorizers see it."""
    label_selector: str = ""
    """Label selector of a list, watch or deletecollection, as requested."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Result of an authorization. The response includes `reason` when refused, a review includes it in both cases."""

    allowed: bool
    reason: str = ""
    verdict: DenialCause | None = None
    """Machine-readable reason, if it concerns the caller itself."""


class Authenticator(Protocol):
    """Determines the user of a request."""

    async def authenticate(self, request: web.Request) -> Actor:
        """The user; ANONYMOUS without a credential. Raises UnauthorizedError for an invalid credential."""


class Authorizer(Protocol):
    """Decides whether a user may make a request."""

    async def authorize(self, actor: Actor, attributes: Attributes) -> Decision: ...


class AllowEverything(Authorizer):
    """For hollow clusters and tests."""

    async def authorize(self, actor: Actor, attributes: Attributes) -> Decision:  # noqa: ARG002 - the port's signature
        return Decision(allowed=True)


class EveryoneIsAdmin(Authenticator):
    """For hollow clusters without credentials."""

    async def authenticate(self, request: web.Request) -> Actor:  # noqa: ARG002 - the port's signature
        return Actor("admin", ("system:masters", "system:authenticated"), "admin")


def peer_certificate(request: web.Request) -> bytes | None:
    """DER of the verified client certificate; None when the client sent none or the connection is not TLS."""
    transport = request.transport
    connection = transport.get_extra_info("ssl_object") if transport is not None else None
    certificate: bytes | None = connection.getpeercert(binary_form=True) if connection is not None else None
    return certificate or None
