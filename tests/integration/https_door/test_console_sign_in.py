"""Sign-in to the console at its own listener: the flow, the session as a credential, its end on every replica, and attacks."""

import asyncio
import secrets
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace as Answer
from typing import Any

import aiohttp
import pytest
from pydantic import SecretStr
from yarl import URL

from hub.api.certificatesigningrequests import RequestRetention
from hub.api.consolesessions import MAX_LIFETIME, name_of
from hub.controllers.clock_guard import ClockGuard
from hub.controllers.hub.retention import RequestCleanup
from hub.extensions.console.sessions import SESSION_COOKIE
from hub.extensions.console.sign_in import SEED_COOKIE
from hub.extensions.settings import load
from hub.settings.fields import Address
from machinery.client.oidc import base64url
from machinery.errors import InvalidError
from machinery.lifecycle.startup import reserved_port
from machinery.meta.timestamps import parse_time
from machinery.runtime.clock import SystemClock
from machinery.runtime.tls import client_context, shown_certificate
from tests.checks import check_refusals, check_results
from tests.fakes.authority import OtherCA
from tests.fakes.identity import AUDIENCE, FakeIssuer, running, serving_material
from tests.integration.https_door.conftest import CLUSTERS, MERGE, HubUnderTest, Watch, admin_of, holder, hub_with, nobody
from tests.integration.https_door.test_logins import LOGIN, ca_of, made

SESSIONS, CORP = f"{LOGIN}/consolesessions", f"{LOGIN}/jwtauthenticators/corp"
WHOAMI = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
OWN = {"Sec-Fetch-Site": "same-origin"}
FRAMES = {"X-Frame-Options": "DENY", "X-Content-Type-Options": "nosniff", "Strict-Transport-Security": "max-age=31536000"}
FRAMES |= {"Cross-Origin-Resource-Policy": "same-origin"}


@dataclass
class Browser:
    """A browser at one listener of the console. It keeps cookies and follows no redirect."""

    port: int
    context: ssl.SSLContext
    cookies: dict[str, str] = field(default_factory=dict)

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """`headers`: as a page of the console sends them, unless others are given."""
        async with self.open(method, path, body, **(headers or OWN)) as response:
            self.cookies |= {name: each.value for name, each in response.cookies.items()}
            content = await (response.json() if response.content_type == "application/json" else response.text())
            return Answer(status=response.status, headers=response.headers, cookies=response.cookies, body=content)

    @asynccontextmanager
    async def open(self, method: str, path: str, body: Any = None, **headers: str) -> AsyncIterator[aiohttp.ClientResponse]:
        named = {"Cookie": "; ".join(f"{name}={value}" for name, value in self.cookies.items() if value)}
        url, connector = f"https://127.0.0.1:{self.port}{path}", aiohttp.TCPConnector(ssl=self.context)
        async with (
            aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session,
            session.request(method, url, json=body, headers={**named, **headers}, allow_redirects=False) as response,
        ):
            yield response

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[Watch]:
        async with self.open("GET", f"{CLUSTERS}?watch=1&allowWatchBookmarks=true&resourceVersion=0", **OWN) as response:
            assert response.status == 200
            yield Watch(response)

    async def begin(self) -> dict[str, str]:
        """Goes to the issuer. Returns the parameters of its page."""
        answer = await self.ask("GET", "/console/login")
        assert answer.status == 303, answer
        return dict(URL(answer.headers["Location"]).query)

    async def signed_in(self) -> "Browser":
        asked = await self.begin()
        answer = await self.callback(code=asked["nonce"], state=asked["state"])
        assert (answer.status, answer.headers.get("Location")) == (303, "/console/"), answer
        return self

    async def callback(self, **query: str) -> Answer:
        """As the issuer sends the browser back: from another site, so without Strict cookies."""
        strict = self.cookies.pop(SESSION_COOKIE, "")
        answer = await self.ask("GET", str(URL("/console/callback").with_query(query)), **{"Sec-Fetch-Site": "cross-site"})
        self.cookies = {SESSION_COOKIE: strict, **self.cookies}
        return answer


