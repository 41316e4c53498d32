"""Tokens of others, and of ServiceAccounts, exchanged at the door: for a certificate that opens it, or for one answer."""

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from typing import Any

import pytest
import yaml

from hub.api.certificates import CertificateRecord, Purpose
from machinery import pki
from machinery.identity import CertificateSubject, SerialNumber
from machinery.runtime.tls import client_context
from tests.checks import CASE_FILES, present
from tests.fakes.authority import OtherCA
from tests.fakes.identity import AUDIENCE, FakeIssuer, FakeWebhook, SigningKey, claims_of, running
from tests.integration.https_door.conftest import ACCOUNTS, CLUSTERS, RBAC, HubUnderTest, Visitor, admin_of, nobody

TABLES = yaml.safe_load((CASE_FILES / "authenticators.yaml").read_text())

GROUP = "login.open-cluster-management.io"
LOGIN = f"/apis/{GROUP}/v1alpha1"
REQUESTS = f"{LOGIN}/tokencredentialrequests"
FAILED = {"message": "authentication failed"}
JWT = {"apiGroup": GROUP, "kind": "JWTAuthenticator", "name": "corp"}
WEBHOOK = {"apiGroup": GROUP, "kind": "WebhookAuthenticator", "name": "hook"}
ACCOUNT = {"kind": "ServiceAccount"}


def ca_of(authority: OtherCA) -> dict[str, str]:
    return {"certificateAuthorityData": b64encode(authority.certificate).decode()}


