"""Authentication at the HTTPS door. Also ends watches when their credential ends."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256

import structlog
from aiohttp import web

from hub.access.rules import counted_names
from hub.access.tokens import BootstrapTokens
from hub.api.bootstrapcredentials import CredentialRecord
from hub.api.certificates import CertificateRecord
from hub.api.meta.change import SERVICE_ACCOUNTS
from hub.https_door.storage.feed import ChangeFeed
from hub.ports import Store
from machinery.apiserver.access import Authenticator, peer_certificate
from machinery.apiserver.authn.authorities import mark_of_authority
from machinery.apiserver.authn.chain import (
    CREDENTIAL_ID,
    BearerTokens,
    Chain,
    Identity,
    RequestAuthenticator,
    TokenAuthenticator,
    TokenChecks,
    TokenUnion,
)
from machinery.apiserver.authn.credential_end import Presence
from machinery.apiserver.http.loopback import Loopback, LoopbackAuthenticator
from machinery.apiserver.kinds.reviews import Reviewer
from machinery.apiserver.kinds.tokens import (
    Account,
    ServiceAccountTokenIssuer,
    ServiceAccountTokens,
    service_account,
    token_review,
)
from machinery.apiserver.resource import Resource
from machinery.apiserver.storage import Actor, Storage
from machinery.errors import ExpiredError, MusterError
from machinery.identity import BOOTSTRAP_GROUP, CredentialId, HubId, SerialNumber, bootstrap_user
from machinery.meta.objects import ChangeType, Query, WatchEvent
from machinery.observability.logs import LogOnce
from machinery.pki import TokenKeys, generate_key
from machinery.runtime.backoff import Backoff
from machinery.runtime.clock import Clock

Identify = Callable[[bytes], Awaitable[CertificateRecord]]
"""Returns the record of a certificate (DER). Raises UnauthorizedError if there is none, or it is revoked or not valid now."""

IdentifyToken = Callable[[str], Awaitable[CredentialRecord | None]]
"""Returns the credential of a bootstrap token; None: not a bootstrap token. Raises UnauthorizedError if it is not valid."""

Listen = Callable[[Callable[[frozenset[SerialNumber] | None], None]], object]
"""Registers a listener for revoked serial numbers. The listener gets None when revocations cannot be read."""

ListenToCredentials = Callable[[Callable[[CredentialId], None]], object]
"""Registers a listener for revoked bootstrap credentials."""


class CertificateAuthenticator(RequestAuthenticator):
    """Authenticates the holder of a certificate as the user and groups that `counted_names` returns for its record."""

    def __init__(self, identify: Identify, is_anothers: Callable[[bytes], bool] = lambda _certificate: False) -> None:
        """`is_anothers`: whether only another authenticator decides about a certificate."""
        self._identify = identify
        self._is_anothers = is_anothers

    async def identify(self, request: web.Request) -> Identity | None:
        certificate = peer_certificate(request)
        if certificate is None or self._is_anothers(certificate):
            return None
        record = await self._identify(certificate)
        return recorded_identity(record, certificate, *counted_names(record))


def recorded_identity(record: CertificateRecord, certificate: bytes, user: str, groups: Sequence[str]) -> Identity:
    """Returns the identity of the holder of a certificate (DER) that has a record. `user`, `groups`: from `counted_names`."""
    extra = {CREDENTIAL_ID: (f"X509SHA256={sha256(certificate).hexdigest()}",)}
    return Identity(Actor(user, tuple(groups), extra=extra, holder=record), mark_of_serial(record.serial), record.not_after)


class BootstrapTokenAuthenticator(TokenAuthenticator):
    """Authenticates a bootstrap token as the user of its bootstrap credential, like a client certificate of this credential."""

    def __init__(self, identify: IdentifyToken) -> None:
        self._identify = identify

    async def identify(self, token: str, audiences: Sequence[str]) -> Identity | None:
        record = await self._identify(token)
        if record is None:
            return None
        extra = {CREDENTIAL_ID: (f"BOOTSTRAP={record.id}",)}
        actor = Actor(bootstrap_user(record.id), (BOOTSTRAP_GROUP,), extra=extra, holder=record)
        return Identity(actor, mark_of_credential(record.id), record.expires_at, tuple(audiences))


def end_with_revocations(presence: Presence, serials: Listen | None, credentials: ListenToCredentials | None) -> None:
    """Lets `presence` end long-running requests when their certificate (`serials`) or bootstrap credential is revoked."""

    def end_certificates(revoked: frozenset[SerialNumber] | None) -> None:
        if revoked is None:
            presence.end_all()
        for serial in revoked or ():
            presence.end(mark_of_serial(serial))

    if serials is not None:
        serials(end_certificates)
    if credentials is not None:
        credentials(lambda credential: presence.end(mark_of_credential(credential)))


def mark_of_serial(serial: SerialNumber) -> str:
    return f"certificate/{serial:x}"


def mark_of_credential(credential: CredentialId) -> str:
    return f"bootstrap/{credential}"


AUDIENCE = "https://kubernetes.default.svc"
"""Default audience of tokens, which Kubernetes tools expect."""
BOOKMARK_PERIOD = timedelta(seconds=10)

log = structlog.get_logger(__name__)


def issuer_of(hub: HubId, keys: TokenKeys | None) -> ServiceAccountTokenIssuer:
    """Returns the issuer of ServiceAccount tokens. Without keys it uses new keys in memory."""
    return ServiceAccountTokenIssuer(f"urn:uuid:{hub}", (AUDIENCE,), keys or TokenKeys([generate_key()]))


def account_tokens(hub: HubId, keys: TokenKeys) -> Callable[..., str]:
    """Returns a function with which the gRPC door makes ServiceAccount tokens. The HTTPS door accepts these tokens."""
    issuer = issuer_of(hub, keys)

    def token(namespace: str, name: str, uid: str, *, begin: datetime, end: datetime) -> str:
        return issuer.token(Account(namespace, name, uid), issuer.audiences, begin, end)

    return token


class ExternalAuthenticator:
    """Authenticates users by external credentials. `authenticator` is tried before the hub's own authenticators."""

    authenticator: RequestAuthenticator
    tokens: TokenAuthenticator | None = None
    """Authenticates tokens. It is tried after the hub's own authenticators of tokens."""
    _presence: Presence | None = None

    def authorizer(self, own: Reviewer) -> Reviewer:
        """Returns an authorizer that decides about users of this authenticator, and calls `own` for all other users."""
        return own

    def bind(self, presence: Presence) -> None:
        """Sets `presence`, which ends long-running requests whose credential is no longer valid."""
        self._presence = presence

    def end_requests_under(self, authorities: Iterable[str]) -> None:
        """Ends long-running requests with certificates of these CAs, given by fingerprint."""
        for fingerprint in authorities:
            if self._presence is not None:
                self._presence.end_under(mark_of_authority(fingerprint))

    async def run(self) -> None:
        """Follows the sources of this authenticator until cancelled."""
        await asyncio.Event().wait()

    def owns(self, certificate: bytes) -> bool:
        """Whether only this authenticator decides about a certificate (DER). No other authenticator accepts what it rejects."""
        del certificate
        return False


