"""Tokens of ServiceAccounts, issued for a time and an audience, valid while their ServiceAccount exists.

Claims, user, groups and errors are Kubernetes' (sources: pkg/serviceaccount and the TokenRequest API). Every token is checked
against the current account by uid: deleting or recreating the account invalidates its tokens at once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

from machinery.apiserver.authn.chain import CREDENTIAL_ID, Identity, TokenAuthenticator
from machinery.apiserver.storage import Actor, GroupResource, Storage
from machinery.errors import ErrorSubject, NotFoundError, UnauthorizedError
from machinery.identity import service_account_groups, service_account_user
from machinery.meta.objects import Key
from machinery.pki import TokenKeys, unverified_claims
from machinery.runtime.clock import Clock

SKEW = timedelta(minutes=1)
"""Tolerated clock difference for the begin of a token's validity, since clocks of replicas differ."""
SERVICE_ACCOUNTS = GroupResource("", "serviceaccounts")
INVALID = "invalid bearer token"


@dataclass(frozen=True, slots=True)
class Account:
    """A ServiceAccount as named in tokens."""

    namespace: str
    name: str
    uid: str

    @property
    def mark(self) -> str:
        return f"serviceaccount/{self.uid}"


@dataclass(frozen=True, slots=True)
class ServiceAccountTokenIssuer:
    """Issuer name, default audiences and signing keys."""

    name: str
    audiences: tuple[str, ...]
    keys: TokenKeys

    def token(self, account: Account, audiences: Sequence[str], begin: datetime, end: datetime) -> str:
        claims = {
            "aud": list(audiences),
            "exp": int(end.timestamp()),
            "iat": int(begin.timestamp()),
            "iss": self.name,
            "jti": str(uuid4()),
            "kubernetes.io": {
                "namespace": account.namespace,
                "serviceaccount": {"name": account.name, "uid": account.uid},
            },
            "nbf": int(begin.timestamp()),
            "sub": service_account_user(account.namespace, account.name),
        }
        return self.keys.sign(claims)


class Accounts:
    """The ServiceAccounts of a storage."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    async def find(self, namespace: str, name: str) -> Account:
        """The existing account. Raises NotFoundError, also while it is being deleted."""
        stored = await self._storage.get(SERVICE_ACCOUNTS, Key(namespace, name))
        metadata = stored.document["metadata"]
        if "deletionTimestamp" in metadata:
            raise NotFoundError(f"service account {namespace}/{name} has been deleted", subject=ErrorSubject(name=name))
        return Account(namespace, name, metadata["uid"])


class ServiceAccountTokens(TokenAuthenticator):
    """Authenticates the tokens of one issuer."""

    def __init__(self, issuer: ServiceAccountTokenIssuer, accounts: Accounts, clock: Clock) -> None:
        self._issuer = issuer
        self._accounts = accounts
        self._clock = clock

    async def identify(self, token: str, audiences: Sequence[str]) -> Identity | None:
        claimed = unverified_claims(token)
        if claimed is None or claimed.get("iss") != self._issuer.name:
            return None
        claims = self._issuer.keys.verified(token)
        if claims is None:
            raise UnauthorizedError(INVALID)
        until = self._time(claims)
        wanted = tuple(audiences) or self._issuer.audiences
        meant = tuple(audience for audience in wanted if audience in claims["aud"])
        if not meant:
            raise UnauthorizedError(f"token audiences {claims['aud']} is invalid for the target audiences {list(wanted)}")
        account = await self._account(claims["kubernetes.io"])
        extra = {CREDENTIAL_ID: (f"JTI={claims['jti']}",)}
        user = service_account_user(account.namespace, account.name)
        actor = Actor(user, service_account_groups(account.namespace), account.uid, extra)
        return Identity(actor, account.mark, until, meant)

    def _time(self, claims: Mapping[str, Any]) -> datetime:
        """Expiry of the token. Raises UnauthorizedError outside of its validity."""
        now, until = self._clock.now(), datetime.fromtimestamp(claims["exp"], UTC)
        if now >= until:
            raise UnauthorizedError("service account token has expired")
        if now + SKEW < datetime.fromtimestamp(claims["nbf"], UTC):
            raise UnauthorizedError("service account token is not valid yet")
        return until

    async def _account(self, private: Mapping[str, Any]) -> Account:
        """Account of the token. Raises UnauthorizedError when it is deleted, or recreated with another uid."""
        issued_to = private["serviceaccount"]
        try:
            account = await self._accounts.find(private["namespace"], issued_to["name"])
        except NotFoundError as error:
            raise UnauthorizedError(error.message) from None
        if account.uid != issued_to["uid"]:
            raise UnauthorizedError(f"service account UID ({account.uid}) does not match claim ({issued_to['uid']})")
        return account
