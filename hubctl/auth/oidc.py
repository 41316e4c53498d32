"""Obtains tokens from an OpenID Connect issuer: in a browser, with client credentials, or with a refresh token.

The browser flow is the authorization code with PKCE and a redirect to this machine; programs use client credentials.
Sources: RFC 6749, RFC 7636 (PKCE), RFC 8252 (native apps: a loopback redirect on a free port), OpenID Connect Core 1.0.
"""

import base64
import hmac
import json
import secrets
import ssl
import urllib.error
import urllib.request
import webbrowser
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, quote, urlencode, urlsplit

from hubctl.errors import CommandError

TIMEOUT = 15.0
WAIT = 300.0
"""Seconds to wait for an answer of the issuer, and for a person at the browser."""
MAX_ANSWER = 512 * 1024
DONE = b"<!doctype html><title>hubctl</title><p>You may close this window: hubctl goes on."
REFUSED = b"<!doctype html><title>hubctl</title><p>This is not the answer that hubctl waits for."


@dataclass(frozen=True, slots=True)
class Client:
    """An issuer, and hubctl's registration as its client."""

    issuer: str
    client_id: str
    secret_file: str | None = None
    ca_file: str | None = None
    scopes: tuple[str, ...] = ("openid",)

    def secret(self) -> str | None:
        if self.secret_file is None:
            return None
        try:
            return Path(self.secret_file).expanduser().read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise CommandError(f"the client secret in {self.secret_file} cannot be read: {error}") from None


