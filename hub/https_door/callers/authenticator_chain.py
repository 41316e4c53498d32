"""The authenticators of the HTTPS door in their order, and the end of watches whose credential ends."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

import structlog

from hub.access import BootstrapTokens
from hub.api.meta.change import SERVICE_ACCOUNTS
from hub.https_door.callers.authentication import (
    BootstrapTokenAuthenticator,
    CertificateAuthenticator,
    Identify,
    Listen,
    end_with_revocations,
)
from hub.https_door.storage.feed import ChangeFeed
from hub.ports import Store
from machinery.apiserver.authn.aggregation import Review
from machinery.apiserver.authn.chain import (
    BearerTokens,
    Chain,
    RequestAuthenticator,
    TokenAuthenticator,
    TokenChecks,
    TokenUnion,
)
from machinery.apiserver.authn.credential_end import Presence
from machinery.apiserver.kinds.tokens import (
    Account,
    Accounts,
    ServiceAccountTokenIssuer,
    ServiceAccountTokens,
    service_account,
    token_review,
)
from machinery.apiserver.resource import Resource
from machinery.apiserver.storage import Storage
from machinery.errors import ExpiredError, MusterError
from machinery.identity import HubId
from machinery.meta.objects import ChangeType, Query, WatchEvent
from machinery.pki import TokenKeys, generate_key
from machinery.runtime.backoff import Backoff
from machinery.runtime.clock import Clock

AUDIENCE = "https://kubernetes.default.svc"
"""Default audience of tokens, as tools for Kubernetes expect it."""
PATIENCE = timedelta(seconds=10)

log = structlog.get_logger(__name__)


def issuer_of(hub: HubId, keys: TokenKeys | None) -> ServiceAccountTokenIssuer:
    """Returns the issuer of ServiceAccount tokens. Without keys it uses new keys in memory."""
    return ServiceAccountTokenIssuer(f"urn:uuid:{hub}", (AUDIENCE,), keys or TokenKeys([generate_key()]))


def account_tokens(hub: HubId, keys: TokenKeys) -> Callable[..., str]:
    """Returns a function that makes ServiceAccount tokens for another door; this door accepts them."""
    issuer = issuer_of(hub, keys)

    def token(namespace: str, name: str, uid: str, *, begin: datetime, end: datetime) -> str:
        return issuer.token(Account(namespace, name, uid), issuer.audiences, begin, end)

    return token


@dataclass(frozen=True, slots=True)
class Dependencies:
    """Dependencies of the authenticators."""

    store: Store
    objects: Storage
    feed: ChangeFeed
    clock: Clock


class ExternalAuthenticator(Protocol):
    """Authenticates users by credentials of others. It is tried before the hub's own authenticators."""

    authenticator: RequestAuthenticator
    tokens: TokenAuthenticator | None
    """Authenticates tokens; tried after the hub's own."""
    review: Review | None
    """Authorizes the users of this authenticator; None: the hub's own roles do."""

    def bind(self, presence: Presence) -> None:
        """Sets `presence`, with which it ends long-running requests of credentials that are not valid any more."""

    async def run(self) -> None:
        """Follows the sources of this authenticator until cancelled."""

    def owns(self, certificate: bytes) -> bool:
        """Whether only this authenticator may judge a certificate (DER); if it rejects one, no other accepts it."""
        del certificate
        return False


class AuthenticatorChain:
    """Client certificates first, then bearer tokens. `presence` is a filter, `resources` are served with the others."""

    def __init__(
        self,
        grounds: Dependencies,
        issuer: ServiceAccountTokenIssuer,
        identify: Identify,
        revocations: Listen | None,
        external_authenticators: Sequence[ExternalAuthenticator] = (),
        *,
        token_checks: TokenChecks | None = None,
    ) -> None:
        self._grounds = grounds
        self._bootstrap = BootstrapTokens(grounds.store)
        accounts = Accounts(grounds.objects)
        self.accounts = ServiceAccountTokens(issuer, accounts, grounds.clock)
        """Authenticates tokens of the hub's ServiceAccounts only."""
        own = BootstrapTokenAuthenticator(self._bootstrap.identify), self.accounts
        tokens = TokenUnion(*own, *(way.tokens for way in external_authenticators if way.tokens is not None))
        self.presence = Presence(grounds.clock)
        more = [way.authenticator for way in external_authenticators]
        certificates = CertificateAuthenticator(identify, lambda shown: any(way.owns(shown) for way in external_authenticators))
        self.authenticator = Chain(*more, certificates, BearerTokens(tokens, token_checks))
        self.resources: tuple[Resource, ...] = (service_account(issuer, accounts), token_review(tokens, issuer.audiences))
        end_with_revocations(self.presence, revocations, self._bootstrap.listen)
        self._ways_in = external_authenticators
        for way in external_authenticators:
            way.bind(self.presence)

    async def run(self) -> None:
        """Follows revoked and deleted credentials until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._bootstrap.run(), name="revoked-tokens")
            tasks.create_task(self._follow_accounts(), name="deleted-accounts")
            for way in self._ways_in:
                tasks.create_task(way.run(), name=type(way).__name__)

    async def _follow_accounts(self) -> None:
        """Ends watches of deleted ServiceAccounts; all watches if the change log may have lost a deletion."""
        pauses, told = Backoff(timedelta(milliseconds=200), timedelta(seconds=10)), ""
        after: int | None = None
        while True:
            try:
                after = await self._grounds.objects.revision() if after is None else after
                events = self._grounds.feed.watch(SERVICE_ACCOUNTS, Query(), after=after, patience=PATIENCE)
                async with aclosing(events):
                    async for event in events:
                        after = self._seen(event)
                        pauses.reset()
                        told = ""
            except ExpiredError:
                after = None
                self.presence.end_all()
            except MusterError as error:
                if error.message != told:
                    log.warning("deleted ServiceAccounts cannot be seen now", error=error.message)
                told = error.message
                await asyncio.sleep(pauses.next().total_seconds())

    def _seen(self, event: WatchEvent | int) -> int:
        if isinstance(event, int):
            return event
        metadata = event.stored.document["metadata"]
        if event.type is ChangeType.DELETED or "deletionTimestamp" in metadata:
            self.presence.end(Account(event.stored.key.namespace, event.stored.key.name, metadata["uid"]).mark)
        return event.stored.revision
