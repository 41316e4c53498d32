"""Tokens of ServiceAccounts. The kinds TokenRequest (their subresource `token`) and TokenReview of authentication.k8s.io/v1.

A token has an expiry and an audience, and is valid only while its ServiceAccount exists. Every check compares the token's uid
with the uid of the account, so deleting or recreating the account immediately invalidates its tokens. Claims, user, groups,
errors and validation are those of Kubernetes (sources: pkg/serviceaccount, the registries of both kinds).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

from machinery.apiserver.authn.chain import CREDENTIAL_ID, INVALID_TOKEN, Identity, TokenAuthenticator, authenticated
from machinery.apiserver.kinds.core import SERVICE_ACCOUNT
from machinery.apiserver.kinds.declaration import builtin
from machinery.apiserver.resource import Question, Resource, Subresource
from machinery.apiserver.storage import Actor, Storage
from machinery.errors import BadRequestError, Cause, ErrorSubject, NotFoundError, UnauthorizedError, forbidden, invalid_value
from machinery.identity import service_account_groups, service_account_user
from machinery.meta.objects import Document, Key
from machinery.meta.timestamps import format_time
from machinery.pki import TokenKeys, unverified_claims
from machinery.runtime.clock import Clock

SKEW = timedelta(minutes=1)
"""A token counts as valid this much before its start, because the clocks of replicas differ."""


@dataclass(frozen=True, slots=True)
class Account:
    """The fields of a ServiceAccount that tokens contain."""

    namespace: str
    name: str
    uid: str

    @property
    def mark(self) -> str:
        return f"serviceaccount/{self.uid}"


@dataclass(frozen=True, slots=True)
class ServiceAccountTokenIssuer:
    """Issues tokens of ServiceAccounts. `audiences`: the default audiences."""

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
            "kubernetes.io": {"namespace": account.namespace, "serviceaccount": {"name": account.name, "uid": account.uid}},
            "nbf": int(begin.timestamp()),
            "sub": service_account_user(account.namespace, account.name),
        }
        return self.keys.sign(claims)


async def find_account(storage: Storage, namespace: str, name: str) -> Account:
    """Return a ServiceAccount. Raises NotFoundError if it does not exist or is being deleted."""
    metadata = (await storage.get(SERVICE_ACCOUNT.key, Key(namespace, name))).document["metadata"]
    if "deletionTimestamp" in metadata:
        raise NotFoundError(f"service account {namespace}/{name} has been deleted", subject=ErrorSubject(name=name))
    return Account(namespace, name, metadata["uid"])


class ServiceAccountTokens(TokenAuthenticator):
    """Authenticates the tokens of one issuer. `storage`: the storage of the ServiceAccounts."""

    def __init__(self, issuer: ServiceAccountTokenIssuer, storage: Storage, clock: Clock) -> None:
        self._issuer = issuer
        self._storage = storage
        self._clock = clock

    async def identify(self, token: str, audiences: Sequence[str]) -> Identity | None:
        claimed = unverified_claims(token)
        if claimed is None or claimed.get("iss") != self._issuer.name:
            return None
        claims = self._issuer.keys.verified(token)
        if claims is None:
            raise UnauthorizedError(INVALID_TOKEN)
        now, until = self._clock.now(), datetime.fromtimestamp(claims["exp"], UTC)
        if now >= until:
            raise UnauthorizedError("service account token has expired")
        if now + SKEW < datetime.fromtimestamp(claims["nbf"], UTC):
            raise UnauthorizedError("service account token is not valid yet")
        wanted = tuple(audiences) or self._issuer.audiences
        meant = tuple(audience for audience in wanted if audience in claims["aud"])
        if not meant:
            raise UnauthorizedError(f"token audiences {claims['aud']} is invalid for the target audiences {list(wanted)}")
        namespace, issued_to = claims["kubernetes.io"]["namespace"], claims["kubernetes.io"]["serviceaccount"]
        try:
            account = await find_account(self._storage, namespace, issued_to["name"])
        except NotFoundError as error:
            raise UnauthorizedError(error.message) from None
        if account.uid != issued_to["uid"]:
            raise UnauthorizedError(f"service account UID ({account.uid}) does not match claim ({issued_to['uid']})")
        extra = {CREDENTIAL_ID: (f"JTI={claims['jti']}",)}
        user = service_account_user(account.namespace, account.name)
        actor = Actor(user, service_account_groups(account.namespace), account.uid, extra)
        return Identity(actor, account.mark, until, meant)


GROUP = "authentication.k8s.io"
DEFAULT_SECONDS = 3600
MIN_SECONDS = 600
MAX_SECONDS = 2**32
MAX_LIFETIME = timedelta(days=366)
"""Longest lifetime of a token. A request for a longer lifetime gets this lifetime, as in Kubernetes."""


def token_review(tokens: TokenAuthenticator, audiences: Sequence[str]) -> Resource:
    """Return the resource TokenReview. `audiences`: this API server's audiences, for reviews that name none."""

    async def answers(question: Question) -> Document:
        spec = question.document.get("spec", {})
        if not spec.get("token"):
            raise BadRequestError("token is required for TokenReview in authentication")
        status: dict[str, Any] = {"user": {}, "error": INVALID_TOKEN}
        try:
            found = await tokens.identify(spec["token"], spec.get("audiences") or audiences)
        except UnauthorizedError as error:
            status["error"], found = error.message, None
        if found is not None:
            status = {"authenticated": True, "user": user_info(authenticated(found.actor))}
            status |= {"audiences": list(found.audiences)} if found.audiences else {}
        return {**question.document, "status": status}

    return builtin(f"tokenreviews.{GROUP}", answers=answers)


