"""hubctl as a program: whom a kubeconfig makes it, what it does when a hub or its reader leaves, and its exit codes."""

import asyncio
import json
import os
import re
import shutil
import signal
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from hub.registry import certificates
from hubctl.__main__ import COMMANDS
from hubctl.client.http import ApiClient
from hubctl.errors import DONE, FAILED, INTERRUPTED, MISUSED, NOT_FOUND, NOT_WELL, UNREACHABLE
from machinery import pki
from machinery.client import kubeconfig
from machinery.meta.timestamps import format_time
from tests.e2e.processes import until
from tests.fakes.forwarder import ConnectProxy
from tests.fakes.hubctl import Said, hubctl, hubctl_at
from tests.integration.https_door.conftest import ACCOUNTS, LIFETIMES, RBAC, HubUnderTest, Visitor, admin_of, kept_free, run

V1, V1BETA1 = "client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"
PLUGIN = """#!/bin/sh
printf '%s\\n' "$KUBERNETES_EXEC_INFO" >> asked
printf '%s|%s\\n' "$*" "$TENANT" > called
until [ -f answer ]; do sleep 0.02; done
exec cat answer
"""


@dataclass
class Site:
    """A hub whose ServiceAccounts may do everything, and a folder with a plug-in that prints the file beside it."""

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
        return self.user(exec={"apiVersion": V1, "command": str(self.folder / "plugin"), "interactiveMode": "Never", **fields})

    def answer(self, status: Mapping[str, Any], version: str = V1) -> None:
        """Sets the plug-in's output."""
        content = {"apiVersion": version, "kind": "ExecCredential", "status": dict(status)}
        new = self.folder / "answer.new"
        new.write_text(json.dumps(content))
        new.replace(self.folder / "answer")

    @property
    def asked(self) -> list[Any]:
        """The input of each call of the plug-in."""
        path = self.folder / "asked"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    async def certificate(self, life: timedelta) -> dict[str, str]:
        """A plug-in's status with an operator's certificate."""
        key = pki.generate_key()
        issued = await self.hub.store.run(
            certificates.admit_operator, "ann", pki.public_key_of(key), self.hub.issuer, replace(LIFETIMES, operator=life)
        )
        ends = pki.parse_chain(issued.chain)[0].not_after
        content = {"clientCertificateData": issued.chain.decode(), "clientKeyData": key.decode()}
        return {**content, "expirationTimestamp": format_time(ends)}


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
    text = await hubctl_at(path, "whoami", "-o", "json")
    return str(json.loads(text.out)["user"]) if text.code == 0 else text.err


def account(name: str) -> str:
    return f"system:serviceaccount:default:{name}"


