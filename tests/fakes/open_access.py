"""Authentication and authorization that let everyone in."""

from aiohttp import web

from machinery.apiserver.access import Attributes, Authenticator, Authorizer, Decision
from machinery.apiserver.storage import Actor


class AllowEverything(Authorizer):
    """Allows every request."""

    async def authorize(self, actor: Actor, attributes: Attributes) -> Decision:  # noqa: ARG002 - the port's signature
        return Decision(allowed=True)


class EveryoneIsAdmin(Authenticator):
    """Takes every request for an administrator's."""

    async def authenticate(self, request: web.Request) -> Actor:  # noqa: ARG002 - the port's signature
        return Actor("admin", ("system:masters", "system:authenticated"), "admin")


async def every_namespace(_name: str) -> bool:
    """Every namespace is there."""
    return True
