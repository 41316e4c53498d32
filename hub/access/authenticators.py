"""Tokens of others, by the authenticator that a request names: from the token to whom it names.

The authenticator is read from the database at each question, so that on every replica a change or a removal counts from the
next one on. What is kept in memory is what is slow to come by: an issuer's keys and a webhook's answers, for as long as the
very object stands, unchanged, for which they were had.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from hub.api.logins.authenticator import ACCOUNT, JWT, AuthenticatorConfig, Reference
from hub.api.logins.login import Named, named_by_claims
from hub.ports import Store
from hub.registry.logins import service as logins
from machinery.apiserver.authn.delegated import DelegatedTokens
from machinery.apiserver.authn.https_json import JsonDocuments
from machinery.apiserver.authn.identity import Identity, TokenAuthenticator
from machinery.apiserver.authn.issuer_keys import IssuerKeys
from machinery.errors import UnauthorizedError, UnavailableError
from machinery.runtime.clock import Clock

MAX_KEPT = 100

Connect = Callable[[bytes], JsonDocuments]
"""From the CAs that a server is verified by (PEM; b"": the machine's) to its documents. Raises InvalidError."""


class Tokens(Protocol):
    """One authenticator."""

    async def named(self, token: str) -> Named | None:
        """Whom the token names; None: nobody. Raises UnauthorizedError that says why it is not good, UnavailableError."""


class Authenticators:
    """One per process. `accounts`: knows the tokens of this hub's ServiceAccounts."""

    def __init__(self, store: Store, accounts: TokenAuthenticator, connect: Connect, clock: Clock) -> None:
        self._store = store
        self._accounts = AccountTokens(accounts)
        self._connect = connect
        self._clock = clock
        self._kept: dict[tuple[str, str], tuple[AuthenticatorConfig, Tokens]] = {}

    async def find(self, reference: Reference) -> tuple[Tokens, Sequence[str]]:
        """The authenticator, and the groups that it makes operators.

        Raises UnauthorizedError (there is none), InvalidError, UnavailableError.
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
    """A JWTAuthenticator."""

    def __init__(self, authenticator: AuthenticatorConfig, documents: JsonDocuments, clock: Clock) -> None:
        assert authenticator.claims is not None  # noqa: S101 - the kind has them
        self._rules = authenticator.claims
        self._keys = IssuerKeys(authenticator.address, documents, clock)
        self._clock = clock

    async def named(self, token: str) -> Named:
        return named_by_claims(await self._keys.verified(token), self._rules, self._clock.now())


class WebhookTokens(Tokens):
    """A WebhookAuthenticator: TokenReview v1, each answer kept for a moment under the token's hash."""

    def __init__(self, authenticator: AuthenticatorConfig, documents: JsonDocuments, clock: Clock) -> None:
        self._url = authenticator.address
        self._documents = documents
        self._tokens = DelegatedTokens(self._review, clock)

    async def named(self, token: str) -> Named | None:
        return _named(await self._tokens.identify(token, ()))

    async def _review(self, kind: str, spec: Mapping[str, Any]) -> Mapping[str, Any]:
        return status_of_review(await self._documents.post(self._url, review_of(kind, spec)))


class AccountTokens(Tokens):
    """ServiceAccounts of this hub, by their own tokens."""

    def __init__(self, tokens: TokenAuthenticator) -> None:
        self._tokens = tokens

    async def named(self, token: str) -> Named | None:
        found = await self._tokens.identify(token, ())
        return None if found is None else Named(found.actor.user, found.actor.groups, account=found.actor.uid)


def review_of(kind: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """What is posted to a webhook."""
    return {"apiVersion": "authentication.k8s.io/v1", "kind": kind, "metadata": {}, "spec": dict(spec), "status": {"user": {}}}


def status_of_review(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    """The status of a TokenReview. Raises UnavailableError when it is none, or of no form that can be trusted."""
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