class OidcIssuer:
    """Client of an issuer. Every failure is a CommandError that contains no token or secret."""

    def __init__(self, client: Client) -> None:
        self._client = client
        try:
            self._context = ssl.create_default_context(cafile=client.ca_file)
        except (OSError, ssl.SSLError):
            raise CommandError(f"--oidc-ca {client.ca_file} cannot be read: expected CAs in PEM", code=2) from None
        self._found: Mapping[str, Any] = {}

    def by_client_credentials(self) -> dict[str, Any]:
        """Tokens for the client itself."""
        return self._tokens({"grant_type": "client_credentials", "scope": " ".join(self._client.scopes)})

    def by_refresh(self, token: str) -> dict[str, Any]:
        """Tokens for the identity of an earlier one; the issuer may have replaced the refresh token."""
        return {"refresh_token": token, **self._tokens({"grant_type": "refresh_token", "refresh_token": token})}

    def by_browser(self, show: Callable[[str], None], *, browser: bool) -> dict[str, Any]:
        """Tokens for the person at the browser. `show` is called with the URL to open."""
        verifier, state, nonce = (secrets.token_urlsafe(48) for _ in range(3))
        challenge = base64.urlsafe_b64encode(sha256(verifier.encode()).digest()).rstrip(b"=").decode()
        with _Redirect(state) as redirect:
            asked = {
                "response_type": "code",
                "client_id": self._client.client_id,
                "redirect_uri": redirect.uri,
                "scope": " ".join(self._client.scopes),
                "state": state,
                "nonce": nonce,
                "code_challenge": challenge,
                "code_challenge_method": "S256",
            }
            address = self._endpoint("authorization_endpoint")
            address += ("&" if urlsplit(address).query else "?") + urlencode(asked)
            show(address)
            if browser:
                webbrowser.open(address)
            code = redirect.code()
            form = {"grant_type": "authorization_code", "code": code, "redirect_uri": redirect.uri, "code_verifier": verifier}
            return self._tokens(form)

    def _tokens(self, form: Mapping[str, str]) -> dict[str, Any]:
        client, secret = self._client, self._client.secret()
        headers = {}
        if secret is None:
            form = {**form, "client_id": client.client_id}
        else:
            pair = f"{quote(client.client_id, safe='')}:{quote(secret, safe='')}"
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        answer = self._ask(self._endpoint("token_endpoint"), urlencode(form).encode(), headers)
        if not isinstance(answer.get("id_token") or answer.get("access_token"), str):
            raise CommandError(f"the issuer {client.issuer} answers without a token: is openid among --oidc-scope?")
        return answer

    def _endpoint(self, name: str) -> str:
        if not self._found:
            self._found = self._ask(self._client.issuer.rstrip("/") + "/.well-known/openid-configuration")
            if self._found.get("issuer") != self._client.issuer:
                raise CommandError(
                    f"--oidc-issuer {self._client.issuer} says that it is {str(self._found.get('issuer'))[:200]!r}"
                )
        endpoint = self._found.get(name)
        if not isinstance(endpoint, str) or not endpoint.startswith("https://"):
            raise CommandError(f"the issuer {self._client.issuer} names no {name} with https://")
        return endpoint

    def _ask(self, url: str, body: bytes | None = None, headers: Mapping[str, str] | None = None) -> dict[str, Any]:
        if not url.startswith("https://"):
            raise CommandError(f"the issuer {url} is no https:// address", code=2)
        request = urllib.request.Request(url, body, {"Accept": "application/json", **(headers or {})})  # noqa: S310 - https alone
        opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=self._context), _NoRedirects())
        host = urlsplit(url).netloc
        try:
            with opener.open(request, timeout=TIMEOUT) as response:
                document = json.loads(response.read(MAX_ANSWER))
        except urllib.error.HTTPError as error:
            raise CommandError(f"the issuer at {host} refuses (HTTP {error.code}{_reason(error)})") from None
        except urllib.error.URLError as error:
            raise CommandError(f"the issuer at {host} cannot be asked: {_why(error.reason)}") from None
        except (OSError, ValueError) as error:
            raise CommandError(f"the issuer at {host} gives no answer that can be read: {type(error).__name__}") from None
        if not isinstance(document, dict):
            raise CommandError(f"the issuer at {host} gives no answer that can be read")
        return document


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, so that a secret is sent only to the intended host."""

    def redirect_request(self, *_args: Any, **_kwargs: Any) -> None:
        return None


def _reason(error: urllib.error.HTTPError) -> str:
    """The OAuth error code, if the answer has a plausible one."""
    try:
        code = json.loads(error.read(MAX_ANSWER)).get("error")
    except (OSError, ValueError, AttributeError):
        return ""
    return f", {code}" if isinstance(code, str) and code.replace("_", "").isalpha() and len(code) < 60 else ""  # noqa: PLR2004


def _why(reason: object) -> str:
    if isinstance(reason, ssl.SSLCertVerificationError):
        return f"its certificate is not good ({reason.verify_message}); --oidc-ca names the CA of an own issuer"
    return str(getattr(reason, "strerror", None) or type(reason).__name__)


class _Redirect:
    """The target of the browser's redirect: a port of the loopback address that accepts one answer with the right state."""

    def __init__(self, state: str) -> None:
        self._state = state
        self._code: str | None = None
        self._failure: str | None = None

    def __enter__(self) -> Self:
        redirect = self

        class Page(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                good = redirect.take(self.path)
                self.send_response(200 if good else 400)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.end_headers()
                self.wfile.write(DONE if good else REFUSED)

            def log_message(self, *_args: Any) -> None:
                """Does nothing, because the path holds the code."""

        self._server = HTTPServer(("127.0.0.1", 0), Page)
        self.uri = f"http://127.0.0.1:{self._server.server_port}/callback"
        return self

    def __exit__(self, *_told: object) -> None:
        self._server.server_close()

    def take(self, path: str) -> bool:
        """Handle a request; return whether it is the expected answer."""
        parts = urlsplit(path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if parts.path != "/callback" or not hmac.compare_digest(query.get("state", "").encode(), self._state.encode()):
            return False
        self._code, self._failure = query.get("code"), query.get("error", "no code")
        return True

    def code(self) -> str:
        """Wait for the code. Raises CommandError."""
        from time import monotonic  # noqa: PLC0415 - only here

        ends = monotonic() + WAIT
        while self._code is None and self._failure is None:
            self._server.timeout = ends - monotonic()
            if self._server.timeout <= 0:
                raise CommandError(f"nobody has logged in at the browser within {WAIT:g} s")
            self._server.handle_request()
        if self._code is None:
            raise CommandError(f"the issuer refuses: {str(self._failure)[:100]}")
        return self._code
