"""hubctl as whoever a kubeconfig says: by a token, by a file that others renew, or by a plug-in."""

import json
import stat
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from hub.registry.certificates import service
from hubctl.errors import DONE, FAILED, UNREACHABLE
from machinery import pki
from machinery.client import kubeconfig
from machinery.meta.timestamps import format_time
from tests.e2e.processes import until
from tests.fakes.connect_proxy import connect_proxy
from tests.fakes.hubctl import hubctl_at
from tests.integration.https_door.conftest import ACCOUNTS, LIFETIMES, RBAC, HubUnderTest, Visitor, admin_of

V1, V1BETA1 = "client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"
PLUGIN = """#!/bin/sh
printf '%s\\n' "$KUBERNETES_EXEC_INFO" >> asked
printf '%s|%s\\n' "$*" "$TENANT" > called
until [ -f answer ]; do sleep 0.02; done
exec cat answer
"""


@dataclass
class Site:
    """A hub whose ServiceAccounts may do everything, and a folder with a plug-in that tells what lies beside it."""

    hub: HubUnderTest
    admin: Visitor
    folder: Path

    async def end(self, account: str) -> None:
        assert (await self.admin.ask("DELETE", f"{ACCOUNTS}/{account}"))[0] == 200

    def user(self, **user: Any) -> Path:
        """A kubeconfig for a user like that."""
        path = self.hub.token_kubeconfig("robot", "-")
        document = yaml.safe_load(path.read_text())
        document["users"][0]["user"] = user
        path.write_text(yaml.safe_dump(document))
        return path

    def plugin(self, **fields: Any) -> Path:
        """A kubeconfig with the plug-in."""
        told = {"apiVersion": V1, "command": str(self.folder / "plugin"), "interactiveMode": "Never", **fields}
        return self.user(exec=told)

    def answer(self, status: Mapping[str, Any], version: str = V1) -> None:
        """What the plug-in tells from now on."""
        told = {"apiVersion": version, "kind": "ExecCredential", "status": dict(status)}
        new = self.folder / "answer.new"
        new.write_text(json.dumps(told))
        new.replace(self.folder / "answer")

    @property
    def asked(self) -> list[Any]:
        """What the plug-in was told, each time."""
        path = self.folder / "asked"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    async def certificate(self, life: timedelta) -> dict[str, str]:
        """A plug-in's status with an operator's certificate."""
        key = pki.generate_key()
        lifetimes = replace(LIFETIMES, operator=life)
        issued = await self.hub.store.run(service.admit_operator, "ann", pki.public_key_of(key), self.hub.issuer, lifetimes)
        ends = pki.parse_chain(issued.chain)[0].not_after
        told = {"clientCertificateData": issued.chain.decode(), "clientKeyData": key.decode()}
        return {**told, "expirationTimestamp": format_time(ends)}


