"""Operators log in with tokens of others: a real hub process, an issuer and a webhook over TLS, hubctl, and a real kubectl."""

import asyncio
import json
import os
import re
import stat
import sys
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any
from urllib.parse import parse_qs, urlsplit

import aiohttp
import pytest
import yaml

from machinery import pki
from machinery.client.rest import KubeClient
from tests import programs
from tests.e2e.processes import Bench, until
from tests.fakes.authority import OtherCA
from tests.fakes.identity import AUDIENCE, FakeIssuer, FakeWebhook, running

pytestmark = [pytest.mark.e2e, pytest.mark.kubectl, pytest.mark.timeout(120)]
GROUP = "login.open-cluster-management.io"
HUB = "hub.open-cluster-management.io"
LOGIN = f"/apis/{GROUP}/v1alpha1"
BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"


@dataclass
class Stage:
    """A hub that knows an issuer and a webhook, and somebody with a home of his own."""

    bench: Bench
    issuer: FakeIssuer
    webhook: FakeWebhook
    home: Path = Path()

    @property
    def environment(self) -> dict[str, str]:
        programs = f"{self.home / 'bin'}{os.pathsep}{os.environ['PATH']}"
        return {**os.environ, "HOME": str(self.home), "XDG_CACHE_HOME": str(self.home / "cache"), "PATH": programs}

    async def hubctl(self, *arguments: str, given: str = "") -> CompletedProcess[str]:
        return await programs.run("hubctl", *arguments, given=given, env=self.environment)

    async def kubectl(self, path: Path, *arguments: str) -> CompletedProcess[str]:
        return await programs.command("kubectl", f"--kubeconfig={path}", *arguments, env=self.environment)

    async def login(self, authenticator: str, *source: str, given: str = "", name: str = "ann") -> Path:
        path = self.home / f"{name}.kubeconfig"
        hub = ("--kubeconfig", str(self.bench.admin))
        ended = await self.hubctl("login", *hub, "--authenticator", authenticator, *source, "-o", str(path), given=given)
        assert ended.returncode == 0, ended
        assert f'logged in as "{name}"' in ended.stdout
        return path

    def kubeconfig(self, name: str, user: dict[str, Any]) -> Path:
        """The administrator's, with another user in it."""
        document = yaml.safe_load(self.bench.admin.read_text())
        document["users"][0]["user"] = user
        path = self.home / f"{name}.kubeconfig"
        path.write_text(yaml.safe_dump(document))
        return path

    def kept(self) -> list[Path]:
        return sorted((self.home / "cache").rglob("*.json"))


def authenticator(kind: str, name: str, authority: OtherCA, **spec: Any) -> dict[str, Any]:
    trust = {"certificateAuthorityData": b64encode(authority.certificate).decode()}
    return {"apiVersion": f"{GROUP}/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": {**spec, "tls": trust}}


def viewers(*groups: str) -> dict[str, Any]:
    api = "rbac.authorization.k8s.io"
    return {
        "apiVersion": f"{api}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "viewers"},
        "subjects": [{"kind": "Group", "apiGroup": api, "name": group} for group in groups],
        "roleRef": {"apiGroup": api, "kind": "ClusterRole", "name": "view"},
    }