@dataclass(frozen=True, slots=True)
class AuthenticationConfig:
    """Settings of the authentication. `identify`: finds the record of a certificate. `revocations`: see `Listen`."""

    identify: Identify
    revocations: Listen | None = None
    token_keys: TokenKeys | None = None
    """Keys that sign ServiceAccount tokens; None: new keys in memory."""
    external: Sequence[ExternalAuthenticator] = ()
    """Authenticators of users by external credentials, in the order in which they are tried."""
    token_checks: TokenChecks | None = None
    loopback: Loopback | None = None
    """The identity with which the hub itself uses this door."""


class AuthenticatorChain:
    """Tries external authenticators, then client certificates, then bearer tokens.

    `presence` is a filter that ends long requests whose credential has ended. `resources` are the kinds ServiceAccount and
    TokenReview, which the HTTPS door serves.
    """

    def __init__(
        self, store: Store, objects: Storage, feed: ChangeFeed, hub: HubId, config: AuthenticationConfig, *, clock: Clock
    ) -> None:
        self._objects = objects
        self._feed = feed
        self._external = config.external
        self._bootstrap = BootstrapTokens(store)
        issuer = issuer_of(hub, config.token_keys)
        self.accounts = ServiceAccountTokens(issuer, objects, clock)
        """Authenticates tokens of the hub's ServiceAccounts only."""
        own = BootstrapTokenAuthenticator(self._bootstrap.identify), self.accounts
        tokens = TokenUnion(*own, *(each.tokens for each in config.external if each.tokens is not None))
        more = [each.authenticator for each in config.external]
        certificates = CertificateAuthenticator(
            config.identify, lambda shown: any(each.owns(shown) for each in config.external)
        )
        chain = Chain(*more, certificates, BearerTokens(tokens, config.token_checks))
        self.authenticator: Authenticator = chain if config.loopback is None else LoopbackAuthenticator(config.loopback, chain)
        self.resources: tuple[Resource, ...] = (service_account(issuer, objects), token_review(tokens, issuer.audiences))
        self.presence = Presence(clock)
        end_with_revocations(self.presence, config.revocations, self._bootstrap.listen)
        for each in config.external:
            each.bind(self.presence)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._bootstrap.run(), name="revoked-tokens")
            tasks.create_task(self._follow_accounts(), name="deleted-accounts")
            for each in self._external:
                tasks.create_task(each.run(), name=type(each).__name__)

    async def _follow_accounts(self) -> None:
        """Ends watches of deleted ServiceAccounts. Ends all watches if the change log may have lost a deletion."""
        pauses, failure = Backoff(timedelta(milliseconds=200), timedelta(seconds=10)), LogOnce(log)
        after: int | None = None
        while True:
            try:
                after = await self._objects.revision() if after is None else after
                events = self._feed.watch(SERVICE_ACCOUNTS, Query(), after=after, bookmark_after=BOOKMARK_PERIOD)
                async with aclosing(events):
                    async for event in events:
                        after = self._seen(event)
                        pauses.reset()
                        failure.reset()
            except ExpiredError:
                after = None
                self.presence.end_all()
            except MusterError as error:
                failure.warning("deleted ServiceAccounts cannot be seen now", error)
                await asyncio.sleep(pauses.next().total_seconds())

    def _seen(self, event: WatchEvent | int) -> int:
        if isinstance(event, int):
            return event
        metadata = event.stored.document["metadata"]
        if event.type is ChangeType.DELETED or "deletionTimestamp" in metadata:
            self.presence.end(Account(event.stored.key.namespace, event.stored.key.name, metadata["uid"]).mark)
        return event.stored.revision
