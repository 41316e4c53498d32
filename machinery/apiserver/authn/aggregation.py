"""Users and rights of another kube-apiserver, by its aggregation layer, its TokenReviews and its SubjectAccessReviews.

As a front proxy, that server identifies itself by a client certificate and names the user in headers. The results of reviews
are cached for 10 s, as in Kubernetes' delegating servers; tokens are cached as hashes. If a review fails with an error, the
request is refused. Sources: the ConfigMap `kube-system/extension-apiserver-authentication`, k8s.io/apiserver's request header
authenticator.
"""

import json
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from hashlib import sha256
from typing import Any, Generic, TypeVar
from urllib.parse import unquote

import structlog
from aiohttp import web
from multidict import CIMultiDictProxy

from machinery.apiserver.access import OPEN_PATHS, Attributes, Authorizer, Decision
from machinery.apiserver.authn.authorities import TrustedAuthorities
from machinery.apiserver.authn.chain import Identity, RequestAuthenticator, TokenAuthenticator
from machinery.apiserver.storage import Actor
from machinery.errors import InvalidError, MusterError, UnauthorizedError
from machinery.identity import OPERATOR_GROUP, is_reserved
from machinery.runtime.clock import Clock
from machinery.sanitize import is_plain


class Origin(Enum):
    """Values of `Actor.holder` that mark users whose rights another API server decides."""

    DELEGATED = "delegated"


@dataclass(frozen=True, slots=True)
class Trust:
    """Trusted proxies: CAs `authorities` (PEM) and CNs `names`; empty: any CN. `users`, `groups`, `uids`: header names."""

    authorities: bytes = b""
    names: frozenset[str] = frozenset()
    users: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    uids: tuple[str, ...] = ()
    extras: tuple[str, ...] = field(default=())
    """Prefixes of headers with further attributes. The rest of a header's name is the key of the attribute."""

    @classmethod
    def of_config_map(cls, config_map: Mapping[str, Any]) -> "Trust":
        """Parse `extension-apiserver-authentication`. Raises InvalidError with the names of missing entries."""
        entries = config_map.get("data") or {}
        authorities = str(entries.get("requestheader-client-ca-file", ""))
        users = _names(entries, "requestheader-username-headers")
        if not authorities or not users:
            raise InvalidError("the ConfigMap names no requestheader-client-ca-file or no requestheader-username-headers")
        return cls(
            authorities.encode(),
            frozenset(_names(entries, "requestheader-allowed-names")),
            users,
            _names(entries, "requestheader-group-headers"),
            _names(entries, "requestheader-uid-headers"),
            _names(entries, "requestheader-extra-headers-prefix"),
        )


def _names(entries: Mapping[str, Any], key: str) -> tuple[str, ...]:
    try:
        names = json.loads(entries.get(key) or "[]")
    except ValueError:
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InvalidError(f"{key} is not a list of names")
    return tuple(names)