@dataclass
class Stage:
    issuer: FakeIssuer
    hubs: list[HubUnderTest]
    ports: list[int]
    admin: Any

    def browser(self, replica: int = 0) -> Browser:
        return Browser(self.ports[replica], client_context(self.issuer.authority.certificate))


@asynccontextmanager
async def staged(
    folder: Path, *replicas: dict[str, Any], url: str = "https://127.0.0.1", **settings: Any
) -> AsyncIterator[Stage]:
    """Hubs with the console's listener, which know an issuer as the JWTAuthenticator corp. `url`: with {port} for its port."""
    issuer = FakeIssuer(OtherCA("people"))
    async with AsyncExitStack() as stack:
        material, files = serving_material(issuer.authority.authority), (folder / "tls.crt", folder / "tls.key")
        for path, content in zip(files, (material.chain, material.key), strict=True):
            path.write_bytes(content)
        await stack.enter_async_context(running(issuer))
        (folder / "secret").write_text("s3cret\n")
        terms = {"console_authenticator": "corp", "console_client_secret_file": folder / "secret", "console_scopes": ("email",)}
        terms |= {"console_cert_file": files[0], "console_key_file": files[1]}
        hubs, ports = [], []
        for each in replicas:
            port = stack.enter_context(reserved_port("127.0.0.1"))
            at = {"console_listen": Address("127.0.0.1", port), "console_url": url.format(port=port)}
            given = {"console": "on", **at, **terms, **settings, **each}
            hubs.append(await stack.enter_async_context(hub_with(folder / str(port), **given)))
            ports.append(port)
        admin = await admin_of(hubs[0])
        spec = {"issuer": issuer.url, "audience": AUDIENCE, "tls": ca_of(issuer.authority)}
        status, answer = await admin.ask("POST", f"{LOGIN}/jwtauthenticators", made("JWTAuthenticator", "corp", **spec))
        assert status == 201, answer
        yield Stage(issuer, hubs, ports, admin)


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with staged(tmp_path, {}) as opened:
        yield opened


async def test_a_person_signs_in_acts_under_their_name_and_signs_out(stage: Stage) -> None:
    hub, browser = stage.hubs[0], stage.browser()
    assert (await browser.ask("GET", "/console/config.json")).body["signIn"] is True
    stage.issuer.claims = {"groups": ["ops", "system:masters"], "exp": int((datetime.now(UTC) + timedelta(days=9)).timestamp())}
    asked = await browser.begin()
    assert (asked["client_id"], asked["scope"], asked["code_challenge_method"]) == (AUDIENCE, "openid email", "S256")
    assert asked["redirect_uri"] == "https://127.0.0.1/console/callback"
    answer = await browser.callback(code=asked["nonce"], state=asked["state"])
    session = answer.cookies[SESSION_COOKIE]
    attributes = {name: value for name, value in session.items() if value}
    assert attributes == {"path": "/", "secure": True, "httponly": True, "samesite": "Strict"}
    (form,) = stage.issuer.exchanged
    assert (form["authorization"].startswith("Basic "), answer.cookies[SEED_COOKIE]["max-age"]) == (True, "0")
    assert base64url(sha256(form["code_verifier"].encode()).digest()) == asked["code_challenge"]
    user = (await browser.ask("POST", WHOAMI, {})).body["status"]["userInfo"]
    assert (user["username"], user["groups"]) == ("ann", ["ops", "system:authenticated"])
    # rights are those of roles, and each action is recorded under the name
    assert (await browser.ask("GET", CLUSTERS)).status == 403
    await stage.admin.bind("cluster-admin", "Group", "ops")
    assert (await browser.ask("POST", "/api/v1/namespaces/default/configmaps", {"metadata": {"name": "a"}})).status == 201
    (listed,) = (await stage.admin.get(SESSIONS))[1]["items"]
    assert (listed["metadata"]["name"], listed["status"]["user"]) == (name_of(session.value), "ann")
    assert parse_time(listed["status"]["expirationTimestamp"]) <= datetime.now(UTC) + timedelta(hours=8)
    await hub.runs(("hubctl get consolesessions", 0, "ann"), (f"hubctl get consolesession {name_of(session.value)}", 0, "ann"))
    assert (await stage.admin.ask("POST", SESSIONS, listed))[0] == 405  # nobody makes a session but the sign-in
    assert (await stage.admin.patch(f"{SESSIONS}/{name_of(session.value)}", {"status": {"user": "x"}}))[0] == 405

    assert (await browser.ask("POST", "/console/logout")).status == 204
    browser.cookies[SESSION_COOKIE] = session.value  # as somebody who has copied it
    assert ((await browser.ask("GET", CLUSTERS)).status, (await stage.admin.get(SESSIONS))[1]["items"]) == (401, [])
    await hub.access.auditor.flush()
    records = (await stage.admin.get("/apis/hub.open-cluster-management.io/v1alpha1/auditrecords?fieldSelector=user=ann"))[1]
    done = {(each["verb"], each["objectRef"]["resource"]) for each in records["items"] if each["responseStatus"]["code"] < 400}
    assert done >= {("create", "consolesessions"), ("create", "configmaps"), ("delete", "consolesessions")}
    assert not any(secret in str(records) for secret in (session.value, asked["nonce"], asked["state"], "s3cret"))


