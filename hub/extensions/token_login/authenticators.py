"""Authentication of login tokens by JWTAuthenticators, WebhookAuthenticators and this hub's ServiceAccounts.

Each request reads the authenticator from the database, so that a change or removal takes effect on every replica with the next
request. Issuer keys and webhook answers are cached, at most until the authenticator object changes.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from hub.api.logins import ACCOUNT, AuthenticatedUser, AuthenticatorConfig, Reference, user_of_claims
from hub.controllers.certificates.authenticators import Connect
from hub.ports import Store
from hub.registry import authenticators as logins
from machinery.apiserver.authn.aggregation import DelegatedTokens
from machinery.apiserver.authn.chain import TokenAuthenticator
from machinery.apiserver.authn.issuer_keys import IssuerKeys
from machinery.errors import UnauthorizedError, UnavailableError
from machinery.runtime.clock import Clock

MAX_KEPT = 100
API_VERSION = "authentication.k8s.io/v1"

IdentifyToken = Callable[[str], Awaitable[AuthenticatedUser | None]]
"""Returns the user of a token; None if the token has no user. Raises UnauthorizedError with the reason, UnavailableError."""


class Authenticators:
    """Finds authenticators by reference. One per process. `accounts` verifies tokens of this hub's ServiceAccounts."""

    def __init__(self, store: Store, accounts: TokenAuthenticator, connect: Connect, clock: Clock) -> None:
        self._store = store
        self._accounts = accounts
        self._connect = connect
        self._clock = clock
        self._kept: dict[Reference, tuple[tuple[str, int], IdentifyToken]] = {}

    async def find(self, reference: Reference) -> tuple[IdentifyToken, Sequence[str]]:
        """Returns the function that verifies tokens, and the groups whose members become operators.

        Raises UnauthorizedError (no such authenticator), InvalidError, UnavailableError.
        """
        if reference.kind == ACCOUNT:
            return self._by_account, ()
        found = await self._store.read(logins.authenticator, reference)
        if found is None:
            self._kept.pop(reference, None)
            raise UnauthorizedError("there is no such authenticator")
        known = self._kept.get(reference)
        if known is None or known[0] != found.mark:
            if len(self._kept) >= MAX_KEPT:
                self._kept.clear()
            known = self._kept[reference] = found.mark, self._identify(found)
        return known[1], found.operator_groups

    async def _by_account(self, token: str) -> AuthenticatedUser | None:
        found = await self._accounts.identify(token, ())
        return None if found is None else AuthenticatedUser(found.actor.user, found.actor.groups, account=found.actor.uid)

    def _identify(self, config: AuthenticatorConfig) -> IdentifyToken:
        """Returns the function that verifies tokens: with the issuer's keys, or by TokenReviews of the webhook.

        TokenReviews are cached by the token's hash.
        """
        documents, claims = self._connect(config.authorities), config.claims
        if claims is not None:
            keys = IssuerKeys(config.address, documents, self._clock)

            async def by_claims(token: str) -> AuthenticatedUser:
                return user_of_claims(await keys.verified(token), claims, self._clock.now())

            return by_claims

        async def review(kind: str, spec: Mapping[str, Any]) -> Mapping[str, Any]:
            body = {"apiVersion": API_VERSION, "kind": kind, "metadata": {}, "spec": dict(spec), "status": {"user": {}}}
            return status_of_review(await documents.post(config.address, body))

        reviews = DelegatedTokens(review, self._clock)

        async def by_review(token: str) -> AuthenticatedUser | None:
            found = await reviews.identify(token, ())
            return (
                None
                if found is None
                else AuthenticatedUser(found.actor.user, found.actor.groups, found.actor.uid, found.actor.extra)
            )

        return by_review


class _User(msgspec.Struct):
    username: str = ""
    uid: str = ""
    groups: list[str] | None = None
    extra: dict[str, list[str] | None] | None = None


class _Status(msgspec.Struct):
    authenticated: bool = False
    user: _User | None = None


def status_of_review(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the status of a TokenReview. Raises UnavailableError if the answer is not a well-formed TokenReview."""
    status = answer.get("status")
    if (answer.get("kind"), answer.get("apiVersion")) != ("TokenReview", API_VERSION) or not isinstance(status, Mapping):
        raise UnavailableError(f"the webhook's answer is not a TokenReview of {API_VERSION}")
    try:
        msgspec.convert(status, _Status)
    except msgspec.ValidationError:
        raise UnavailableError("the webhook's answer has fields of a wrong type") from None
    return status