def user_info(actor: Actor) -> dict[str, Any]:
    """Return the UserInfo of authentication.k8s.io without empty fields."""
    parts = {
        "username": actor.user,
        "uid": actor.uid,
        "groups": list(actor.groups),
        "extra": {key: list(values) for key, values in actor.extra.items()},
    }
    return {name: value for name, value in parts.items() if value}


def _request_violations(new: Document, _old: Document | None) -> Iterator[Cause]:
    spec: Mapping[str, Any] = new.get("spec", {})
    seconds, path = spec.get("expirationSeconds", DEFAULT_SECONDS), "spec.expirationSeconds"
    if seconds < MIN_SECONDS:
        yield invalid_value(path, seconds, "may not specify a duration less than 10 minutes")
    if seconds > MAX_SECONDS:
        yield invalid_value(path, seconds, "may not specify a duration larger than 2^32 seconds")
    if any(not audience for audience in spec.get("audiences", ())):
        yield forbidden("spec.audiences", "an audience has a name")


def service_account(issuer: ServiceAccountTokenIssuer, storage: Storage) -> Resource:
    """Return the resource ServiceAccount with its subresource `token`."""

    async def answers(question: Question) -> Document:
        spec = question.document.get("spec", {})
        account = await find_account(storage, question.namespace, question.name)
        metadata = question.document["metadata"]
        if metadata.get("name", account.name) != account.name:
            raise BadRequestError(
                f"the name of the object ({metadata['name']}) does not match the name on the URL ({account.name})"
            )
        if reference := spec.get("boundObjectRef"):
            kind = f"{reference.get('apiVersion', '')}, Kind={reference.get('kind', '')}"
            raise BadRequestError(f"cannot bind token to object of type {kind}: tokens here end with their account alone")
        audiences = spec.get("audiences") or list(issuer.audiences)
        begin = question.now.replace(microsecond=0)
        end = begin + min(timedelta(seconds=spec["expirationSeconds"]), MAX_LIFETIME)
        token = "" if question.dry_run else issuer.token(account, audiences, begin, end)
        return {
            "metadata": {"name": account.name, "namespace": account.namespace, "creationTimestamp": format_time(begin)},
            "spec": {"audiences": list(audiences), "expirationSeconds": spec["expirationSeconds"], "boundObjectRef": None},
            "status": {"token": token, "expirationTimestamp": format_time(end)},
        }

    request = builtin(f"tokenrequests.{GROUP}", validate=_request_violations, answers=answers)
    token = Subresource("token", verbs=("create",), question=request)
    return replace(SERVICE_ACCOUNT, subresources=(*SERVICE_ACCOUNT.subresources, token))