async def test_a_session_is_accepted_only_from_pages_of_the_console_and_nothing_else_is_accepted_there(stage: Stage) -> None:
    hub, wrong = stage.hubs[0], []
    browser = await stage.browser().signed_in()
    secret, token = browser.cookies[SESSION_COOKIE], await stage.admin.token("robot")
    here, evil = {"Origin": "https://127.0.0.1"}, {"Origin": "https://evil.example"}
    cross, same_site = {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}
    rows: tuple[tuple[str, str, str, dict[str, str], int], ...] = (
        *(("GET", CLUSTERS, secret, headers, 403) for headers in (OWN, here, {**OWN, **here})),
        # CSRF, and pages of neighbours
        *(("GET", CLUSTERS, secret, headers, 401) for headers in ({"Accept": "*/*"}, cross, same_site, evil, {**OWN, **evil})),
        *(("GET", CLUSTERS, secret, headers, 401) for headers in ({"Sec-Fetch-Site": "none"}, {**cross, **here})),
        ("POST", "/console/logout", secret, cross, 401),
        ("GET", "/console/logout", secret, OWN, 404),
        # no session
        *(("GET", CLUSTERS, value, OWN, 401) for value in ("", secret[:-1], f"{secret}x", "x" * 43, "x" * 20_000)),
        *(("GET", path, "", OWN, 401) for path in ("/version", "/readyz", "/metrics", "/apis")),
        # other credentials, with and without a session
        ("GET", "/version", "", {**OWN, "Authorization": f"Bearer {token}"}, 403),
        *(("GET", "/version", secret, {**OWN, name: "system:admin"}, 403) for name in ("Impersonate-User", "X-Remote-User")),
    )  # fmt: skip
    for method, path, value, headers, status in rows:
        browser.cookies = {SESSION_COOKIE: value}
        answer = await browser.ask(method, path, **headers)
        policy, is_framed = answer.headers["Content-Security-Policy"], not FRAMES.items() <= dict(answer.headers).items()
        if (answer.status, is_framed, "frame-ancestors 'none'" in policy) != (status, False, True):
            wrong.append((method, path, value[:50], headers, answer))
    assert not wrong, "\n".join(map(repr, wrong))
    # the listener asks for no client certificate, and the HTTPS door ignores the cookie
    shows_one = holder(hub, await hub.admin()).context
    shows_one.load_verify_locations(cadata=stage.issuer.authority.certificate.decode())
    browser.cookies, browser.context = {}, shows_one
    assert (await browser.ask("GET", CLUSTERS)).status == 401
    cookie = {"Cookie": f"{SESSION_COOKIE}={secret}", **OWN}
    status, answer = await nobody(hub).ask("GET", CLUSTERS, **cookie)
    assert (status, "system:anonymous" in answer["message"]) == (403, True)
    assert (await nobody(hub).ask("GET", "/console/login", **cookie))[0] == 404