async def test_a_token_opens_to_hubctl_what_it_opens_to_kubectl(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    path = site.user(token=await site.admin.token("robot"))
    assert await whoami(path) == account("robot")
    await site.hub.runs(
        ("hubctl get clusters", DONE, "edge1"),
        ("hubctl accept edge1", DONE, ""),
        ("hubctl label cluster edge1 env=prod", DONE, ""),
        path=path,
    )
    token = await site.admin.token("robot")
    async with ConnectProxy("ann:hush-hush").serving() as proxy:
        good, bad = (f"http://ann:{password}@127.0.0.1:{proxy.port}" for password in ("hush-hush", "hush"))
        assert await whoami(by_proxy(site.user(token=token), good)) == account("robot")
        assert proxy.tunnels == [f"127.0.0.1:{site.hub.port}"]
        refused = await site.hub.hubctl("get clusters", path=by_proxy(site.user(token=token), bad))

        server = f"https://0.0.0.0:{site.hub.port}"  # the same hub, and no loopback address
        for excluded, count in (("", 2), ("10.0.0.0/8, 0.0.0.0/8", 2)):
            monkeypatch.setenv("https_proxy", good)
            monkeypatch.setenv("NO_PROXY", excluded)
            path = edited(site.user(token=token), server=server, **{"tls-server-name": "127.0.0.1"})
            assert (await whoami(path), len(proxy.tunnels)) == (account("robot"), count), excluded
    monkeypatch.delenv("NO_PROXY")
    monkeypatch.setenv("https_proxy", "http://ann:hush@127.0.0.1:1")
    away = f"the hub at {server} cannot be reached through the proxy http://127.0.0.1:1 (HTTPS_PROXY) (connection refused)"
    await site.hub.runs(("hubctl get clusters", UNREACHABLE, away), path=path)
    assert (refused.code, "it answers 407" in refused.err, "hush" in refused.err) == (UNREACHABLE, True, False), refused

    path = site.user(tokenFile="guess")
    (site.hub.folder / "guess").write_text("hush-hush-hush")
    answer = await site.hub.hubctl("get clusters", path=path)
    assert (answer.code, "hush" in answer.out + answer.err) == (FAILED, False), answer
    unknown = f'does not know user "robot" of kubeconfig {path}: the token in'
    for words in (unknown, "`kubectl create token NAME`", "`hubctl login`"):
        assert words in answer.err
    await site.admin.ask("DELETE", f"{RBAC}/clusterrolebindings/system:serviceaccounts:default")
    answer = await site.hub.hubctl("get clusters", path=site.user(token=await site.admin.token("robot")))
    assert (answer.code, f'User "{account("robot")}" cannot list' in answer.err) == (FAILED, True), answer
    assert 'user "robot" of kubeconfig' in answer.err


async def test_requests_run_as_the_impersonated_user_of_the_options_or_the_kubeconfig(site: Site) -> None:
    token, everybody = await site.admin.token("robot"), "system:authenticated"
    fields: dict[str, Any] = {"as": "bob", "as-groups": ["dev", "ops"], "as-uid": "u-1", "as-user-extra": {"a/b": ["c"]}}
    acting = Path(shutil.copy(site.user(token=token, **fields), site.folder / "acting"))
    own = site.user(token=token)
    for path, words, user, *groups in (
        (own, "--as bob --as-group dev --as-group ops", "bob", "dev", "ops", everybody),
        (own, "--as b\u00fcb", "b\u00fcb", everybody),
        (acting, "", "bob", "dev", "ops", everybody),
        (acting, "--as carol --as-group qa", "carol", "qa", everybody),
    ):
        for line in (f"{words} whoami -o json", f"whoami -o json {words}"):
            known = json.loads(await site.hub.output(f"hubctl {line}", path=path))
            assert (known["user"], known["groups"]) == (user, groups), line
    await site.hub.runs(
        ("hubctl get clusters --as bob", FAILED, 'acting as "bob", may not do this'),
        ("hubctl --as-group dev get clusters", MISUSED, "give --as USER"),
        ("hubctl get clusters --as 'a\nb'", MISUSED, "not printable"),
        path=own,
    )
    review = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    answer = ApiClient(kubeconfig.read_kubeconfig(acting)).request
    info = (await asyncio.to_thread(answer, "POST", review, {"kind": "SelfSubjectReview"}))["status"]["userInfo"]
    assert (info["uid"], info["extra"]) == ("u-1", {"a/b": ["c"]})


async def test_a_login_is_added_to_the_kubeconfig_in_use_and_changes_nothing_else(
    site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in (("HOME", "home"), ("XDG_CACHE_HOME", "home/cache"), ("XDG_DATA_HOME", "data"), ("KUBECONFIG", "")):
        monkeypatch.setenv(name, value and str(tmp_path / value))
    token, authority = tmp_path / "token", tmp_path / "hub.crt"
    token.write_text(await site.admin.token("robot"))
    authority.write_bytes(site.hub.issuer.trust_bundle)
    source = f"login --authenticator serviceaccount --token-file {token}"
    source = f"{source} --server {site.hub.server} --certificate-authority {authority}"

    async def ends(line: str, code: int = DONE, words: str = "") -> None:
        ended = await asyncio.to_thread(hubctl, *line.split())
        assert (ended.code, words in ended.out + ended.err) == (code, True), (line, ended)

    first, context = tmp_path / "home" / ".kube" / "config", f"{account('robot')}@127.0.0.1"
    await ends(source, words=f'context "{context}" is in {first}')
    assert stat.S_IMODE(first.stat().st_mode) == 0o600
    await ends("whoami", words=account("robot"))
    made = yaml.safe_load(first.read_bytes())
    assert (made["current-context"], list(made["users"][0]["user"])) == (context, ["exec"])

    file, other = tmp_path / "list", {"name": "other", "cluster": {"server": "https://other", "odd": [1]}, "extra": 1}
    before = {"odd": True, "users": [], "contexts": [{"name": "other"}], "current-context": "other", "clusters": [other]}
    file.write_text(yaml.safe_dump(before, sort_keys=False))
    file.chmod(0o644)
    link = tmp_path / "link"
    link.symlink_to(file)
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'absent'}:{link}:{first}")
    await ends(f"{source} --keep-context --name hub")
    parts = {"clusters": "hub", "users": f"{account('robot')}@hub", "contexts": f"{account('robot')}@hub"}
    after = yaml.safe_load(file.read_bytes())
    assert {**after, **{part: after[part][:-1] for part in parts}} == before
    assert {part: after[part][-1]["name"] for part in parts} == parts
    assert (list(after), link.is_symlink(), stat.S_IMODE(file.stat().st_mode)) == (list(before), True, 0o600)
    kept = file.read_bytes()
    await ends(f"{source} --keep-context --name hub")
    assert file.read_bytes() == kept, "the same login is there already"

    refused = 'already has another cluster "other": choose another name for the hub with --name'
    await ends(f"{source} --name other", MISUSED, refused)
    assert file.read_bytes() == kept
    await ends(f"{source} --name other --overwrite")
    assert [each["name"] for each in yaml.safe_load(file.read_bytes())["clusters"]] == ["other", "hub"]
    await ends("whoami", words=account("robot"))
    (tmp_path / "absent").touch()
    await ends(source)
    assert yaml.safe_load((tmp_path / "absent").read_bytes())["current-context"] == context
    await ends("logout --context other", MISUSED, 'no user in context "other"')
    await ends("logout", words="logged out")
    monkeypatch.setenv("KUBECONFIG", str(await site.hub.admin()))
    await ends("logout", MISUSED, "is not of `hubctl login`")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "data" / "muster" / "admin.kubeconfig"))
    await ends(source, MISUSED, "a hub overwrites")


