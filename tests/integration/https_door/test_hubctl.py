"""hubctl against a real door: what it shows, what it does, what it writes, and how it fails."""

import asyncio
import re
import stat
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from hubctl.client.http import ApiClient
from hubctl.commands.access.login import is_login
from hubctl.commands.clusters.create import is_bootstrap
from hubctl.errors import DONE, FAILED, MISUSED, NOT_FOUND, TIMED_OUT, UNREACHABLE
from hubctl.kubectl_plugin import offered
from machinery import pki
from machinery.client import kubeconfig
from machinery.client.exec_credential import ExecUser
from machinery.client.kubeconfig import ClusterEntry, write_kubeconfig
from tests.checks import PYTHON, WRONG_TEXTS, check_each
from tests.fakes.authority import OtherCA
from tests.fakes.hubctl import LEAVES, hubctl, typed
from tests.fakes.inprocess_hub import HUB
from tests.integration.https_door.conftest import REQUESTS, HubUnderTest, asked_for, kept_free


async def test_accept_approves_no_request_that_took_the_name_since(hub: HubUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    await hub.join("edge6")
    await hub.request("edge6", "edge6-own")
    send = ApiClient.request

    def swapped(client: ApiClient, method: str, path: str, body: Any = None, **rest: Any) -> dict[str, Any]:
        """Another request gets the name before the approval arrives."""
        if path.endswith("/approval"):
            other = {**asked_for("edge6", "xxxxx", "edge6"), "apiVersion": "certificates.k8s.io/v1"}
            send(client, "DELETE", path.removesuffix("/approval"))
            send(client, "POST", REQUESTS, {**other, "metadata": {**other["metadata"], "name": "edge6-own"}})
        return send(client, method, path, body, **rest)

    monkeypatch.setattr(ApiClient, "request", swapped)
    await hub.runs(
        ("hubctl accept edge6", FAILED, '"edge6" is accepted, but its certificate request is not approved: Operation cannot')
    )
    assert '"Approved"' not in await hub.output("hubctl get csr -o json")


async def test_a_bootstrap_kubeconfig_is_complete_private_and_opens_the_hub(hub: HubUnderTest, tmp_path: Path) -> None:
    file = tmp_path / "edge1.kubeconfig"
    await hub.output(
        f"hubctl create bootstrap-kubeconfig --cluster edge1 -o {file} --expires 15m "
        "--server https://hub.example.org:6443 --grpc-server hub.example.org:8443"
    )
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    written = kubeconfig.read_kubeconfig(file)
    endpoint = written.require_endpoint()
    assert (written.cluster.server, endpoint.grpc_server) == ("https://hub.example.org:6443", "hub.example.org:8443")
    assert endpoint.hub_id == HUB
    credential = written.require_credential()
    assert pki.key_matches(credential.chain, credential.key)
    assert pki.is_issued_by(credential.chain, hub.issuer.trust_bundle)
    assert re.search(r"edge1 +0/1 +Active", await hub.output("hubctl get bootstrap-credentials"))


async def test_a_kubeconfig_that_does_not_open_the_hub_is_named_with_the_reason(hub: HubUnderTest, tmp_path: Path) -> None:
    file = tmp_path / "bad.kubeconfig"

    async def refused(content: str | bytes, code: int, *words: str) -> None:
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        ended = await hub.hubctl("get clusters", path=file)
        assert ended.code == code, ended
        assert [word for word in words if word not in ended.err] == [], ended.err
        assert "Traceback" not in ended.err

    for content, words in (("", "is empty"), ("current-context: x\n", 'has no context "x"'), ("{", "is not YAML")):
        await refused(content, MISUSED, str(file), words)
    document = yaml.safe_load((await hub.admin()).read_text())
    document["users"][0]["user"] = {}
    await refused(yaml.safe_dump(document), FAILED, "has no credential")
    document["clusters"][0]["cluster"]["tls-server-name"] = "elsewhere.example.org"
    await refused(yaml.safe_dump(document), FAILED, "serving_names")
    mine = kubeconfig.read_kubeconfig(await hub.admin()).require_credential()
    entry = kubeconfig.ClusterEntry("muster", hub.server, OtherCA("other").certificate)
    await refused(kubeconfig.write_kubeconfig(entry, mine, user="admin"), FAILED, "not signed by the CA in that file")

    ended = await hub.hubctl("get clusters", path=await hub.agent("edge1", expired_since=timedelta(hours=1)))
    assert (ended.code, "agent-edge1.kubeconfig expired at " in ended.err) == (FAILED, True)
    assert "cannot be reached" not in ended.err
    await hub.revoke(await hub.admin())
    await hub.runs(("hubctl get clusters", FAILED, 'does not know user "admin"'))
    await hub.stop()
    with kept_free(hub.port):
        ended = await hub.hubctl("get clusters")
    assert (ended.code, hub.server in ended.err, "hub serve" in ended.err) == (UNREACHABLE, True, True)


WITHOUT_A_HUB = {
    "completion": DONE,
    "apply": MISUSED,  # the file of its example is not there, and that is seen first
    "import": MISUSED,  # the kubeconfig of the OCM hub is not there
    "login": MISUSED,  # the CA of its example is not there
    "logout": MISUSED,  # the administrator's context is no login
    "credential": MISUSED,  # kubectl has to call it
    "diff": MISUSED,  # as from diff(1): 1 is a difference, 2 is trouble
}  # what the first example of a command ends with when there is no hub, where it does not ask one, or not first


async def test_a_hub_that_is_away_has_a_code_of_its_own_whichever_command_asks_it(
    hub: HubUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HUBCTL_KUBECONFIG", str(await hub.admin()))
    monkeypatch.chdir(tmp_path)
    await hub.stop()
    ended = {}
    with kept_free(hub.port):
        for words, command in LEAVES:
            if words.startswith("config "):
                continue  # it would change the kubeconfig of the others, and asks no hub
            begins = words.removesuffix(" anything").split()
            text = await asyncio.to_thread(hubctl, *next(line for line in typed(command) if line[: len(begins)] == begins))
            expected = WITHOUT_A_HUB.get(words, WITHOUT_A_HUB.get(begins[0], UNREACHABLE))
            if text.code != expected or "Traceback" in text.err:
                ended[words] = (text.code, expected, text.err)
    assert ended == {}, str(ended)


async def test_wrong_usage_has_a_code_of_its_own_whichever_command_it_is(hub: HubUnderTest) -> None:
    ended = {words: await hub.hubctl(words, "--no-such-option") for words, _ in LEAVES}
    assert {words: one for words, one in ended.items() if one.code != MISUSED or "--no-such-option" not in one.err} == {}
    assert (await hub.hubctl("get clusters", path=hub.folder / "absent")).code == MISUSED


CREATE = "create bootstrap-kubeconfig --cluster edge1 --allow-loopback -o"
JOIN = "join edge1 --allow-loopback -o"
LOGIN = "login --authenticator serviceaccount --token-file /nowhere -o"
REFUSED = "already exists with other content"


async def test_hubctl_overwrites_a_file_of_somebody_else_only_on_request(hub: HubUnderTest, tmp_path: Path) -> None:
    admin = await hub.admin()
    kept, odd, link = admin.read_bytes(), tmp_path / "odd", tmp_path / "link"
    link.symlink_to(admin)
    for command in (CREATE, JOIN, LOGIN):
        for content in (b"a: [", b"\xff\x00", b"words", kept.replace(b"kind: Config", b"kind: Other")):
            odd.write_bytes(content)
            answer = await hub.hubctl(command, str(odd))
            assert (answer.code, REFUSED in answer.err, odd.read_bytes()) == (MISUSED, True, content), answer
        for path in (admin, link):
            answer = await hub.hubctl(command, str(path))
            assert (answer.code, REFUSED in answer.err, admin.read_bytes()) == (MISUSED, True, kept), answer
    assert await hub.store.read(lambda tx: list(tx.credentials.all())) == []

    await hub.runs((f"hubctl {CREATE} /dev/null --overwrite", MISUSED, "is not a regular file"))
    odd.write_bytes(kept)
    await hub.output(f"hubctl {CREATE} {odd} --overwrite")
    assert [entry["name"] for entry in yaml.safe_load(odd.read_bytes())["users"]] == ["bootstrap-edge1"]


async def test_what_the_command_wrote_itself_is_replaced_also_behind_a_link(hub: HubUnderTest, tmp_path: Path) -> None:
    for number, command in enumerate((CREATE, JOIN)):
        file, link = tmp_path / f"file{number}", tmp_path / f"link{number}"
        file.touch()  # nothing is lost with an empty one
        link.symlink_to(file)
        written = set()
        for path in (file, file, link):
            await hub.output(f"hubctl {command} {path}")
            written.add(file.read_bytes())
        assert (len(written), link.is_symlink(), file.stat().st_mode & 0o777) == (3, True, 0o600), command


def test_a_login_is_replaced_by_the_next() -> None:
    entry, plugin = ClusterEntry("muster", "https://hub:6443", b"ca"), ExecUser("hubctl", ("credential", "--token-kept"))
    (written,) = yaml.safe_load_all(write_kubeconfig(entry, plugin, user="ann"))
    assert is_login([written])
    assert is_login([])
    assert not is_bootstrap([written])
    assert not is_login([{**written, "contexts": [*written["contexts"], {"name": "another"}]}])
    assert not is_login([written, written])
    assert not is_login([{**written, "users": [{"name": "ann", "user": {"exec": {"args": ["get-token"]}}}]}])


def test_no_wrong_value_of_a_flag_is_answered_in_the_terms_of_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub cannot be reached: commands check what they are given before they ask."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    file = tmp_path / "hub.kubeconfig"
    hub = kubeconfig.ClusterEntry("hub", "https://127.0.0.1:1", OtherCA("any").certificate)
    file.write_bytes(kubeconfig.write_kubeconfig(hub, "a.b.c", user="somebody"))

    def check(words: str, flag: str, value: str) -> None:
        arguments = ["x"] if any(isinstance(each, click.Argument) for each in dict(LEAVES)[words].params) else []
        answer = hubctl("--kubeconfig", str(file), *words.split(), *arguments, flag, value)
        printed = (answer.out + answer.err).replace(value[:80], "")
        assert not PYTHON.search(printed), printed

    flags = [
        (words, option.opts[-1])
        for words, command in LEAVES
        for option in command.params
        if isinstance(option, click.Option) and not option.is_flag
    ]
    check_each(check, ((*flag, value) for flag in flags for value in (*WRONG_TEXTS, "\udcff")))


@pytest.fixture
async def fleet(hub: HubUnderTest) -> HubUnderTest:
    await hub.join("edge1", region="eu")
    await hub.join("edge2", region="us")
    return hub


async def test_a_wait_ends_when_it_is_so_and_when_the_time_is_over(fleet: HubUnderTest) -> None:
    late = "timed out before it has condition Accepted=True"
    await fleet.runs(
        ("hubctl wait fleet fleet --for=jsonpath={.status.clusters}=2 --timeout=5s", DONE, "has {.status.clusters}=2"),
        ("hubctl wait cluster edge1 --for=condition=Accepted --timeout 50ms", TIMED_OUT, late),
    )
    waiting = await fleet.start_hubctl("wait", "cluster/edge1", "--for=jsonpath={.metadata.labels.tier}=gold", "--timeout=20s")
    gone = await fleet.start_hubctl("wait", "clusters", "edge2", "--for=delete", "--timeout=20s")
    await fleet.runs(
        ("hubctl label cluster edge1 tier=gold", DONE, ""),
        ("hubctl delete cluster edge2 --wait --timeout 20s", DONE, ""),
        ("hubctl wait cluster edge2 --for=condition=Available", NOT_FOUND, ""),
        ("hubctl wait cluster edge1 --for=create --timeout=0 -o name", DONE, ".open-cluster-management.io/edge1\n"),
    )
    assert await waiting.line() == 'cluster "edge1" has {.metadata.labels.tier}=gold'
    assert await gone.line() == 'cluster "edge2" is deleted'


async def test_names_come_from_the_hub(fleet: HubUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    await fleet.join("shop1")
    monkeypatch.setenv("HUBCTL_KUBECONFIG", str(await fleet.admin()))

    async def words(line: str) -> list[str]:
        return [each for each in await asyncio.to_thread(offered, line.split(" ")) if not each.startswith(":")]

    offers = {
        "accept edge": ["edge1", "edge2"],
        "accept edge1 ": ["edge2", "shop1"],
        "get clusters s": ["shop1"],
        "get mcl/edge": ["mcl/edge1", "mcl/edge2"],
        "describe cluster shop": ["shop1"],
        "get namespaces def": ["default"],
        "--kubeconfig /absent accept ": [],
        "--context ": ["muster"],
    }
    assert {line: await words(line) for line in offers} == offers
    assert "configmaps" in await words("get config")
