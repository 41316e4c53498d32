"""Authentication at the console's own listener: by the session whose secret is in the browser's cookie (ADR 0009).

The hub reads the session and its authenticator for each request, so that the end of either takes effect on every replica
immediately. Each replica sees this end in the change log, and then ends the open watches of the session.
"""

import re
from collections.abc import Mapping, Sequence
from functools import partial

from aiohttp import web

from hub.api.consolesessions import SECRET_LENGTH, ConsoleSession, name_of
from hub.api.logins import mark_of
from hub.api.meta.change import CONSOLE_SESSIONS, JWT_AUTHENTICATORS, Change
from hub.extensions.console.listener import is_console
from hub.https_door.callers.authentication import ExternalAuthenticator
from hub.ports import Store
from hub.registry import consolesessions
from machinery.apiserver.authn.chain import CREDENTIAL_ID, Identity, RequestAuthenticator, TokenChecks
from machinery.apiserver.authn.credential_end import Presence
from machinery.apiserver.storage import Actor
from machinery.errors import UnauthorizedError
from machinery.meta.objects import ChangeType
from machinery.runtime.informer import Informer

SESSION_COOKIE = "__Host-muster-session"
"""Because of the prefix, browsers accept the cookie only from this host over TLS, for all paths (RFC 6265bis)."""
MAX_COOKIES = 16 * 1024
"""Bytes of the header Cookie; a longer one is not parsed."""
MARKS = "console-session/"
_SECRET = re.compile(rf"[A-Za-z0-9_-]{{{SECRET_LENGTH}}}")


def is_same_origin(headers: Mapping[str, str], origin: str) -> bool:
    """Whether a page of `origin` sent the request. A request without the header Sec-Fetch-Site must have the header Origin."""
    site, sent_from = headers.get("Sec-Fetch-Site"), headers.get("Origin")
    if sent_from not in (None, origin):
        return False
    return sent_from == origin if site is None else site == "same-origin"


def cookie_of(request: web.Request, name: str) -> str | None:
    """Return the secret in the cookie `name`; None if the cookie is missing or has another form, or the header is too long."""
    if len(request.headers.get("Cookie", "")) > MAX_COOKIES:
        return None
    value = request.cookies.get(name, "")
    return value if _SECRET.fullmatch(value) else None


def actor_of(session: ConsoleSession) -> Actor:
    return Actor(session.user, session.groups, extra={CREDENTIAL_ID: (f"CONSOLE={session.name}",)})


class SessionAuthenticator(RequestAuthenticator, ExternalAuthenticator):
    """Authenticates requests by their session. `origin`: the origin of the console's URL."""

    tokens = None

    def __init__(self, store: Store, origin: str, checks: TokenChecks) -> None:
        self._store = store
        self._origin = origin
        self._checks = checks
        self._presence: Presence | None = None
        self._seen: set[tuple[str, tuple[str, int]]] = set()
        """Authenticators, with their marks, that may have open watches."""
        self.authenticator: RequestAuthenticator = self

    async def identify(self, request: web.Request) -> Identity | None:
        if not is_console(request):
            return None
        session = await self.find(request)
        self._seen.add((session.authenticator, session.mark))
        return Identity(actor_of(session), _mark_of(session), session.expires_at)

    async def find(self, request: web.Request) -> ConsoleSession:
        """Return the open console session of a request. Raises UnauthorizedError, TooManyRequestsError, UnavailableError."""
        if not is_same_origin(request.headers, self._origin):
            raise UnauthorizedError(f"only pages of {self._origin} may use this listener")
        secret = cookie_of(request, SESSION_COOKIE)
        if secret is None:
            raise UnauthorizedError("sign in to the console")
        async with self._checks.one(request.remote or "", secret):
            session = await self._store.read(consolesessions.find_open, name_of(secret))
            if session is None:
                raise UnauthorizedError("the session has ended: sign in to the console again")
        return session

    def bind(self, presence: Presence) -> None:
        self._presence = presence

    async def run(self) -> None:
        """Ends the watches of ended sessions until cancelled."""
        follow = partial(self._store.follow, kinds=(CONSOLE_SESSIONS, JWT_AUTHENTICATORS))
        await Informer("console sessions", follow, self._sync, self._take).run()

    async def _sync(self) -> int:
        """Ends all watches, because the end of a session may have been missed. Browsers open them again."""
        revision = await self._store.read(lambda tx: tx.changes.newest())
        self._end_under(MARKS)  # after the read: a session that ends in between is in the changes that follow
        return revision

    async def _take(self, changes: Sequence[Change]) -> None:
        for change in changes:
            is_deleted = change.type is ChangeType.DELETED
            if change.kind == JWT_AUTHENTICATORS:
                mark = None if is_deleted else mark_of(change.document)
                for each in [each for each in self._seen if each[0] == change.key.name and each[1] != mark]:
                    self._seen.discard(each)
                    self._end_under(_prefix(*each))
            elif is_deleted and self._presence is not None:
                self._presence.end(_mark_of(ConsoleSession.of(change.document)))

    def _end_under(self, prefix: str) -> None:
        if self._presence is not None:
            self._presence.end_under(prefix)


def _prefix(authenticator: str, mark: tuple[str, int]) -> str:
    return f"{MARKS}{authenticator}/{mark[0]}/{mark[1]}/"


def _mark_of(session: ConsoleSession) -> str:
    return _prefix(session.authenticator, session.mark) + session.name
