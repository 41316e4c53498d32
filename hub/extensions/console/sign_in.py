"""Sign-in to the console by OpenID Connect (code flow with PKCE), and sign-out, at the console's own listener.

    /console/login -> the issuer -> /console/callback?code&state -> /console/

Any replica can answer each step, because nothing is stored before the end: state, nonce and PKCE verifier are derived from a
random seed in a cookie of this browser. So a callback counts only in the browser that began the sign-in (no login CSRF), and
each sign-in gets a new session (no fixation). No step reads a URL from the request (no open redirect).

The issuer redirects the browser from another site. Browsers then send Lax cookies and no Strict ones. So the seed's cookie is
Lax, and lives for ten minutes. The session's cookie is Strict. The page at /console/ needs no cookie; its own requests send
the session's cookie.
"""

import hmac
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from html import escape
from http import HTTPStatus
from pathlib import Path

import structlog
from aiohttp import hdrs, web

from hub.api.auditrecords import LOGIN_FAILURE
from hub.api.consolesessions import MAX_LIFETIME, RESOURCE, VERSION, ConsoleSession, name_of
from hub.api.logins import JWT, AuthenticatorConfig, Login, Reference, admit_user, user_of_claims
from hub.audit.auditor import short
from hub.extensions.console.files import HEADERS, ROOT
from hub.extensions.console.listener import is_console
from hub.extensions.console.sessions import SESSION_COOKIE, SessionAuthenticator, actor_of, cookie_of
from hub.ports import Store
from hub.registry import authenticators, consolesessions
from machinery.apiserver.access import Attributes
from machinery.apiserver.authn.issuer_keys import HttpsDocuments, IssuerKeys
from machinery.apiserver.http.filters import Filter, Incoming, Inner, chained
from machinery.apiserver.http.limits import Rates, origin
from machinery.client.oidc import CodeFlow, base64url, identified, scope_of
from machinery.errors import ErrorSubject, ForbiddenError, MusterError, UnauthorizedError, UnavailableError
from machinery.observability.logs import LogOnce
from machinery.runtime.clock import Clock

