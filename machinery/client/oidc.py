"""Messages of OpenID Connect's authorization code flow with PKCE, for the clients of an issuer: `hubctl login` and the console.

Sources: RFC 6749, RFC 7636 (PKCE), OpenID Connect Core 1.0.
"""

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from urllib.parse import quote, urlencode, urlsplit


def scope_of(more: Iterable[str]) -> str:
    """Return the parameter `scope`: openid and `more`."""
    return " ".join(dict.fromkeys(("openid", *more)))


@dataclass(frozen=True, slots=True)
class CodeFlow:
    """One sign-in. `verifier`, `state` and `nonce` are random texts of 43 to 128 base64url characters."""

    client_id: str
    redirect_uri: str
    scope: str
    verifier: str = field(repr=False)
    state: str = field(repr=False)
    nonce: str = field(repr=False)

    def url(self, endpoint: str) -> str:
        """Return the URL at which the user signs in. `endpoint`: the issuer's authorization_endpoint."""
        query = {
            "response_type": "code",
            "client_id": self.client_id,
            "redirect_uri": self.redirect_uri,
            "scope": self.scope,
            "state": self.state,
            "nonce": self.nonce,
            "code_challenge": base64url(sha256(self.verifier.encode()).digest()),
            "code_challenge_method": "S256",
        }
        return endpoint + ("&" if urlsplit(endpoint).query else "?") + urlencode(query)

    def form(self, code: str) -> dict[str, str]:
        """Return the form of the token request. `identified` adds the client's identity."""
        terms = {"redirect_uri": self.redirect_uri, "code_verifier": self.verifier}
        return {"grant_type": "authorization_code", "code": code, **terms}


def identified(form: Mapping[str, str], client_id: str, secret: str | None) -> tuple[dict[str, str], str]:
    """Return the form and the header Authorization. Without a secret, the header is "" and the form contains the client id."""
    if secret is None:
        return {**form, "client_id": client_id}, ""
    pair = f"{quote(client_id, safe='')}:{quote(secret, safe='')}"
    return dict(form), f"Basic {base64.b64encode(pair.encode()).decode()}"


def base64url(content: bytes) -> str:
    """Encode as base64url without padding."""
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()
