"""Others who know people: an OpenID Connect issuer, a token webhook over TLS, signed tokens; and access for everyone."""

import json
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from aiohttp import web
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from yarl import URL

from machinery import pki
from machinery.apiserver.access import Attributes, Authenticator, Authorizer, Decision
from machinery.apiserver.http.listener import serve
from machinery.apiserver.storage import Actor
from machinery.identity import CertificateSubject
from machinery.runtime.clock import SystemClock
from machinery.runtime.tls import Material, server_context
from tests.fakes.authority import OtherCA

AUDIENCE = "muster"


def encoded(value: object) -> str:
    return urlsafe_b64encode(value if isinstance(value, bytes) else json.dumps(value).encode()).rstrip(b"=").decode()


def _number(value: int, size: int | None = None) -> str:
    return encoded(value.to_bytes(size or (value.bit_length() + 7) // 8, "big"))


@dataclass
class SigningKey:
    """A key of an issuer. `algorithm` says of which kind it is."""

    key_id: str = "one"
    algorithm: str = "ES256"
    key: Any = field(init=False)

    def __post_init__(self) -> None:
        curve = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}.get(self.algorithm)
        self.key = ec.generate_private_key(curve) if curve else rsa.generate_private_key(65537, 2048)

    @property
    def jwk(self) -> dict[str, Any]:
        public, fields = self.key.public_key().public_numbers(), {"kid": self.key_id, "use": "sig", "alg": self.algorithm}
        if isinstance(self.key, rsa.RSAPrivateKey):
            return {**fields, "kty": "RSA", "n": _number(public.n), "e": _number(public.e)}
        size = (self.key.curve.key_size + 7) // 8
        name = {256: "P-256", 384: "P-384", 521: "P-521"}[self.key.curve.key_size]
        return {**fields, "kty": "EC", "crv": name, "x": _number(public.x, size), "y": _number(public.y, size)}

    def sign(self, claims: Mapping[str, Any], **header: Any) -> str:
        fields = {"alg": self.algorithm, "kid": self.key_id, "typ": "JWT", **header}
        signed = f"{encoded({name: value for name, value in fields.items() if value is not None})}.{encoded(dict(claims))}"
        return f"{signed}.{encoded(self.signature(signed.encode(), str(fields['alg'])))}"

    def signature(self, message: bytes, algorithm: str) -> bytes:
        digest = {"256": hashes.SHA256(), "384": hashes.SHA384(), "512": hashes.SHA512()}[algorithm[2:]]
        if isinstance(self.key, rsa.RSAPrivateKey):
            pss = padding.PSS(padding.MGF1(digest), padding.PSS.DIGEST_LENGTH)
            return self.key.sign(message, pss if algorithm.startswith("PS") else padding.PKCS1v15(), digest)
        size = (self.key.curve.key_size + 7) // 8
        return b"".join(half.to_bytes(size, "big") for half in decode_dss_signature(self.key.sign(message, ec.ECDSA(digest))))


def claims_of(issuer: str, user: str = "ann", **more: Any) -> dict[str, Any]:
    """Good for an hour from now on; a claim of None is left out."""
    now = datetime.now(UTC)
    claims = {"iss": issuer, "aud": AUDIENCE, "sub": user, "exp": int((now + timedelta(hours=1)).timestamp()), **more}
    return {name: value for name, value in claims.items() if value is not None}


def serving_material(authority: pki.CertificateAuthority) -> Material:
    """For a server at the loopback address, good for an hour."""
    now, key = SystemClock().now(), pki.generate_key()
    begins, ends, named = now - timedelta(minutes=5), now + timedelta(hours=1), ("127.0.0.1",)
    subject, public, serial = CertificateSubject("others"), pki.public_key_of(key), pki.random_serial()
    plan = pki.Plan(subject, public, serial, begins, ends, pki.Usage.SERVER, ip_addresses=named)
    return Material(authority.sign(plan), key, authority.certificate)


@dataclass
class FakeIssuer:
    """An OpenID Connect issuer. Counts how often its keys were fetched; `away`: it answers everything with 503."""

    authority: OtherCA
    keys: list[SigningKey] = field(default_factory=lambda: [SigningKey()])
    url: str = ""
    away: bool = False
    fetched: int = 0
    named: str | None = None  # what its configuration says that it is; None: the truth
    exchanged: list[dict[str, str]] = field(default_factory=list)  # what was posted to the token endpoint
    claims: dict[str, Any] = field(default_factory=dict)  # of the tokens of that endpoint

    def token(self, user: str = "ann", *, key: SigningKey | None = None, **claims: Any) -> str:
        return (key or self.keys[0]).sign(claims_of(self.url, user, **claims))

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if self.away:
            return web.Response(status=503)
        if request.path == "/.well-known/openid-configuration":
            endpoints = {f"{name}_endpoint": f"{self.url}/{name}" for name in ("authorization", "token")}
            return web.json_response({"issuer": self.named or self.url, "jwks_uri": f"{self.url}/keys", **endpoints})
        if request.path == "/keys":
            self.fetched += 1
            return web.json_response({"keys": [key.jwk for key in self.keys]})
        if request.path == "/authorization":  # everybody is signed in here; the code is the nonce
            answer = URL(request.query["redirect_uri"]).with_query(code=request.query["nonce"], state=request.query["state"])
            return web.Response(status=302, headers={"Location": str(answer)})
        if request.path == "/token" and request.method == "POST":
            form = {name: str(value) for name, value in (await request.post()).items()}
            self.exchanged.append({**form, "authorization": request.headers.get("Authorization", "")})
            return web.json_response(
                {"id_token": self.token(**{"nonce": form.get("code"), **self.claims}), "token_type": "Bearer"}
            )
        return web.Response(status=404)


@dataclass
class FakeWebhook:
    """A token webhook. `users`: by token, the `user` of its TokenReview; `answers` instead, when it is there."""

    authority: OtherCA
    users: dict[str, dict[str, Any]] = field(default_factory=dict)
    answers: Any = None
    url: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list)
    status: int = 200

    async def answer(self, request: web.Request) -> web.StreamResponse:
        review = await request.json()
        self.asked.append(review)
        if self.status != 200:
            return web.Response(status=self.status)
        user = self.users.get(review["spec"]["token"])
        status = {"authenticated": user is not None, **({"user": user} if user is not None else {})}
        return web.json_response(self.answers or {"apiVersion": review["apiVersion"], "kind": review["kind"], "status": status})


@asynccontextmanager
async def running(server: FakeIssuer | FakeWebhook) -> AsyncIterator[None]:
    """Serves over TLS at a free port of the loopback address; `url` says where."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.answer)
    listening = await serve(app, "127.0.0.1", 0, server_context(serving_material(server.authority.authority)))
    server.url = f"https://127.0.0.1:{listening.port}"
    try:
        yield
    finally:
        await listening.close()


class AllowEverything(Authorizer):
    """Allows every request."""

    async def authorize(self, actor: Actor, attributes: Attributes) -> Decision:  # noqa: ARG002 - the port's signature
        return Decision(allowed=True)


class EveryoneIsAdmin(Authenticator):
    """Takes every request for an administrator's."""

    async def authenticate(self, request: web.Request) -> Actor:  # noqa: ARG002 - the port's signature
        return Actor("admin", ("system:masters", "system:authenticated"), "admin")


async def every_namespace(_name: str) -> bool:
    """Every namespace is there."""
    return True