async def test_a_plug_in_is_called_as_kubectl_calls_it_and_once_more_after_a_refusal(site: Site) -> None:
    site.answer({"token": await site.admin.token("robot")})
    answer = await site.hub.hubctl("get clusters,csr", path=site.plugin())
    assert (answer.code, len(site.asked)) == (0, 1), "one answer serves all requests of a command"
    assert site.asked[0]["spec"] == {"interactive": False}

    site.answer({"token": await site.admin.token("robot")})
    path = site.plugin()
    await site.end("robot")
    refused = await whoami(path)
    assert len(site.asked) == 3, "asked once more, and no more than that"
    assert f'does not know user "robot" of kubeconfig {path}' in refused
    assert "the credential from the plug-in" in refused

    for version in (V1, V1BETA1):
        site.answer({"token": await site.admin.token("robot")}, version)
        env = [{"name": "TENANT", "value": "one"}]
        path = site.plugin(apiVersion=version, args=["login", "--for", "hub"], env=env, provideClusterInfo=True)
        assert (await whoami(path), (site.folder / "called").read_text()) == (account("robot"), "login --for hub|one\n")
        asked = site.asked[-1]
        assert (asked["apiVersion"], asked["kind"], asked["spec"]["interactive"]) == (version, "ExecCredential", False)
        assert asked["spec"]["cluster"]["server"] == site.hub.server


async def test_what_is_posted_is_not_sent_again_when_its_connection_is_dropped(site: Site) -> None:
    """A certificate that TLS refuses: it does not show whether the hub has executed the request."""
    over = kubeconfig.read_kubeconfig(await site.hub.agent("edge1", expired_since=timedelta(hours=1))).require_credential()
    site.answer({"clientCertificateData": over.chain.decode(), "clientKeyData": over.key.decode()})
    path = site.plugin()
    for line, asked in (("whoami", 1), ("get clusters", 3)):
        ended = await site.hub.hubctl(line, path=path)
        assert (ended.code, "expired at" in ended.err, len(site.asked)) == (FAILED, True, asked), ended