LOGIN, CALLBACK, LOGOUT = (f"{ROOT}/{step}" for step in ("login", "callback", "logout"))
SEED_COOKIE = "__Host-muster-login"
SEED_LIFETIME = timedelta(minutes=10)
MAX_CODE, MAX_TOKEN = 4096, 64 * 1024
FAILED = "The sign-in failed."
OTHER_BROWSER = "This sign-in did not begin in this browser, or it took longer than ten minutes."
NO_ISSUER = "The hub cannot reach the issuer now. Its log has the reason."
FROM_ELSEWHERE = "Another site has sent you here. Open the console, and sign in there."
CREDENTIALS = ("authorization", "impersonate-", "x-remote-")
"""Prefixes of headers that the listener refuses, because its only credential is the session."""
API_POLICY = "default-src 'none'; frame-ancestors 'none'"
HSTS = f"max-age={365 * 24 * 3600}"
"""For the listener's host only, because its subdomains may be served without TLS."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ClientTerms:
    """The console as a client of the issuer. `authenticator`: name of the JWTAuthenticator; its audience is the client id."""

    authenticator: str
    redirect_uri: str
    scopes: tuple[str, ...] = ()
    secret_file: Path | None = None


class OidcClient:
    """OpenID Connect client for the JWTAuthenticator of `terms`. Each sign-in reads this object from the database."""

    def __init__(self, store: Store, terms: ClientTerms, clock: Clock) -> None:
        self._store = store
        self._terms = terms
        self._clock = clock
        self._kept: tuple[AuthenticatorConfig, HttpsDocuments, IssuerKeys] | None = None

    async def url(self, seed: str) -> str:
        """Return the URL of the issuer's page for a sign-in with this seed. Raises MusterError."""
        config, _documents, keys = await self._issuer()
        return self._flow(config, seed).url(await keys.endpoint("authorization_endpoint"))

    async def login(self, seed: str, code: str) -> tuple[Login, AuthenticatorConfig, datetime]:
        """Return user, authenticator and session end for a code. Raises UnauthorizedError, UnavailableError, InvalidError."""
        config, documents, keys = await self._issuer()
        flow, claims = self._flow(config, seed), config.claims
        form, authorization = identified(flow.form(code), flow.client_id, self._secret())
        token = (await documents.post_form(await keys.endpoint("token_endpoint"), form, authorization)).get("id_token")
        if not isinstance(token, str) or len(token) > MAX_TOKEN or claims is None:
            raise UnauthorizedError("the issuer answers without a usable ID token")
        found = await keys.verified(token)
        user = user_of_claims(found, claims, self._clock.now())
        if not hmac.compare_digest(str(found.get("nonce") or "").encode(), flow.nonce.encode()):
            raise UnauthorizedError("the ID token is of another sign-in (nonce)")
        if found.get("azp", flow.client_id) != flow.client_id:
            raise UnauthorizedError("the ID token was issued to another client (azp)")
        last = (self._clock.now() + MAX_LIFETIME).timestamp()
        return admit_user(user, config.operator_groups), config, datetime.fromtimestamp(min(float(found["exp"]), last), UTC)

    async def _issuer(self) -> tuple[AuthenticatorConfig, HttpsDocuments, IssuerKeys]:
        config = await self._store.read(authenticators.authenticator, Reference(JWT, self._terms.authenticator))
        if config is None:
            raise UnavailableError(f'there is no JWTAuthenticator "{self._terms.authenticator}" (console_authenticator)')
        if self._kept is None or self._kept[0].mark != config.mark:
            documents = HttpsDocuments.with_authorities(config.authorities)
            self._kept = config, documents, IssuerKeys(config.address, documents, self._clock)
        return self._kept

    def _flow(self, config: AuthenticatorConfig, seed: str) -> CodeFlow:
        client_id = config.claims.audience if config.claims is not None else ""
        parts = (secret_of(seed, part) for part in ("verifier", "state", "nonce"))
        return CodeFlow(client_id, self._terms.redirect_uri, scope_of(self._terms.scopes), *parts)

    def _secret(self) -> str | None:
        path = self._terms.secret_file
        try:
            return None if path is None else path.read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UnavailableError(f"the client secret in {path} cannot be read: {type(error).__name__}") from None


def secret_of(seed: str, part: str) -> str:
    """Return the state, nonce or verifier (`part`) of the sign-in with this seed. The result does not reveal the seed."""
    return base64url(hmac.digest(seed.encode(), part.encode(), "sha256"))