async def test_refused_sign_outs_are_limited_like_other_refusals(stage: Stage) -> None:
    def browser() -> Browser:
        return Browser(stage.ports[0], stage.browser().context, {SESSION_COOKIE: secrets.token_urlsafe(32)})

    found = [await asyncio.gather(*(browser().ask("POST", "/console/logout") for _ in range(20))) for _ in range(10)]
    assert {answer.status for answers in found for answer in answers} == {401, 429}


async def test_a_sign_in_counts_only_in_its_browser_once_and_with_a_token_of_this_sign_in(stage: Stage) -> None:
    thief, victim = stage.browser(), stage.browser()
    # login CSRF: the callback of another browser's sign-in, in a browser without one and in one with its own
    stolen = await thief.begin()
    for _ in range(2):
        answer = await victim.callback(code=stolen["nonce"], state=stolen["state"])
        assert (answer.status, SESSION_COOKIE in answer.cookies, stage.issuer.exchanged) == (403, False, [])
        await victim.begin()
    for state in ("", "\u00e9", stolen["state"][:-1]):
        assert (await thief.callback(code=stolen["nonce"], state=state)).status == 403
    assert len({thief.cookies[SEED_COOKIE], stolen["state"], stolen["nonce"], stolen["code_challenge"]}) == 4
    # fixation: the browser's cookie from before is not that of the session
    victim.cookies[SESSION_COOKIE] = planted = "p" * 43
    assert (await victim.signed_in()).cookies[SESSION_COOKIE] != planted
    assert (await Browser(victim.port, victim.context, {SESSION_COOKIE: planted}).ask("GET", CLUSTERS)).status == 401
    # open redirect: nothing in the request chooses a target
    answer = await victim.ask("GET", "/console/login?next=//evil.example&redirect_uri=//evil.example", Host="evil.example")
    assert (answer.status, "evil" in answer.headers["Location"]) == (303, False)
    answer = await victim.ask("GET", "/console/login", **{"Sec-Fetch-Site": "cross-site"})
    assert (answer.status, answer.cookies) == (403, {})
    # tokens that are of no use, with one answer; the audit records have the reasons
    bodies = set()
    for claims in (
        {"nonce": "another"}, {"nonce": None}, {"aud": "another"}, {"aud": [AUDIENCE, "b"], "azp": "b"},
        {"exp": 1}, {"sub": "system:admin"}, {"iss": "https://evil.example"},
    ):  # fmt: skip
        stage.issuer.claims = claims
        asked = await victim.begin()
        answer = await victim.callback(code=asked["nonce"], state=asked["state"])
        assert (answer.status, SESSION_COOKIE in answer.cookies) == (401, False), claims
        bodies.add(answer.body.replace(answer.headers["Audit-Id"], ""))
    assert len(bodies) == 1
    stage.issuer.claims, asked = {}, await victim.begin()
    assert (await victim.callback(error="access_denied", state=asked["state"])).status == 401
    await stage.hubs[0].access.auditor.flush()
    selector = "resource=consolesessions,user=system:anonymous"
    _, records = await stage.admin.get(f"/apis/hub.open-cluster-management.io/v1alpha1/auditrecords?fieldSelector={selector}")
    assert len({each["annotations"]["login.muster/failure"] for each in records["items"]}) >= 7
    stage.issuer.away = True
    assert (await stage.admin.patch(CORP, {"spec": {"claims": {"username": "sub"}}}))[0] == 200  # forgets the keys
    assert (await victim.ask("GET", "/console/login")).status == 503