def made(kind: str, name: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": f"{GROUP}/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def asked(token: str | None, authenticator: Any = JWT, **spec: Any) -> dict[str, Any]:
    return {**made("TokenCredentialRequest", "x", token=token, authenticator=authenticator, **spec), "metadata": {}}


@dataclass
class Stage:
    """A hub, an issuer and a webhook that it knows, and its administrator."""

    hub: HubUnderTest
    issuer: FakeIssuer
    webhook: FakeWebhook
    admin: Visitor

    async def exchange(self, token: str, authenticator: Any = JWT, **spec: Any) -> dict[str, Any]:
        status, answer = await nobody(self.hub).ask("POST", REQUESTS, asked(token, authenticator, **spec))
        assert status == 201, answer
        return dict(answer["status"])

    async def login(self, token: str, authenticator: Any = JWT) -> Visitor:
        return Visitor(self.hub, context_of(self.hub, (await self.exchange(token, authenticator))["credential"]))

    async def record(self, credential: dict[str, str]) -> CertificateRecord:
        serial = pki.parse_certificate(credential["clientCertificateData"].encode()).serial
        return present(await self.hub.store.read(lambda tx: tx.certificates.by_serial(SerialNumber(serial))))

    async def change(self, path: str, **spec: Any) -> None:
        status, answer = await self.admin.patch(path, {"spec": spec})
        assert status == 200, answer

    async def audited(self) -> list[dict[str, Any]]:
        """The newest records of exchanges, the newest last."""
        await self.hub.access.auditor.flush()
        path = "/apis/hub.open-cluster-management.io/v1alpha1/auditrecords?fieldSelector=resource=tokencredentialrequests"
        status, answer = await self.admin.get(path)
        assert status == 200, answer
        return sorted(answer["items"], key=lambda each: str(each["requestReceivedTimestamp"]))


def context_of(hub: HubUnderTest, credential: dict[str, str]) -> Any:
    chain, key = credential["clientCertificateData"].encode(), credential["clientKeyData"].encode()
    return client_context(hub.issuer.trust_bundle, chain, key)


@pytest.fixture(scope="module")
def authority() -> OtherCA:
    return OtherCA("people")


@pytest.fixture
async def stage(hub: HubUnderTest, authority: OtherCA) -> AsyncIterator[Stage]:
    issuer, webhook = FakeIssuer(authority), FakeWebhook(authority)
    async with running(issuer), running(webhook):
        admin = await admin_of(hub)
        jwt = made("JWTAuthenticator", "corp", issuer=issuer.url, audience=AUDIENCE, tls=ca_of(authority))
        hook = made("WebhookAuthenticator", "hook", endpoint=f"{webhook.url}/review", tls=ca_of(authority))
        for path, document in ((f"{LOGIN}/jwtauthenticators", jwt), (f"{LOGIN}/webhookauthenticators", hook)):
            status, answer = await admin.ask("POST", path, document)
            assert status == 201, answer
        yield Stage(hub, issuer, webhook, admin)


async def test_a_token_of_an_issuer_becomes_a_certificate_with_the_rights_of_its_user_and_groups(stage: Stage) -> None:
    status = await stage.exchange(stage.issuer.token("ann", groups=["ops", "dev"]))
    credential = status["credential"]
    assert (set(status), set(credential)) == ({"credential"}, {"expirationTimestamp", "clientCertificateData", "clientKeyData"})
    facts = pki.parse_certificate(credential["clientCertificateData"].encode())
    assert facts.subject == CertificateSubject("ann", frozenset(("ops", "dev")))
    record = await stage.record(credential)
    assert (record.purpose, record.user, record.groups) == (Purpose.LOGIN, "ann", ("dev", "ops"))
    assert record.signed_by == stage.hub.issuer.current.name
    assert record.not_after - record.issued_at == record.issued_at - record.not_before == timedelta(minutes=5)
    visitor = Visitor(stage.hub, context_of(stage.hub, credential))
    assert await visitor.whoami() == ("ann", ["dev", "ops", "system:authenticated"])

    ann = await stage.login(stage.issuer.token("ann", groups=["ops"]))
    code, answer = await ann.get(CLUSTERS)
    assert (code, 'User "ann" cannot list' in answer["message"]) == (403, True)
    await stage.admin.bind("view", "Group", "ops")
    assert ((await ann.get(CLUSTERS))[0], (await ann.ask("DELETE", f"{CLUSTERS}/none"))[0]) == (200, 403)

    ann = await stage.login(stage.issuer.token("ann", groups=["chiefs", "system:masters"]))
    assert (await ann.whoami())[1] == ["chiefs", "system:authenticated"]
    await stage.change(f"{LOGIN}/jwtauthenticators/corp", operatorGroups=["chiefs"])
    ann = await stage.login(stage.issuer.token("ann", groups=["chiefs"]))
    assert "system:masters" in (await ann.whoami())[1]
    assert (await ann.get(CLUSTERS))[0] == 200

    credential = (await stage.exchange(stage.issuer.token()))["credential"]
    ann = Visitor(stage.hub, context_of(stage.hub, credential))
    assert (await ann.whoami())[0] == "ann"
    record = await stage.record(credential)
    await stage.hub.store.run(lambda tx: tx.certificates.revoke([record.serial], tx.now, "Test"))
    await ann.until("/version", 401)


async def test_a_webhook_names_a_user_and_is_asked_again_after_a_failure(stage: Stage) -> None:
    extra = {"authentication.kubernetes.io/credential-id": ["JTI=1"]}
    stage.webhook.users["good"] = {"username": "bob", "groups": ["ops", "system:authenticated"], "extra": extra}
    assert await (await stage.login("good", WEBHOOK)).whoami() == ("bob", ["ops", "system:authenticated"])
    (review,) = stage.webhook.asked
    assert (review["apiVersion"], review["kind"]) == ("authentication.k8s.io/v1", "TokenReview")
    assert review["spec"] == {"token": "good"}
    await stage.exchange("good", WEBHOOK)
    assert len(stage.webhook.asked) == 1, "an answer is kept for a moment"

    stage.webhook.users["token"] = {"username": "bob"}
    stage.webhook.status = 500
    assert await stage.exchange("token", WEBHOOK) == FAILED
    stage.webhook.status = 200
    assert "credential" in await stage.exchange("token", WEBHOOK)


async def test_all_failures_have_one_body_and_come_at_one_time(stage: Stage) -> None:
    other, good = FakeIssuer(stage.issuer.authority, url=stage.issuer.url), stage.issuer.token()
    tokens = {
        "no such authenticator": (good, {**JWT, "name": "none"}),
        "no such kind": (good, {**JWT, "kind": "Other"}),
        "another group": (good, {**JWT, "apiGroup": ""}),
        "no authenticator": (good, {}),
        "no token at all": ("guess", JWT),
        "a signature of somebody else": (other.token(), JWT),
        "expired": (stage.issuer.token(exp=1), JWT),
        "another audience": (stage.issuer.token(aud="others"), JWT),
        "a reserved name": (stage.issuer.token("system:masters"), JWT),
        "no user": (stage.issuer.token(sub=""), JWT),
        "an account's token for an issuer": (good, ACCOUNT),
    }
    await stage.exchange(good)
    loop = asyncio.get_running_loop()

    async def refused(token: str, authenticator: Any) -> tuple[float, int, str]:
        began = loop.time()
        status, answer = await nobody(stage.hub).ask("POST", REQUESTS, asked(token, authenticator))
        return loop.time() - began, status, json.dumps(answer)

    spent, statuses, bodies = zip(*await asyncio.gather(*(refused(*each) for each in tokens.values())), strict=True)
    assert set(statuses) == {201}
    (body,) = set(bodies)
    assert json.loads(body)["status"] == FAILED
    assert min(spent) >= 0.25, spent
    why = {each["annotations"].get("login.muster/failure") for each in await stage.audited()}
    assert len(why - {None}) >= 8, "the audit log distinguishes them"


async def test_the_audit_log_has_the_hash_of_the_token_and_never_the_token(stage: Stage) -> None:
    token = stage.issuer.token("ann", groups=["ops"])
    await stage.exchange(token)
    await stage.exchange(stage.issuer.token("system:x"))
    good, bad = await stage.audited()
    assert good["annotations"]["authentication.kubernetes.io/token-hash"] == f"SHA256={sha256(token.encode()).hexdigest()}"
    assert good["annotations"]["login.muster/authenticator"] == "JWTAuthenticator/corp"
    assert good["annotations"]["login.muster/signed-by"] == stage.hub.issuer.current.name
    assert "begin with" in bad["annotations"]["login.muster/failure"]
    assert not any(name in each["annotations"] for each in (good, bad) for name in ("login.muster/user", "login.muster/groups"))
    everything = json.dumps([good, bad])
    assert token not in everything
    assert token.split(".")[2] not in everything


WRONG: dict[str, tuple[dict[str, Any], str, int, str | None]] = {
    "empty token": (asked(""), "", 422, "spec.token"),
    "no token": (made("TokenCredentialRequest", "x"), "", 422, "spec.token"),
    "dry run": (asked("token"), "?dryRun=All", 422, "dryRun"),
    "a namespace": ({**asked("token"), "metadata": {"namespace": "default"}}, "", 400, None),
    "another kind": ({**asked("token"), "kind": "Other"}, "", 422, "kind"),
    "another version": ({**asked("token"), "apiVersion": "v1"}, "", 400, None),
    "no kind": ({"spec": {}}, "", 400, None),
}


async def test_a_login_request_that_is_wrong_in_itself_is_refused_by_field(stage: Stage) -> None:
    for name, (body, query, code, field) in WRONG.items():
        status, answer = await nobody(stage.hub).ask("POST", REQUESTS + query, body)
        assert status == code, (name, answer)
        if field is not None:
            assert answer["details"]["causes"][0]["field"] == field, name

    key = pki.generate_key()
    request = pki.build_request(CertificateSubject("system:masters", frozenset(("system:masters",))), key).decode()
    credential = (await stage.exchange(stage.issuer.token(), request=request))["credential"]
    assert "clientKeyData" not in credential
    chain = credential["clientCertificateData"].encode()
    assert pki.key_matches(chain, key)
    assert pki.parse_certificate(chain).subject == CertificateSubject("ann"), "the request's subject does not count"
    status, answer = await nobody(stage.hub).ask("POST", REQUESTS, asked(stage.issuer.token(), request="no request"))
    assert (status, answer["details"]["causes"][0]["field"]) == (422, "spec.request")

    status, answer = await nobody(stage.hub).get(REQUESTS)
    assert (status, answer["kind"], answer["items"]) == (200, "TokenCredentialRequestList", [])
    assert answer["metadata"]["resourceVersion"] == "0"
    status, answer = await stage.admin.get(LOGIN)
    exchange = {each["name"]: each for each in answer["resources"]}["tokencredentialrequests"]
    assert (exchange["verbs"], exchange["categories"], exchange["namespaced"]) == (["create", "list"], ["muster"], False)
    for verb in ("PUT", "DELETE", "GET"):
        assert (await stage.admin.ask(verb, f"{REQUESTS}/x"))[0] == 405


async def test_the_token_of_a_service_account_becomes_its_certificate_and_ends_with_it(stage: Stage) -> None:
    token = await stage.admin.token("robot")
    robot = await stage.login(token, ACCOUNT)
    assert (await robot.whoami())[0] == "system:serviceaccount:default:robot"
    again = await stage.login(token, ACCOUNT)
    assert (await stage.admin.ask("DELETE", f"{ACCOUNTS}/robot"))[0] == 200
    for visitor in (robot, again):
        await visitor.until("/version", 401)
    assert await stage.exchange(token, ACCOUNT) == FAILED


async def test_changes_of_authenticators_and_rotated_keys_count_at_once(stage: Stage) -> None:
    await stage.exchange(stage.issuer.token())
    assert stage.issuer.fetched == 1
    made_up = SigningKey("made-up")
    for _ in range(5):
        assert await stage.exchange(made_up.sign(claims_of(stage.issuer.url))) == FAILED
    assert stage.issuer.fetched == 1, "fetches have a time between them"

    token, path = stage.issuer.token(), f"{LOGIN}/jwtauthenticators/corp"
    await stage.exchange(token)
    await stage.change(path, audience="others")
    assert await stage.exchange(token) == FAILED
    assert "credential" in await stage.exchange(stage.issuer.token(aud="others"))
    await stage.admin.ask("DELETE", path)
    assert await stage.exchange(stage.issuer.token(aud="others")) == FAILED


ISSUER, NO_CA = {"issuer": "https://x", "audience": "a"}, {"certificateAuthorityData": "!"}


async def test_authenticators_are_checked_and_made_by_nobody_who_may_not_impersonate_all(stage: Stage) -> None:
    for kind, spec, field in TABLES["flawed"]:
        status, answer = await stage.admin.ask("POST", f"{LOGIN}/{kind.lower()}s", made(kind, "bad", **spec))
        assert (status, [each["field"] for each in answer["details"]["causes"]]) == (422, [field])

    role = {"metadata": {"name": "keeper"}, "rules": [{"apiGroups": [GROUP], "resources": ["*"], "verbs": ["*"]}]}
    assert (await stage.admin.ask("POST", f"{RBAC}/clusterroles", role))[0] == 201
    await stage.admin.bind("keeper", "User", "ann")
    ann = await stage.login(stage.issuer.token("ann"))
    own = made("WebhookAuthenticator", "mine", endpoint="https://mine.example.org")
    status, answer = await ann.ask("POST", f"{LOGIN}/webhookauthenticators", own)
    assert (status, "may not impersonate all users" in answer["message"]) == (403, True)
    path = f"{LOGIN}/jwtauthenticators/corp"
    assert (await ann.patch(path, {"spec": {"operatorGroups": ["all"]}}))[0] == 403
    assert (await ann.patch(path, {"metadata": {"labels": {"a": "b"}}}))[0] == 200
