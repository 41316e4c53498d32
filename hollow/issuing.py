"""Token issuer of a hollow cluster: issues ServiceAccount tokens and serves OpenID discovery and keys."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from aiohttp import web

from hollow import kinds
from machinery.apiserver.kinds.core import SERVICE_ACCOUNT
from machinery.apiserver.kinds.tokens import Account, Accounts, ServiceAccountTokenIssuer, ServiceAccountTokens, service_account
from machinery.apiserver.resource import ApiGroup
from machinery.apiserver.storage import Actor, Storage
from machinery.identity import AUTHENTICATED_GROUP
from machinery.pki import TokenKeys, generate_key
from machinery.runtime.clock import Clock

AUDIENCE = "https://kubernetes.default.svc.cluster.local"
DISCOVERY, KEYS = "/.well-known/openid-configuration", "/openid/v1/jwks"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class TokenIssuer:
    """The token issuer of one cluster; its name is the cluster's address, known once it listens."""

    def __init__(self, url: Callable[[], str]) -> None:
        self.url = url
        self.keys = TokenKeys([generate_key()])

    def rotate(self) -> None:
        """Issue with a new key from now on and stop publishing the old one."""
        self.keys = TokenKeys([generate_key()])

    def groups(self, storage: Storage) -> tuple[ApiGroup, ...]:
        """The cluster's API groups, whose ServiceAccounts have the subresource `token`."""
        resource = service_account(_Issuer("", (AUDIENCE,), self.keys, self), Accounts(storage))
        own = SERVICE_ACCOUNT.key
        return tuple(
            replace(group, resources=tuple(resource if each.key == own else each for each in group.resources))
            for group in kinds.GROUPS
        )

    def identified(self, storage: Storage, clock: Clock) -> Callable[[str], Awaitable[Actor | None]]:
        """Authenticator for tokens of this cluster, valid as long as their ServiceAccount exists."""

        async def identify(token: str) -> Actor | None:
            known = ServiceAccountTokens(
                ServiceAccountTokenIssuer(self.url(), (AUDIENCE,), self.keys), Accounts(storage), clock
            )
            found = await known.identify(token, ())
            return None if found is None else replace(found.actor, groups=(*found.actor.groups, AUTHENTICATED_GROUP))

        return identify

    def middleware(self) -> Any:
        """Serves discovery and keys without authentication."""

        @web.middleware
        async def act(request: web.Request, handler: Handler) -> web.StreamResponse:
            if request.path == DISCOVERY:
                return web.json_response(self._configuration())
            if request.path == KEYS:
                return web.json_response(self.keys.key_set())
            return await handler(request)

        return act

    def _configuration(self) -> dict[str, Any]:
        return {
            "issuer": self.url(),
            "jwks_uri": self.url() + KEYS,
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["ES256"],
        }


@dataclass(frozen=True, slots=True)
class _Issuer(ServiceAccountTokenIssuer):
    """Issues with the URL and keys at the time of the request."""

    now: TokenIssuer

    def token(self, account: Account, audiences: Sequence[str], begin: datetime, end: datetime) -> str:
        return ServiceAccountTokenIssuer(self.now.url(), self.audiences, self.now.keys).token(account, audiences, begin, end)
