"""Who asks and whether it may: the two ports that an API server asks before it looks at anything."""

from dataclasses import dataclass
from typing import Protocol

from aiohttp import web

from machinery.apiserver.storage import Actor
from machinery.errors import DenialCause

ANONYMOUS = Actor("system:anonymous", ("system:unauthenticated",))
OPEN_PATHS = frozenset(("/healthz", "/livez", "/readyz", "/version"))


@dataclass(frozen=True, slots=True)
class Attributes:
    """What is asked. Without a `resource` it is about the bare `path`. Verbs are lower case, as Kubernetes has them."""

    verb: str
    path: str
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    selected_name: str = ""
    """Of a list or watch whose field selector leaves one name: that name, as Kubernetes' authorizers see it."""
    label_selector: str = ""
    """Of a list, watch or deletecollection: the labels that it selects by, as they were asked for."""


@dataclass(frozen=True, slots=True)
class Decision:
    """`reason` is told to the asker when it is refused, and in a review either way."""

    allowed: bool
    reason: str = ""
    verdict: DenialCause | None = None
    """The same for machines, where it is about the asker."""


class Authenticator(Protocol):
    """Establishes who asks."""

    async def authenticate(self, request: web.Request) -> Actor:
        """The asker; ANONYMOUS when no credential is shown. Raises UnauthorizedError for a credential that is not good."""


class Authorizer(Protocol):
    """Decides what an asker may."""

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
    """The verified client certificate in DER; None when the client showed none or the connection is not TLS."""
    transport = request.transport
    connection = transport.get_extra_info("ssl_object") if transport is not None else None
    certificate: bytes | None = connection.getpeercert(binary_form=True) if connection is not None else None
    return certificate or None
