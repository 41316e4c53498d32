"""Impersonation by the `Impersonate-*` headers, authorized as in Kubernetes.

The caller needs the verb `impersonate` on each claimed attribute: on `users` or `serviceaccounts`, on `groups`, and in the
group `authentication.k8s.io` on `uids` and `userextras/KEY`. The request then has the rights of the claimed identity alone. The
audit record also contains the real identity.

Source: the impersonation filter of k8s.io/apiserver, with two differences. Malformed headers get 400 with the reason instead of
500. An empty `Impersonate-User` is refused instead of ignored.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from aiohttp import web
from multidict import CIMultiDictProxy

from machinery.apiserver.access import ANONYMOUS, Attributes, Authorizer
from machinery.apiserver.authn.aggregation import Origin, extra_headers
from machinery.apiserver.http.filters import Incoming, Inner
from machinery.apiserver.http.status_errors import forbidden_request
from machinery.apiserver.storage import Actor
from machinery.errors import BadRequestError, ErrorSubject, ForbiddenError
from machinery.identity import AUTHENTICATED_GROUP, SERVICE_ACCOUNT_PREFIX, UNAUTHENTICATED_GROUP, service_account_groups
from machinery.sanitize import is_plain

PREFIX = "impersonate-"
USER, GROUP, UID = "Impersonate-User", "Impersonate-Group", "Impersonate-Uid"
EXTRA = "impersonate-extra-"
AUTHENTICATION = "authentication.k8s.io"
_SERVICE_ACCOUNT = re.compile(
    re.escape(SERVICE_ACCOUNT_PREFIX) + r"([a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?):([a-z0-9](?:[-.a-z0-9]*[a-z0-9])?)"
)

Never = Callable[[Actor], bool]
"""Returns whether an identity may never impersonate or be impersonated, regardless of the authorizer."""


@dataclass(frozen=True, slots=True)
class ImpersonatedUser:
    """The claimed identity of a request."""

    user: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def service_account(self) -> tuple[str, str] | None:
        """Namespace and name if the user is a service account; else None."""
        found = _SERVICE_ACCOUNT.fullmatch(self.user)
        return None if found is None else (found[1], found[2])

    def questions(self, path: str) -> Iterator[Attributes]:
        """Yield the permissions that the caller needs to act as this user. `path`: the path of the request."""
        if self.service_account is None:
            yield Attributes("impersonate", path, version="v1", resource="users", name=self.user)
        else:
            namespace, name = self.service_account
            yield Attributes("impersonate", path, version="v1", resource="serviceaccounts", namespace=namespace, name=name)
        for group in self.groups:
            yield Attributes("impersonate", path, version="v1", resource="groups", name=group)
        for key, values in self.extra.items():
            for value in values:
                yield Attributes("impersonate", path, AUTHENTICATION, "v1", "userextras", key, name=value)
        if self.uid:
            yield Attributes("impersonate", path, AUTHENTICATION, "v1", "uids", name=self.uid)

    def actor(self) -> Actor:
        """Return the claimed identity as an Actor, with the groups that Kubernetes adds, such as `system:authenticated`."""
        groups = self.groups
        if not groups and self.service_account is not None:
            groups = service_account_groups(self.service_account[0])
        if self.user == ANONYMOUS.user:
            added = () if UNAUTHENTICATED_GROUP in groups else (UNAUTHENTICATED_GROUP,)
        else:
            added = () if {AUTHENTICATED_GROUP, UNAUTHENTICATED_GROUP} & set(groups) else (AUTHENTICATED_GROUP,)
        return Actor(self.user, (*groups, *added), self.uid, self.extra)


class Impersonation:
    """The filter for the field `impersonation` of `Filters`. Requests without impersonation headers pass unchanged."""

    def __init__(self, authorizer: Authorizer, never: Never = lambda _actor: False) -> None:
        self._authorizer = authorizer
        self._never = never

    async def __call__(self, incoming: Incoming, inner: Inner) -> web.StreamResponse:
        claim = claimed(incoming.request.headers)
        if claim is not None:
            incoming.actor = await self._allowed(incoming, claim)
        return await inner(incoming)

    async def _allowed(self, incoming: Incoming, claim: ImpersonatedUser) -> Actor:
        asker, taken_for = incoming.actor, claim.actor()
        for one in (asker, taken_for):
            if self._never(one):
                raise ForbiddenError(f'User "{one.user}" is excluded from impersonation', subject=ErrorSubject())
        for asked in claim.questions(incoming.attributes.path):
            decision = await self._authorizer.authorize(asker, asked)
            if not decision.allowed:
                raise forbidden_request(asker, asked, decision.reason)
        return replace(taken_for, holder=asker.holder) if asker.holder is Origin.DELEGATED else taken_for


def claimed(headers: CIMultiDictProxy[str]) -> ImpersonatedUser | None:
    """Return the identity in the headers; None: no impersonation headers. Raises BadRequestError for malformed headers."""
    present = [name for name in headers if name.lower().startswith(PREFIX)]
    if not present:
        return None
    user = headers.get(USER, "")
    if not user:
        raise BadRequestError(f"{', '.join(sorted(set(present)))}: impersonation needs a user name in the header {USER}")
    extra = extra_headers(headers, (EXTRA,))
    if not all(is_plain(text) for text in (*extra, *(value for name in present for value in headers.getall(name)))):
        raise BadRequestError("the headers for impersonation are not valid text")
    return ImpersonatedUser(user, tuple(headers.getall(GROUP, ())), headers.get(UID, ""), extra)