@pytest.mark.parametrize("ends", ["refused", "over"])
async def test_a_watch_goes_on_with_what_the_plug_in_tells_next(site: Site, ends: str) -> None:
    watching = await site.hub.start_hubctl("get", "clusters", "-w", "-o", "name", path=site.plugin())
    await until(lambda: bool(site.asked), what="the plug-in is asked")  # from now on the certificate's time runs
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


def edited(path: Path, **fields: str) -> Path:
    """The kubeconfig with these fields of its cluster."""
    document = yaml.safe_load(path.read_text())
    document["clusters"][0]["cluster"] |= fields
    path.write_text(yaml.safe_dump(document))
    return path


def by_proxy(path: Path, proxy: str) -> Path:
    return edited(path, **{"proxy-url": proxy})


COMPLETED = """
source {script}
COMP_WORDS=({words}) COMP_CWORD={at}
_hubctl_completion "{name}"
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
CALLS = {
    "hubctl": "__main__ import main",
    "kubectl-hub": "kubectl_plugin import main",
    "kubectl_complete-hub": "kubectl_plugin import complete as main",
}


class Installed:
    """The programs as they are installed, and a hub with three clusters."""

    def __init__(self, hub: HubUnderTest, folder: Path) -> None:
        self.hub = hub
        self.folder = folder
        for name, call in CALLS.items():
            file = folder / name
            file.write_text(f"#!{sys.executable}\nfrom hubctl.{call}\nmain()\n")
            file.chmod(0o755)

    async def __call__(self, *command: str) -> Said:
        path = os.pathsep.join((str(self.folder), os.environ["PATH"]))
        return await run(*command, HUBCTL_KUBECONFIG=str(await self.hub.admin()), HOME=str(self.hub.folder), PATH=path)


@pytest.fixture
async def installed(hub: HubUnderTest, tmp_path: Path) -> Installed:
    for name in ("edge1", "edge2", "shop1"):
        await hub.join(name)
    (tmp_path / "bin").mkdir()
    return Installed(hub, tmp_path / "bin")


async def test_the_program_ends_with_the_code_of_its_command(installed: Installed) -> None:
    for words, code, text in (
        *(("--help", DONE, "hubctl create bootstrap-kubeconfig --cluster edge1"), ("--version", DONE, "hubctl, version ")),
        ("get clusters -o name", DONE, "managedcluster.cluster.open-cluster-management.io/edge1\n"),
        ("get cluster nope", NOT_FOUND, '"nope" not found'),
        ("lable cluster edge1 a=b", MISUSED, 'there is no command "lable"'),
    ):
        ended = await installed("hubctl", *words.split())
        assert (ended.code, text in ended.out + ended.err) == (code, True), (words, ended)
    await installed.hub.stop()
    with kept_free(installed.hub.port):
        ended = await installed("hubctl", "get", "clusters")
    assert (ended.code, installed.hub.server in ended.err, "Traceback" in ended.err) == (UNREACHABLE, True, False)


async def test_a_reader_that_has_enough_is_no_error_and_an_answer_that_cannot_be_written_is_one(installed: Installed) -> None:
    for words in ("get clusters -o json", "get clusters -w", "--help"):
        ended = await installed("bash", "-c", f"hubctl {words} | true; exit ${{PIPESTATUS[0]}}")
        assert (ended.code, ended.out, ended.err) == (DONE, "", ""), words
    for words, code in (("get cluster nope", NOT_FOUND), ("diagnose cluster edge1", NOT_WELL), ("deny nope edge1", NOT_FOUND)):
        ended = await installed("bash", "-c", f"hubctl {words} 2>&1 | true; exit ${{PIPESTATUS[0]}}")
        assert (ended.code, ended.out, ended.err) == (code, "", ""), words
    ended = await installed("bash", "-c", "hubctl get csr -o json > /dev/full")
    assert (ended.code, ended.err) == (FAILED, "error: the answer cannot be written: No space left on device\n")


async def test_an_interrupted_watch_ends_without_a_word(installed: Installed) -> None:
    watching = await installed.hub.start_hubctl("get", "cluster", "edge1", "-w", "-o", "name")
    assert (await watching.line()).endswith("/edge1")
    await installed.hub.output("hubctl accept edge1")
    assert (await watching.line()).endswith("/edge1"), "it waits for the next change"
    watching.process.send_signal(signal.SIGINT)
    _, err = await watching.process.communicate()
    assert (watching.process.returncode, err) == (INTERRUPTED, b"\n")


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not on the PATH")
async def test_bash_completes_names(installed: Installed, tmp_path: Path) -> None:
    script = tmp_path / "completion"
    script.write_text((await installed("hubctl", "completion", "bash")).out)
    line = COMPLETED.format(script=script, words="hubctl accept edge", at=2, name=installed.folder / "hubctl")
    assert (await installed("bash", "-c", line)).out.split() == ["edge1", "edge2"]


@pytest.mark.kubectl
async def test_kubectl_hub_is_hubctl_and_completes_as_it(installed: Installed) -> None:
    answer = await installed("kubectl", "hub", "get", "clusters", "-o", "jsonpath={.items[*].metadata.name}")
    assert answer.out == "edge1 edge2 shop1", answer.err
    assert (await installed("kubectl", "hub", "get", "cluster", "nope")).code == NOT_FOUND
    completed = await installed("kubectl", "__complete", "hub", "accept", "edge")
    assert completed.out.splitlines() == ["edge1", "edge2", ":4"], completed.err


async def test_hubctl_starts_without_what_is_slow_to_load() -> None:
    """The figure (200 ms) is measured in bench; what would break it is caught here."""
    slow = ("asyncio", "kubernetes", "sqlalchemy", "aiohttp", "grpc", "cryptography", "pydantic", "rich", "structlog")
    modules = ", ".join(sorted({target.partition(":")[0] for target, _ in COMMANDS.values()}))
    code = f"import sys, {modules}; print([name for name in {slow} if name in sys.modules])"
    assert (await run(sys.executable, "-c", code)).out == "[]\n"


async def test_a_watch_shows_every_change_once_across_a_restart(hub: HubUnderTest) -> None:
    await hub.join("edge1")
    watching = await hub.start_hubctl("get", "clusters", "-w")
    one = await hub.start_hubctl("get", "cluster", "edge1", "-w", "-o", "name")
    assert (await watching.line()).startswith("NAME ")
    assert (await watching.line()).startswith("edge1 ")
    assert (await one.line()).endswith("/edge1")
    await hub.join("edge2")
    assert (await watching.line()).startswith("edge2 ")
    await hub.restart()
    for name in ("edge3", "edge4"):
        await hub.join(name)
    await hub.output("hubctl delete cluster edge2")
    assert [(await watching.line()).split()[0] for _ in range(2)] == ["edge3", "edge4"]
    assert re.fullmatch(r"edge2 .*\(deleted\)", await watching.line())
    await hub.output("hubctl accept edge1")
    assert (await one.line()).endswith("/edge1"), "a watch of one cluster shows only that one"
    for each in (watching, one):
        answer = await each.end()
        assert (answer.count("trying again") <= 1, "Traceback" in answer) == (True, False), answer


async def test_a_watch_outlives_a_hub_that_ends_it_and_takes_a_while_to_stop(hub: HubUnderTest) -> None:
    """Meanwhile it refuses what is asked, as does what stands before it: with a status, and without a word that is a hub's."""
    await hub.join("edge1")
    watching = await hub.start_hubctl("get", "clusters", "-w", "-o", "name")
    assert (await watching.line()).endswith("/edge1")
    hub.operators.draining.refuse()
    await hub.operators.door.server.watches.drain(timedelta(seconds=1))
    assert watching.process.stderr is not None
    async with asyncio.timeout(15):
        assert "trying again" in (await watching.process.stderr.readline()).decode()
    await hub.stop()
    await hub.start()
    await hub.join("edge2")
    assert (await watching.line()).endswith("/edge2")
    assert "Traceback" not in await watching.end()
