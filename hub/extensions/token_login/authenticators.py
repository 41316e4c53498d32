"""Authentication of login tokens by JWTAuthenticators, WebhookAuthenticators and this hub's ServiceAccounts.

The authenticator is read from the database for each request, so that its change or removal takes effect on every replica with
the next request. Issuer keys and webhook answers are cached until the authenticator object changes.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from hub.api.logins import ACCOUNT, JWT, AuthenticatorConfig, Named, Reference, named_by_claims
from hub.controllers.certificates.authenticators import Connect
from hub.ports import Store
from hub.registry import authenticators as logins
from machinery.apiserver.authn.aggregation import DelegatedTokens
from machinery.apiserver.authn.chain import Identity, TokenAuthenticator
from machinery.apiserver.authn.issuer_keys import IssuerKeys, JsonDocuments
from machinery.errors import UnauthorizedError, UnavailableError
from machinery.runtime.clock import Clock

MAX_KEPT = 100


class Tokens(Protocol):
    """Verifies the tokens of one authenticator."""

    async def named(self, token: str) -> Named | None:
        """Returns the user of the token; None: there is none. Raises UnauthorizedError with the reason, UnavailableError."""


class Authenticators:
    """Finds authenticators by reference. One per process. `accounts` verifies tokens of this hub's ServiceAccounts."""

    def __init__(self, store: Store, accounts: TokenAuthenticator, connect: Connect, clock: Clock) -> None:
        self._store = store
        self._accounts = AccountTokens(accounts)
        self._connect = connect
        self._clock = clock
        self._kept: dict[tuple[str, str], tuple[AuthenticatorConfig, Tokens]] = {}

    async def find(self, reference: Reference) -> tuple[Tokens, Sequence[str]]:
        """Returns the authenticator and the groups whose members it makes operators.

        Raises UnauthorizedError (no such authenticator), InvalidError, UnavailableError.
        """
        if reference.kind == ACCOUNT:
            return self._accounts, ()
        found = await self._store.read(logins.authenticator, reference)
        if found is None:
            self._kept.pop((reference.kind, reference.name), None)
            raise UnauthorizedError("there is no such authenticator")
        return self._made(found), found.operator_groups

    def _made(self, found: AuthenticatorConfig) -> Tokens:
        key = found.kind, found.name
        known = self._kept.get(key)
        if known is None or known[0].mark != found.mark:
            if len(self._kept) >= MAX_KEPT:
                self._kept.clear()
            known = self._kept[key] = found, self._make(found)
        return known[1]

    def _make(self, found: AuthenticatorConfig) -> Tokens:
        documents = self._connect(found.authorities)
        return (
            IssuerTokens(found, documents, self._clock) if found.kind == JWT else WebhookTokens(found, documents, self._clock)
        )


class IssuerTokens(Tokens):
    """Verifies tokens for a JWTAuthenticator."""

    def __init__(self, authenticator: AuthenticatorConfig, documents: JsonDocuments, clock: Clock) -> None:
        assert authenticator.claims is not None  # noqa: S101 - the kind has them
        self._rules = authenticator.claims
        self._keys = IssuerKeys(authenticator.address, documents, clock)
        self._clock = clock

    async def named(self, token: str) -> Named:
        return named_by_claims(await self._keys.verified(token), self._rules, self._clock.now())


class WebhookTokens(Tokens):
    """Verifies tokens for a WebhookAuthenticator by TokenReview v1. Answers are cached briefly under the token's hash."""

    def __init__(self, authenticator: AuthenticatorConfig, documents: JsonDocuments, clock: Clock) -> None:
        self._url = authenticator.address
        self._documents = documents
        self._tokens = DelegatedTokens(self._review, clock)

    async def named(self, token: str) -> Named | None:
        return _named(await self._tokens.identify(token, ()))

    async def _review(self, kind: str, spec: Mapping[str, Any]) -> Mapping[str, Any]:
        return status_of_review(await self._documents.post(self._url, review_of(kind, spec)))


class AccountTokens(Tokens):
    """Verifies ServiceAccount tokens of this hub."""

    def __init__(self, tokens: TokenAuthenticator) -> None:
        self._tokens = tokens

    async def named(self, token: str) -> Named | None:
        found = await self._tokens.identify(token, ())
        return None if found is None else Named(found.actor.user, found.actor.groups, account=found.actor.uid)


def review_of(kind: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the review object that is posted to a webhook."""
    return {"apiVersion": "authentication.k8s.io/v1", "kind": kind, "metadata": {}, "spec": dict(spec), "status": {"user": {}}}


def status_of_review(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the status of a TokenReview. Raises UnavailableError if the answer is not a well-formed TokenReview."""
    status, version = answer.get("status"), answer.get("apiVersion")
    if answer.get("kind") != "TokenReview" or version != "authentication.k8s.io/v1" or not isinstance(status, Mapping):
        raise UnavailableError("the webhook's answer is not a TokenReview of authentication.k8s.io/v1")
    user = status.get("user") or {}
    if not isinstance(status.get("authenticated", False), bool) or not isinstance(user, Mapping) or not _is_user(user):
        raise UnavailableError("the webhook's answer has fields of a wrong type")
    return status


def _is_user(user: Mapping[str, Any]) -> bool:
    extra, texts = user.get("extra") or {}, (user.get("username", ""), user.get("uid", ""))
    return (
        all(isinstance(text, str) for text in texts)
        and _are_texts(user.get("groups"))
        and isinstance(extra, Mapping)
        and all(_are_texts(values) for values in extra.values())
    )


def _are_texts(values: object) -> bool:
    return values is None or (isinstance(values, list) and all(isinstance(each, str) for each in values))


def _named(found: Identity | None) -> Named | None:
    if found is None:
        return None
    actor = found.actor
    return Named(actor.user, actor.groups, actor.uid, actor.extra)