def extra_headers(headers: CIMultiDictProxy[str], prefixes: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return further attributes of a user, from headers with these prefixes. Key: the header's name without the prefix."""
    extra: dict[str, tuple[str, ...]] = {}
    for name, value in headers.items():
        for prefix in (each for each in prefixes if name.lower().startswith(each.lower())):
            key = unquote(name[len(prefix) :].lower())
            extra[key] = (*extra.get(key, ()), value)
    return extra


class FrontProxy(RequestAuthenticator):
    """Authenticates the users that a front proxy names in headers. Trusts no proxy until `set_trust` is called."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._trust = Trust()
        self._authorities = TrustedAuthorities()

    @property
    def trust(self) -> Trust:
        return self._trust

    def set_trust(self, trust: Trust) -> frozenset[str]:
        """Set the trusted proxies. Return the fingerprints of removed CAs. Raises InvalidError and then changes nothing."""
        gone = self._authorities.replace(trust.authorities)
        self._trust = trust
        return gone

    async def identify(self, request: web.Request) -> Identity | None:
        signed = self._authorities.presented(request)
        if signed is None:
            return None
        facts, name = signed.facts, signed.facts.subject.common_name
        if not facts.not_before <= self._clock.now() <= facts.not_after:
            raise UnauthorizedError("the proxy's certificate is not valid now")
        if self._trust.names and name not in self._trust.names:
            raise UnauthorizedError(f"x509: subject with cn={name[:80]} is not in the allowed list")
        actor = self._named(request)
        if actor is None:
            return None
        if is_reserved(actor.user, actor.groups):
            raise UnauthorizedError(f'a proxy cannot speak for "{actor.user[:80]}": agents connect directly')
        return Identity(actor, signed.mark, facts.not_after)

    def _named(self, request: web.Request) -> Actor | None:
        """Return the user in the headers; None: no user. Raises UnauthorizedError."""
        headers, trust = request.headers, self._trust
        user = next((headers[name] for name in trust.users if headers.get(name)), "")
        if not user:
            return None
        groups = tuple(value for name in trust.groups for value in headers.getall(name, ()) if value)
        uid = next((headers[name] for name in trust.uids if headers.get(name)), "")
        extra = extra_headers(headers, trust.extras)
        texts = (user, uid, *groups, *extra, *(value for values in extra.values() for value in values))
        if not all(is_plain(text) for text in texts):
            raise UnauthorizedError("the proxy's headers are not valid text")
        return Actor(user, groups, uid, extra, holder=Origin.DELEGATED)


CACHE_TTL = timedelta(seconds=10)
MAX_CACHED = 10_000

Review = Callable[[str, Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
"""Creates a review (kind, spec) and returns its status. Raises MusterError."""

V = TypeVar("V")

log = structlog.get_logger(__name__)


class _Kept(Generic[V]):
    """A cache whose entries expire after `CACHE_TTL`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: dict[Hashable, tuple[V, float]] = {}

    def get(self, key: Hashable) -> V | None:
        value, until = self._entries.get(key, (None, 0.0))
        return value if self._clock.monotonic() < until else None

    def keep(self, key: Hashable, value: V) -> V:
        if len(self._entries) >= MAX_CACHED:
            self._entries.clear()
        self._entries[key] = value, self._clock.monotonic() + CACHE_TTL.total_seconds()
        return value


class DelegatedTokens(TokenAuthenticator):
    """Authenticates tokens by TokenReviews of another API server. Raises UnavailableError while that server is unavailable."""

    def __init__(self, review: Review, clock: Clock) -> None:
        self._review = review
        self._kept: _Kept[Identity | UnauthorizedError] = _Kept(clock)

    async def identify(self, token: str, audiences: Sequence[str]) -> Identity | None:
        if not token:
            return None
        key = sha256(token.encode()).hexdigest(), tuple(audiences)
        outcome = self._kept.get(key)
        if outcome is None:
            asked = {"token": token, **({"audiences": list(audiences)} if audiences else {})}
            outcome = self._kept.keep(key, _identity(await self._review("TokenReview", asked)))
        if isinstance(outcome, UnauthorizedError):
            raise UnauthorizedError(outcome.message)
        return outcome


def _identity(status: Mapping[str, Any]) -> Identity | UnauthorizedError:
    user = status.get("user") or {}
    if not status.get("authenticated") or not user.get("username"):
        return UnauthorizedError(str(status.get("error") or "invalid bearer token"))
    extra = {key: tuple(values) for key, values in (user.get("extra") or {}).items()}
    groups = tuple(user.get("groups") or ())
    if is_reserved(user["username"], groups):
        return UnauthorizedError(f'"{user["username"][:80]}" is known by the hub\'s own records alone')
    actor = Actor(user["username"], groups, user.get("uid", ""), extra, holder=Origin.DELEGATED)
    return Identity(actor, f"delegated/{actor.user}", audiences=tuple(status.get("audiences") or ()))


class DelegatedAuthorizer(Authorizer):
    """Authorizes another API server's users by its SubjectAccessReviews; system:masters may do all. `own` authorizes others."""

    def __init__(self, own: Authorizer, review: Review, clock: Clock) -> None:
        self._own = own
        self._review = review
        self._kept: _Kept[Decision] = _Kept(clock)

    async def authorize(self, actor: Actor, attributes: Attributes) -> Decision:
        if actor.holder is not Origin.DELEGATED:
            return await self._own.authorize(actor, attributes)
        if OPERATOR_GROUP in actor.groups or (not attributes.resource and attributes.path in OPEN_PATHS):
            return Decision(allowed=True)
        spec = access_spec(actor, attributes)
        key = repr(spec)
        return self._kept.get(key) or await self._asked(key, spec)

    async def _asked(self, key: str, spec: Mapping[str, Any]) -> Decision:
        try:
            status = await self._review("SubjectAccessReview", spec)
        except MusterError as error:
            log.warning("the management cluster does not answer the access review", error=error.message)
            return Decision(allowed=False, reason="the management cluster does not answer now")
        allowed = bool(status.get("allowed")) and not status.get("denied")
        return self._kept.keep(key, Decision(allowed, str(status.get("reason") or "")))


def access_spec(actor: Actor, asked: Attributes) -> dict[str, Any]:
    """Return the spec of the SubjectAccessReview about a request of `actor` with the attributes `asked`."""
    spec: dict[str, Any] = {"user": actor.user, "groups": list(actor.groups)}
    if actor.uid:
        spec["uid"] = actor.uid
    if actor.extra:
        spec["extra"] = {key: list(values) for key, values in actor.extra.items()}
    if not asked.resource:
        return {**spec, "nonResourceAttributes": {"path": asked.path, "verb": asked.verb}}
    named = ("namespace", "verb", "group", "version", "resource", "subresource", "name")
    return {**spec, "resourceAttributes": {field: getattr(asked, field) for field in named if getattr(asked, field)}}
