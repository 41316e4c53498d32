"""Token issuer of a hollow cluster: issues ServiceAccount tokens and serves OpenID discovery and keys."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from aiohttp import web

from hollow import kinds
from machinery.apiserver.authn.chain import Identity, TokenAuthenticator
from machinery.apiserver.http.filters import Incoming
from machinery.apiserver.kinds.core import SERVICE_ACCOUNT
from machinery.apiserver.kinds.tokens import Account, ServiceAccountTokenIssuer, ServiceAccountTokens, service_account
from machinery.apiserver.resource import ApiGroup
from machinery.apiserver.server import Page
from machinery.apiserver.storage import Storage
from machinery.pki import TokenKeys, generate_key
from machinery.runtime.clock import Clock

AUDIENCE = "https://kubernetes.default.svc.cluster.local"
DISCOVERY, KEYS = "/.well-known/openid-configuration", "/openid/v1/jwks"


class TokenIssuer(TokenAuthenticator):
    """The token issuer of one cluster; its name is the cluster's address, known once it listens.

    Authenticates its tokens as long as their ServiceAccount exists.
    """

    def __init__(self, url: Callable[[], str], storage: Storage, clock: Clock) -> None:
        self._url = url
        self._keys = TokenKeys([generate_key()])
        self._storage = storage
        self._clock = clock

    async def identify(self, token: str, audiences: Sequence[str]) -> Identity | None:
        issuer = ServiceAccountTokenIssuer(self._url(), (AUDIENCE,), self._keys)
        return await ServiceAccountTokens(issuer, self._storage, self._clock).identify(token, audiences)

    def groups(self) -> tuple[ApiGroup, ...]:
        """The cluster's API groups, whose ServiceAccounts have the subresource `token`."""
        resource = service_account(_Issuer("", (AUDIENCE,), self._keys, self._url), self._storage)
        own = SERVICE_ACCOUNT.key
        return tuple(
            replace(group, resources=tuple(resource if each.key == own else each for each in group.resources))
            for group in kinds.GROUPS
        )

    def pages(self) -> Mapping[str, Page]:
        """Discovery and keys."""

        async def discovery(_incoming: Incoming) -> web.Response:
            configuration = {
                "issuer": self._url(),
                "jwks_uri": self._url() + KEYS,
                "response_types_supported": ["id_token"],
                "subject_types_supported": ["public"],
                "id_token_signing_alg_values_supported": ["ES256"],
            }
            return web.json_response(configuration)

        async def keys(_incoming: Incoming) -> web.Response:
            return web.json_response(self._keys.key_set())

        return {DISCOVERY: discovery, KEYS: keys}


@dataclass(frozen=True, slots=True)
class _Issuer(ServiceAccountTokenIssuer):
    """Issues under the URL at the time of the request."""

    url: Callable[[], str]

    def token(self, account: Account, audiences: Sequence[str], begin: datetime, end: datetime) -> str:
        return ServiceAccountTokenIssuer(self.url(), self.audiences, self.keys).token(account, audiences, begin, end)
