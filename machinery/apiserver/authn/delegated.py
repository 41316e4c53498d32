"""Delegated authentication and authorization by another API server. Results are cached; failures deny.

Results are cached for 10 s, as in Kubernetes' delegating servers. Tokens are cached as hashes.
"""

from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from typing import Any, Generic, TypeVar

import structlog

from machinery.apiserver.access import OPEN_PATHS, Attributes, Authorizer, Decision
from machinery.apiserver.authn.front_proxy import Origin
from machinery.apiserver.authn.identity import Identity, TokenAuthenticator
from machinery.apiserver.storage import Actor
from machinery.errors import MusterError, UnauthorizedError
from machinery.identity import OPERATOR_GROUP, is_reserved
from machinery.runtime.clock import Clock

KEPT = timedelta(seconds=10)
MAX_KEPT = 10_000

Review = Callable[[str, Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
"""Creates a review (kind, spec) and returns its status. Raises MusterError."""

V = TypeVar("V")

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Answer(Generic[V]):
    value: V
    until: float


class _Kept(Generic[V]):
    """A cache whose entries expire after `KEPT`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._answers: dict[Hashable, _Answer[V]] = {}

    def get(self, key: Hashable) -> V | None:
        answer = self._answers.get(key)
        return answer.value if answer is not None and self._clock.monotonic() < answer.until else None

    def keep(self, key: Hashable, value: V) -> V:
        if len(self._answers) >= MAX_KEPT:
            self._answers.clear()
        self._answers[key] = _Answer(value, self._clock.monotonic() + KEPT.total_seconds())
        return value


class DelegatedTokens(TokenAuthenticator):
    """Tokens of another API server. While it is unavailable, its UnavailableError refuses the request."""

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
    """Authorizes users of another API server by its reviews, and all others by `own`."""

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
            log.warning("the management cluster cannot be asked for access", error=error.message)
            return Decision(allowed=False, reason="the management cluster cannot be asked now")
        allowed = bool(status.get("allowed")) and not status.get("denied")
        return self._kept.keep(key, Decision(allowed, str(status.get("reason") or "")))


def access_spec(actor: Actor, asked: Attributes) -> dict[str, Any]:
    """Spec of the SubjectAccessReview."""
    spec: dict[str, Any] = {"user": actor.user, "groups": list(actor.groups)}
    if actor.uid:
        spec["uid"] = actor.uid
    if actor.extra:
        spec["extra"] = {key: list(values) for key, values in actor.extra.items()}
    if not asked.resource:
        return {**spec, "nonResourceAttributes": {"path": asked.path, "verb": asked.verb}}
    named = ("namespace", "verb", "group", "version", "resource", "subresource", "name")
    return {**spec, "resourceAttributes": {field: getattr(asked, field) for field in named if getattr(asked, field)}}