@pytest.fixture
async def site(hub: HubUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    folder = tmp_path / "plugins"
    folder.mkdir()
    monkeypatch.chdir(folder)
    program = folder / "plugin"
    program.write_text(PLUGIN)
    program.chmod(stat.S_IRWXU)
    admin = await admin_of(hub)
    await admin.bind("cluster-admin", "Group", "system:serviceaccounts:default")
    await hub.join("edge1")
    return Site(hub, admin, folder)


async def whoami(path: Path) -> str:
    """As whom the hub knows hubctl; what hubctl says where it does not."""
    said = await hubctl_at(path, "whoami", "-o", "json")
    return str(json.loads(said.out)["user"]) if said.code == 0 else said.err


def account(name: str) -> str:
    return f"system:serviceaccount:default:{name}"


async def test_a_token_opens_to_hubctl_what_it_opens_to_kubectl(site: Site) -> None:
    path = site.user(token=await site.admin.token("robot"))
    assert await whoami(path) == account("robot")
    await site.hub.runs(
        ("hubctl get clusters", DONE, "edge1"),
        ("hubctl accept edge1", DONE, ""),
        ("hubctl label cluster edge1 env=prod", DONE, ""),
        path=path,
    )
    token = await site.admin.token("robot")
    async with connect_proxy("ann:hush-hush") as proxy:
        good, bad = (f"http://ann:{password}@127.0.0.1:{proxy.port}" for password in ("hush-hush", "hush"))
        assert await whoami(by_proxy(site.user(token=token), good)) == account("robot")
        assert proxy.tunnels == [f"127.0.0.1:{site.hub.port}"]
        refused = await site.hub.hubctl("get clusters", path=by_proxy(site.user(token=token), bad))
    assert (refused.code, "it answers 407" in refused.err, "hush" in refused.err) == (UNREACHABLE, True, False), refused

    path = site.user(tokenFile="guess")
    (site.hub.folder / "guess").write_text("hush-hush-hush")
    said = await site.hub.hubctl("get clusters", path=path)
    assert (said.code, "hush" in said.out + said.err) == (FAILED, False), said
    unknown = f'does not know user "robot" of kubeconfig {path}: the token in'
    for words in (unknown, "`kubectl create token NAME`", "`hubctl login`"):
        assert words in said.err
    await site.admin.ask("DELETE", f"{RBAC}/clusterrolebindings/system:serviceaccounts:default")
    said = await site.hub.hubctl("get clusters", path=site.user(token=await site.admin.token("robot")))
    assert (said.code, f'User "{account("robot")}" cannot list' in said.err) == (FAILED, True), said
    assert 'user "robot" of kubeconfig' in said.err


async def test_a_tokens_file_counts_before_the_token_and_is_read_again(site: Site) -> None:
    file = site.hub.folder / "token"
    path = site.user(token=await site.admin.token("inline"), tokenFile="token")
    assert await whoami(path) == account("inline"), "while the file is not there"
    file.write_text(await site.admin.token("one") + "\n")
    assert await whoami(path) == account("one")
    watching = await site.hub.start_hubctl("get", "clusters", "-w", "-o", "name", path=path)
    assert (await watching.line()).endswith("/edge1")
    file.write_text(await site.admin.token("two"))
    await site.end("one")
    await site.hub.join("edge2")
    assert (await watching.line()).endswith("/edge2")
    assert "Traceback" not in await watching.end()


async def test_a_plug_in_is_called_as_kubectl_calls_it_and_once_more_after_a_refusal(site: Site) -> None:
    site.answer({"token": await site.admin.token("robot")})
    said = await site.hub.hubctl("get clusters,csr", path=site.plugin())
    assert (said.code, len(site.asked)) == (0, 1), "one answer serves all requests of a command"
    assert site.asked[0]["spec"] == {"interactive": False}

    site.answer({"token": await site.admin.token("robot")})
    path = site.plugin()
    await site.end("robot")
    refused = await whoami(path)
    assert len(site.asked) == 3, "asked once more, and no more than that"
    assert f'does not know user "robot" of kubeconfig {path}' in refused
    assert "the credential that the plug-in" in refused

    for version in (V1, V1BETA1):
        site.answer({"token": await site.admin.token("robot")}, version)
        env = [{"name": "TENANT", "value": "one"}]
        path = site.plugin(apiVersion=version, args=["login", "--for", "hub"], env=env, provideClusterInfo=True)
        assert await whoami(path) == account("robot")
        assert (site.folder / "called").read_text() == "login --for hub|one\n"
        asked = site.asked[-1]
        assert (asked["apiVersion"], asked["kind"], asked["spec"]["interactive"]) == (version, "ExecCredential", False)
        assert asked["spec"]["cluster"]["server"] == site.hub.server


async def test_what_is_posted_is_not_sent_again_when_its_connection_is_dropped(site: Site) -> None:
    """A certificate that TLS refuses: whether the hub has done what was asked cannot be told by that."""
    over = kubeconfig.read_kubeconfig(await site.hub.agent("edge1", expired_since=timedelta(hours=1))).require_credential()
    site.answer({"clientCertificateData": over.chain.decode(), "clientKeyData": over.key.decode()})
    path = site.plugin()
    for line, asked in (("whoami", 1), ("get clusters", 3)):
        ended = await site.hub.hubctl(line, path=path)
        assert (ended.code, "expired at" in ended.err, len(site.asked)) == (FAILED, True, asked), ended


@pytest.mark.parametrize("ends", ["refused", "over"])
async def test_a_watch_goes_on_with_what_the_plug_in_tells_next(site: Site, ends: str) -> None:
    watching = await site.hub.start_hubctl("get", "clusters", "-w", "-o", "name", path=site.plugin())

    async def begun() -> bool:
        return bool(site.asked)

    await until(begun, what="the plug-in is asked")  # from now on the certificate's time runs
    site.answer({"token": await site.admin.token("one")} if ends == "refused" else await site.certificate(timedelta(seconds=3)))
    assert (await watching.line()).endswith("/edge1")
    site.answer({"token": await site.admin.token("two")})
    if ends == "refused":
        await site.end("one")
    while len(site.asked) < 2:
        assert watching.process.returncode is None
        await site.hub.join("edge2")
        assert (await watching.line()).endswith("/edge2")
        await site.admin.ask("DELETE", "/apis/cluster.open-cluster-management.io/v1/managedclusters/edge2")
        assert (await watching.line()).endswith("/edge2")
    await site.hub.join("edge3")
    assert (await watching.line()).endswith("/edge3")
    assert "Traceback" not in await watching.end()


def by_proxy(path: Path, proxy: str) -> Path:
    document = yaml.safe_load(path.read_text())
    document["clusters"][0]["cluster"]["proxy-url"] = proxy
    path.write_text(yaml.safe_dump(document))
    return path
