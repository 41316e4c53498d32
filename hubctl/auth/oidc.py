"""Obtains tokens from an OpenID Connect issuer: in a browser, with client credentials, or with a refresh token.

The browser login is the authorization code flow with PKCE and a redirect to this machine. Programs use client credentials.
Sources: those of `machinery.client.oidc`, and RFC 8252 (native apps: a loopback redirect on a free port).
"""

import hmac
import json
import os
import secrets
import ssl
import time
import urllib.error
import urllib.request
import webbrowser
from collections.abc import Callable, Iterable, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from hubctl.errors import CommandError, UsageError
from machinery.client.oidc import CodeFlow, identified, scope_of
from machinery.client.proxy import https_proxy_for

REQUEST_TIMEOUT = 15.0
LOGIN_TIMEOUT = 300.0
"""Seconds to wait for the user at the browser. REQUEST_TIMEOUT: seconds to wait for an answer of the issuer."""
MAX_ANSWER = 512 * 1024
DONE_PAGE = b"<!doctype html><title>hubctl</title><p>Login complete. You may close this window."
REFUSED_PAGE = b"<!doctype html><title>hubctl</title><p>hubctl does not expect this answer."


class OidcIssuer:
    """An issuer, of which hubctl is a registered client. Failures raise CommandError without any token or secret."""

    def __init__(
        self, issuer: str, client_id: str, scopes: Iterable[str] = (), *, secret_file: str | None, ca_file: str | None
    ) -> None:
        """`scopes`: beside openid. `secret_file` None: no client secret. `ca_file`: PEM; None: this machine's CAs."""
        self._issuer = issuer
        self._client_id = client_id
        self._scope = scope_of(scopes)
        self._secret_file = secret_file
        try:
            self._context = ssl.create_default_context(cafile=ca_file)
        except (OSError, ssl.SSLError):
            raise UsageError(f"--oidc-ca {ca_file} cannot be read: expected CAs in PEM") from None
        self._configuration: Mapping[str, Any] = {}

    def by_client_credentials(self) -> dict[str, Any]:
        return self._tokens({"grant_type": "client_credentials", "scope": self._scope})

    def by_refresh(self, token: str) -> dict[str, Any]:
        """Return tokens for a refresh token. The answer may contain a new refresh token."""
        return {"refresh_token": token, **self._tokens({"grant_type": "refresh_token", "refresh_token": token})}

    def by_browser(self, show: Callable[[str], None], *, browser: bool) -> dict[str, Any]:
        """Return tokens for the user at the browser. `show` gets the URL for the login. `browser`: also open the URL."""
        verifier, state, nonce = (secrets.token_urlsafe(48) for _ in range(3))
        with _Redirect(state) as redirect:
            flow = CodeFlow(self._client_id, redirect.uri, self._scope, verifier, state, nonce)
            address = flow.url(self._endpoint("authorization_endpoint"))
            show(address)
            if browser:
                webbrowser.open(address)
            return self._tokens(flow.form(redirect.code()))

    def _tokens(self, form: Mapping[str, str]) -> dict[str, Any]:
        secret = None
        if self._secret_file is not None:
            try:
                secret = Path(self._secret_file).expanduser().read_text("utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise CommandError(f"the client secret in {self._secret_file} cannot be read: {error}") from None
        named, authorization = identified(form, self._client_id, secret)
        answer = self._request(self._endpoint("token_endpoint"), named, authorization)
        if not isinstance(answer.get("id_token") or answer.get("access_token"), str):
            raise CommandError(f"the issuer {self._issuer} answers without a token: is openid among --oidc-scope?")
        return answer

    def _endpoint(self, name: str) -> str:
        if not self._configuration:
            self._configuration = self._request(self._issuer.rstrip("/") + "/.well-known/openid-configuration")
            named = self._configuration.get("issuer")
            if named != self._issuer:
                raise CommandError(f"--oidc-issuer {self._issuer} identifies itself as {str(named)[:200]!r}")
        endpoint = self._configuration.get(name)
        if not isinstance(endpoint, str) or not endpoint.startswith("https://"):
            raise CommandError(f"the issuer {self._issuer} has no https:// URL for its {name}")
        return endpoint

    def _request(self, url: str, form: Mapping[str, str] | None = None, authorization: str = "") -> dict[str, Any]:
        if not url.startswith("https://"):
            raise UsageError(f"the issuer {url} is not an https:// URL")
        headers = {"Accept": "application/json", **({"Authorization": authorization} if authorization else {})}
        request = urllib.request.Request(url, urlencode(form).encode() if form else None, headers)  # noqa: S310 - https alone
        proxy = https_proxy_for(url, os.environ)
        handlers = (urllib.request.ProxyHandler({"https": proxy} if proxy else {}), _NoRedirects())
        opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=self._context), *handlers)
        host = urlsplit(url).netloc
        try:
            with opener.open(request, timeout=REQUEST_TIMEOUT) as response:
                document = json.loads(response.read(MAX_ANSWER))
        except urllib.error.HTTPError as error:
            has_ended = error.code in (400, 403) and "refresh_token" in (form or ())  # 400: RFC 6749, 5.2; 403: Auth0
            remedy = ": run `hubctl login` again" if has_ended else ""
            raise CommandError(f"the issuer at {host} refuses (HTTP {error.code}{_reason(error)}){remedy}") from None
        except urllib.error.URLError as error:
            raise CommandError(f"the issuer at {host} cannot be reached: {_why(error.reason)}") from None
        except (OSError, ValueError) as error:
            raise CommandError(f"the issuer at {host} returns an invalid answer: {type(error).__name__}") from None
        if not isinstance(document, dict):
            raise CommandError(f"the issuer at {host} returns an invalid answer")
        return document


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, so that secrets are sent only to the intended host."""

    def redirect_request(self, *_args: Any, **_kwargs: Any) -> None:
        return None


def _reason(error: urllib.error.HTTPError) -> str:
    """Return the OAuth error code, as the rest of a sentence; empty if the answer has no plausible one."""
    try:
        code = json.loads(error.read(MAX_ANSWER)).get("error")
    except (OSError, ValueError, AttributeError):
        return ""
    return f", {code}" if isinstance(code, str) and code.replace("_", "").isalpha() and len(code) < 60 else ""  # noqa: PLR2004


def _why(reason: object) -> str:
    if isinstance(reason, ssl.SSLCertVerificationError):
        return f"its certificate is not valid ({reason.verify_message}); set --oidc-ca for a private CA"
    return str(getattr(reason, "strerror", None) or type(reason).__name__)


class _Redirect(HTTPServer):
    """The target of the browser's redirect: a server on the loopback address that accepts one answer with the right state."""

    def __init__(self, state: str) -> None:
        super().__init__(("127.0.0.1", 0), _Page)
        self.uri = f"http://127.0.0.1:{self.server_port}/callback"
        self.state = state
        self.answer: Mapping[str, str] = {}

    def code(self) -> str:
        """Wait for the code. Raises CommandError."""
        ends = time.monotonic() + LOGIN_TIMEOUT
        while not self.answer:
            self.timeout = ends - time.monotonic()
            if self.timeout <= 0:
                raise CommandError(f"no login in the browser within {LOGIN_TIMEOUT:g} s")
            self.handle_request()
        if "code" not in self.answer:
            raise CommandError(f"the issuer refuses: {self.answer.get('error', 'no code')[:100]}")
        return self.answer["code"]


class _Page(BaseHTTPRequestHandler):
    server: _Redirect

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        state = query.get("state", "").encode()
        good = parts.path == "/callback" and hmac.compare_digest(state, self.server.state.encode())
        if good:
            self.server.answer = query
        self.send_response(200 if good else 400)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(DONE_PAGE if good else REFUSED_PAGE)

    def log_message(self, *_args: Any) -> None:
        """Log nothing, because the path contains the code."""