@pytest.fixture(scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    """What all tests of this file share: nobody has a home yet."""
    authority, bench = OtherCA("people"), Bench(tmp_path_factory.mktemp("login"))
    issuer, webhook = FakeIssuer(authority), FakeWebhook(authority)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(bench.close)
        await stack.enter_async_context(running(issuer))
        await stack.enter_async_context(running(webhook))
        await bench.hub("--audit-login-names=true")
        client = await stack.enter_async_context(await KubeClient.from_file(bench.admin))
        jwt = authenticator("JWTAuthenticator", "corp", authority, issuer=issuer.url, audience=AUDIENCE)
        await client.create(f"{LOGIN}/jwtauthenticators", jwt)
        hook = authenticator("WebhookAuthenticator", "hook", authority, endpoint=webhook.url)
        await client.create(f"{LOGIN}/webhookauthenticators", hook)
        await client.create(BINDINGS, viewers("ops"))
        yield Stage(bench, issuer, webhook)
    assert "PRIVATE KEY" not in bench.logs, "a private key is in a log"


@pytest.fixture
def stage(site: Stage, tmp_path: Path) -> Stage:
    home = tmp_path / "home"
    program = home / "bin" / "hubctl"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m hubctl "$@"\n')
    program.chmod(0o755)
    (home / "ca.crt").write_bytes(site.issuer.authority.certificate)
    site.issuer.exchanged.clear()
    return replace(site, home=home)


async def test_kubectl_and_hubctl_work_with_the_token_of_an_issuer(stage: Stage) -> None:
    token = stage.home / "token"
    token.write_text(stage.issuer.token("ann", groups=["ops"]))
    path = await stage.login("jwt/corp", "--token-file", str(token))
    made = stage.kept()[0].stat().st_mtime_ns
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    user = yaml.safe_load(path.read_text())["users"][0]["user"]
    assert (list(user), user["exec"]["command"]) == (["exec"], "hubctl")
    ended = await stage.kubectl(path, "get", "managedclusters")
    assert (ended.returncode, ended.stderr.strip()) == (0, "No resources found"), ended
    ended = await stage.kubectl(path, "auth", "whoami", "-o", "json")
    assert json.loads(ended.stdout)["status"]["userInfo"]["username"] == "ann"
    ended = await stage.kubectl(path, "delete", "managedcluster", "none")
    assert 'User "ann" cannot delete' in ended.stderr
    ended = await stage.hubctl("--kubeconfig", str(path), "whoami")
    assert "user:    ann" in ended.stdout
    assert "ops" in ended.stdout
    (certificate,) = stage.kept()
    assert stat.S_IMODE(certificate.stat().st_mode) == 0o600
    stored_certificate = json.loads(certificate.read_text())
    assert certificate.stat().st_mtime_ns == made, "one certificate served all of it"

    # near its end it is renewed, and the key with it
    certificate.write_text(json.dumps({**stored_certificate, "expires": "2020-01-01T00:00:00Z"}))
    certificate.chmod(0o600)
    assert (await stage.kubectl(path, "get", "managedclusters")).returncode == 0
    assert json.loads(certificate.read_text())["key"] != stored_certificate["key"]

    # a token that is good no more is said so, on standard error alone
    certificate.unlink()
    token.write_text(stage.issuer.token("ann", exp=1))
    ended = await stage.kubectl(path, "get", "managedclusters")
    assert ended.returncode != 0
    assert "authentication failed" in ended.stderr
    assert token.read_text() not in ended.stderr + ended.stdout

    # and nothing of a token is in what the hub wrote
    assert token.read_text().split(".")[2] not in (stage.bench.folder / "hub.log").read_text()


async def test_a_revoked_login_is_refused_and_logging_out_forgets_it(stage: Stage) -> None:
    path = await stage.login("jwt/corp", "--token-stdin", given=stage.issuer.token("ann", groups=["ops"]))
    assert len(stage.kept()) == 2, "the certificate, and the token that came by the pipe"
    assert (await stage.kubectl(path, "get", "managedclusters")).returncode == 0
    given = json.loads(stage.kept()[0].read_text())["chain"]
    serial = f"{pki.parse_certificate(given.encode()).serial:x}"

    async def remembered() -> Any:
        async with await KubeClient.from_file(stage.bench.admin) as client:
            records = (await client.get("/apis/hub.open-cluster-management.io/v1alpha1/auditrecords"))["items"]
        return next((each for each in records if each.get("annotations", {}).get("login.muster/serial") == serial), None)

    record = await until(remembered, what="the record of the exchange")
    assert record["annotations"]["login.muster/user"] == "ann"
    assert record["annotations"]["authentication.kubernetes.io/token-hash"].startswith("SHA256=")
    async with await KubeClient.from_file(stage.bench.admin) as client:
        revocation = {"apiVersion": f"{HUB}/v1alpha1", "kind": "Revocation", "metadata": {"name": f"login-{serial[:8]}"}}
        await client.create(f"/apis/{HUB}/v1alpha1/revocations", {**revocation, "spec": {"serial": serial}})

    async def refused() -> bool:
        return (await stage.kubectl(path, "get", "managedclusters")).returncode != 0

    await until(refused, what="a revoked login opens nothing")
    ended = await stage.hubctl("logout", "--kubeconfig", str(path))
    assert (ended.returncode, ended.stdout.strip(), stage.kept()) == (0, "logged out", [])
    ended = await stage.kubectl(path, "get", "managedclusters")
    assert (ended.returncode != 0, "run `hubctl login` again" in ended.stderr) == (True, True), ended


async def test_a_user_of_a_webhook_logs_in(stage: Stage) -> None:
    stage.webhook.users["pass"] = {"username": "bob", "groups": ["ops"]}
    bob = await stage.login("webhook/hook", "--token-stdin", given="pass", name="bob")
    assert (await stage.kubectl(bob, "get", "managedclusters")).returncode == 0


async def test_a_person_logs_in_at_the_browser(stage: Stage) -> None:
    path = stage.home / "ann.kubeconfig"
    source = ("--oidc-issuer", stage.issuer.url, "--oidc-client-id", "muster-cli", "--oidc-ca", str(stage.home / "ca.crt"))
    process = await asyncio.create_subprocess_exec(
        *("hubctl", "login", "--kubeconfig", str(stage.bench.admin), "--authenticator", "jwt/corp"),
        *(*source, "--no-browser", "-o", str(path)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=stage.environment,
    )
    assert process.stderr is not None
    address = re.sub(r"^log in at: ", "", (await asyncio.wait_for(process.stderr.readline(), 20)).decode()).strip()
    asked = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
    assert (asked["response_type"], asked["code_challenge_method"], asked["client_id"]) == ("code", "S256", "muster-cli")
    redirect = asked["redirect_uri"]
    assert redirect.startswith("http://127.0.0.1:")
    async with aiohttp.ClientSession() as session:
        async with session.get(redirect, params={"code": "stolen", "state": "guessed"}) as response:
            assert response.status == 400
        async with session.get(redirect, params={"code": "c0de", "state": asked["state"]}) as response:
            assert response.status == 200
    out, err = await asyncio.wait_for(process.communicate(), 20)
    assert process.returncode == 0, (out, err)
    (form,) = stage.issuer.exchanged
    assert (form["grant_type"], form["code"], form["redirect_uri"]) == ("authorization_code", "c0de", redirect)
    assert (await stage.kubectl(path, "auth", "whoami")).returncode == 0
    assert json.loads((await stage.hubctl("--kubeconfig", str(path), "whoami", "-o", "json")).stdout)["user"] == "ann"


async def test_a_program_logs_in_with_its_client_secret(stage: Stage) -> None:
    secret = stage.home / "secret"
    secret.write_text("s3cret:/?\n")
    source = ("--oidc-issuer", stage.issuer.url, "--oidc-client-id", "ci", "--oidc-ca", str(stage.home / "ca.crt"))
    flow = ("--oidc-flow", "client-credentials", "--oidc-client-secret-file", str(secret))
    path = await stage.login("jwt/corp", *source, *flow)
    (form,) = stage.issuer.exchanged
    assert form["grant_type"] == "client_credentials"
    assert form["authorization"] == f"Basic {b64encode(b'ci:s3cret%3A%2F%3F').decode()}"
    assert "s3cret" not in path.read_text()

    async def ready() -> bool:
        return (await stage.kubectl(path, "auth", "whoami")).returncode == 0

    await until(ready, what="kubectl is logged in")