async def test_a_session_is_valid_on_every_replica_and_ends_on_all_at_once(
    tmp_path: Path, migrated_postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    replicas = [{"replica_name": name, "database_url": SecretStr(migrated_postgres_url)} for name in ("one", "two")]
    async with staged(tmp_path, *replicas) as stage:
        one_hub, one, two = stage.hubs[0], stage.browser(0), stage.browser(1)
        await stage.admin.bind("view", "User", "ann")

        async def sign_in() -> str:
            """Begins at one replica and comes back to the other."""
            asked = await one.begin()
            two.cookies = dict(one.cookies)
            assert (await two.callback(code=asked["nonce"], state=asked["state"])).status == 303
            one.cookies = dict(two.cookies)
            return name_of(two.cookies[SESSION_COOKIE])

        delete = "DELETE", SESSIONS + "/{}", None
        for ends in (delete, ("PATCH", CORP, {"spec": {"claims": {"groups": "roles"}}}), None, ("DELETE", CORP, None)):
            # None: by itself; within the seconds before that both watches have begun
            monkeypatch.setattr("hub.extensions.console.sign_in.MAX_LIFETIME", MAX_LIFETIME if ends else timedelta(seconds=3))
            name = await sign_in()
            assert (await stage.admin.patch(CORP, {"metadata": {"labels": {"at": name}}}))[0] == 200  # changes no rule
            async with one.watch() as first, two.watch() as second:
                if ends is not None:
                    method, path, body = ends
                    assert (await stage.admin.ask(method, path.format(name), body, **(MERGE if body else {})))[0] == 200
                    assert [(await each.ask("GET", CLUSTERS)).status for each in (two, one)] == [401, 401], ends
                await asyncio.gather(first.broken(), second.broken())
            assert (await one.ask("GET", CLUSTERS)).status == 401
            assert (await stage.admin.get(f"{SESSIONS}/{name}"))[0] == (404 if ends is delete else 200)
        cleanup = RequestCleanup(one_hub.store, RequestRetention(), timedelta(days=1), ClockGuard(SystemClock(), timedelta()))
        async with asyncio.timeout(20):
            while (await stage.admin.get(SESSIONS))[1]["items"]:
                await cleanup.reconcile("")


async def test_read_only_counts_here_too_files_are_reloaded_and_a_user_has_a_bounded_number_of_sessions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with staged(tmp_path, {}, console="read-only") as stage:
        await stage.admin.bind("cluster-admin", "User", "ann")
        first = await stage.browser().signed_in()
        await stage.hubs[0].join("edge1")
        patch = {"metadata": {"labels": {"a": "b"}}}
        for method, path, body, status in (
            ("GET", CLUSTERS, None, 200), ("POST", WHOAMI, {}, 201), ("POST", "/console/callback", None, 405),
            ("PATCH", f"{CLUSTERS}/edge1", patch, 403), ("DELETE", f"{CLUSTERS}/edge1", None, 403),
        ):  # fmt: skip
            answer = await first.ask(method, path, body)
            assert answer.status == status, (method, path, answer)
        monkeypatch.setattr("hub.registry.consolesessions.MAX_PER_USER", 2)
        for _ in range(2):
            last = await stage.browser().signed_in()
        assert [(await each.ask("GET", CLUSTERS)).status for each in (first, last)] == [401, 200]
        before, renewed = await shown_certificate("127.0.0.1", last.port), serving_material(stage.issuer.authority.authority)
        (tmp_path / "tls.key").write_text("no key")
        (tmp_path / "tls.crt").write_bytes(renewed.chain)  # no pair yet: the old one stays
        assert (await last.ask("GET", CLUSTERS)).status == 200
        (tmp_path / "tls.key").write_bytes(renewed.key)
        async with asyncio.timeout(20):
            while await shown_certificate("127.0.0.1", last.port) == before:
                pass


def test_settings_of_the_listener_are_complete_or_absent() -> None:
    whole = {"console": "on", "console_cert_file": "a", "console_key_file": "b", "console_authenticator": "c"}
    urls = (("https://A.example/", "https://a.example"), ("https://a:443", "https://a"), ("https://[::1]:9", "https://[::1]:9"))
    check_results(lambda url: load({**whole, "console_url": url}, None, {}).console_url, urls)
    rows: tuple[tuple[dict[str, str], str], ...] = (
        (whole, "needs console_url too"),
        ({"console_url": "https://a"}, "needs console_cert_file, console_key_file, console_authenticator"),
        ({**whole, "console_url": "https://a", "console": "off"}, "needs console: on or read-only"),
        *(({**whole, "console_url": url}, "not an origin") for url in ("http://a", "a", "https://a/b", "https://u@a")),
    )
    check_refusals(InvalidError, lambda flags: load(flags, None, {}), rows)