class SignIn:
    """Filter before authentication, for the console's listener only.

    `audit`: filters around a sign-in and a sign-out, which are recorded as the create and the delete of a ConsoleSession.
    `rates`: limit of sign-ins per address. `group`: API group of ConsoleSessions.
    """

    def __init__(
        self,
        client: OidcClient,
        store: Store,
        sessions: SessionAuthenticator,
        *,
        audit: tuple[Filter, ...],
        rates: Rates,
        group: str,
    ) -> None:
        self._client = client
        self._store = store
        self._sessions = sessions
        self._rates = rates
        self._attributes = Attributes("create", CALLBACK, group, VERSION, RESOURCE)
        self._begin_audited, self._end_audited = chained(audit, self._begin), chained(audit, self._end)
        self._failure = LogOnce(log)
        self._steps: dict[tuple[str, str], Callable[[Incoming], Awaitable[web.StreamResponse]]] = {
            ("GET", LOGIN): self._login,
            ("GET", CALLBACK): self._callback,
            ("POST", LOGOUT): self._logout,
        }

    async def __call__(self, incoming: Incoming, inner: Inner) -> web.StreamResponse:
        request = incoming.request
        if not is_console(request):
            return await inner(incoming)
        incoming.on_headers.append(_protect)
        if any(name.lower().startswith(CREDENTIALS) for name in request.headers):
            raise ForbiddenError("this listener accepts only the session of a console", subject=ErrorSubject())
        incoming.shows_session = cookie_of(request, SESSION_COOKIE) is not None
        step = self._steps.get((request.method, request.path))
        return await (inner if step is None else step)(incoming)

    async def _login(self, incoming: Incoming) -> web.StreamResponse:
        request, seed = incoming.request, secrets.token_urlsafe(32)
        self._rates.check(origin(request.remote or ""))
        if request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            return _page(HTTPStatus.FORBIDDEN, FROM_ELSEWHERE)
        try:
            response = _redirect(await self._client.url(seed))
        except MusterError as error:
            self._failure.warning("nobody can sign in to the console now", error)
            return _page(HTTPStatus.SERVICE_UNAVAILABLE, NO_ISSUER)
        self._failure.reset()
        lifetime = int(SEED_LIFETIME.total_seconds())
        response.set_cookie(SEED_COOKIE, seed, max_age=lifetime, secure=True, httponly=True, samesite="Lax")
        return response

    async def _callback(self, incoming: Incoming) -> web.StreamResponse:
        request = incoming.request
        self._rates.check(origin(request.remote or ""))
        seed, state = cookie_of(request, SEED_COOKIE), request.query.get("state", "")
        if seed is None or not hmac.compare_digest(secret_of(seed, "state").encode(), state.encode()):
            return _page(HTTPStatus.FORBIDDEN, OTHER_BROWSER)
        incoming.attributes = self._attributes
        try:
            response = await self._begin_audited(incoming)
        except UnauthorizedError:
            response = _page(HTTPStatus.UNAUTHORIZED, f"{FAILED} The hub's audit record {incoming.audit_id} has the reason.")
        response.del_cookie(SEED_COOKIE, secure=True, httponly=True, samesite="Lax")
        return response

    async def _begin(self, incoming: Incoming) -> web.Response:
        """Begin a session of the user. Raises UnauthorizedError without the reason, which is in the audit record."""
        request = incoming.request
        seed, code = cookie_of(request, SEED_COOKIE) or "", request.query.get("code", "")
        try:
            if not 0 < len(code) <= MAX_CODE:
                raise UnauthorizedError(f"the issuer refuses: {request.query.get('error') or 'it sends no code'}")
            login, config, ends = await self._client.login(seed, code)
        except MusterError as error:
            incoming.annotations[LOGIN_FAILURE] = short(error.message)
            raise UnauthorizedError(FAILED) from None
        secret, address = secrets.token_urlsafe(32), origin(request.remote or "")
        session = ConsoleSession(name_of(secret), login.user, login.groups, config.name, config.mark, ends, address)
        incoming.actor = incoming.authenticated = actor_of(session)
        await self._store.run(consolesessions.begin, session)
        response = _redirect(f"{ROOT}/")
        response.set_cookie(SESSION_COOKIE, secret, secure=True, httponly=True, samesite="Strict")
        return response

    async def _logout(self, incoming: Incoming) -> web.StreamResponse:
        incoming.attributes = replace(self._attributes, verb="delete", path=LOGOUT)
        return await self._end_audited(incoming)

    async def _end(self, incoming: Incoming) -> web.Response:
        session = await self._sessions.find(incoming.request)
        incoming.actor = incoming.authenticated = actor_of(session)
        incoming.attributes = replace(incoming.attributes, name=session.name)
        await self._store.run(consolesessions.end, session.name, session.user)
        response = web.Response(status=HTTPStatus.NO_CONTENT, headers=HEADERS)
        response.del_cookie(SESSION_COOKIE, secure=True, httponly=True, samesite="Strict")
        return response


def _protect(response: web.StreamResponse) -> None:
    """Add the security headers of the console's files to answers of the API."""
    for name in ("X-Content-Type-Options", "X-Frame-Options", "Referrer-Policy", "Cross-Origin-Resource-Policy"):
        response.headers.setdefault(name, HEADERS[name])
    response.headers.setdefault("Content-Security-Policy", API_POLICY)
    response.headers["Strict-Transport-Security"] = HSTS


def _redirect(url: str) -> web.Response:
    return web.Response(status=HTTPStatus.SEE_OTHER, headers={**HEADERS, hdrs.CACHE_CONTROL: "no-store", hdrs.LOCATION: url})


def _page(status: HTTPStatus, text: str) -> web.Response:
    body = (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Muster</title>'
        f'<main><p>{escape(text)}</p><p><a href="{ROOT}/">Open the console</a></p></main></html>'
    )
    return web.Response(status=status, text=body, content_type="text/html", headers={**HEADERS, hdrs.CACHE_CONTROL: "no-store"})
