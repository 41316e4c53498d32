"""hubctl as a process against a real door: what it shows, what it does, what it writes, and how it fails."""

import asyncio
import json
import re
import stat
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from hub.cli.__main__ import COMMANDS
from hub.cli.creating import is_bootstrap
from hub.cli.failures import DONE, FAILED, MISUSED, NOT_FOUND, UNREACHABLE
from hub.cli.login import is_login
from hub.domain.heartbeat import Beat
from hub.services import heartbeats, replicas
from hub.services.replicas import Opened
from machinery import kubeconfig, pki
from machinery.execcredential import ExecUser
from machinery.identity import AgentId, ClusterName
from machinery.kubeconfig import ClusterEntry, write_exec_kubeconfig
from tests import programs
from tests.fakes.authority import OtherCA
from tests.fakes.hubctl import LEAVES, hubctl, hubctl_at, typed
from tests.fakes.inprocess_hub import HUB
from tests.integration.door.conftest import HubUnderTest, kept_free, run

AGENT = AgentId("xk7pq")
TITLES = ("NAME ", "HUB ACCEPTED", "MANAGED CLUSTER URLS", "JOINED", "AVAILABLE", "AGE", "VERSION", "NODES", "HUBS  ", "FLAPS")
WIDE = "   ".join((*TITLES, "LAST BEAT", "AGENT"))


async def beat(hub: HubUnderTest, cluster: str, *, agent: str | None = "1.2.3") -> None:
    """A beat just now, and an open session unless `agent` is None."""
    name = ClusterName(cluster)
    await hub.store.run(heartbeats.flush, [Beat(name, timedelta(), available=True)])
    if agent is not None:
        await hub.store.run(replicas.open_session, Opened(name, AGENT, "session-1", agent, "hub-0"))


def half_written(folder: Path) -> list[Path]:
    return list(folder.glob(".edge1*"))


async def test_clusters_are_formatted_sorted_grouped_and_chosen_by_conditions(hub: HubUnderTest) -> None:
    await hub.join("edge1", region="eu")
    await hub.join("edge2", region="us")
    everything = json.loads((await hub.hubctl("get", "clusters", "-o", "json")).out)
    assert [item["metadata"]["name"] for item in everything["items"]] == ["edge1", "edge2"]
    one = yaml.safe_load((await hub.hubctl("get", "clusters", "edge1", "-o", "yaml")).out)
    assert one["metadata"]["labels"] == {"region": "eu"}
    names = await hub.hubctl("get", "mcl", "-o", "name", "-l", "region in (us)")
    assert names.out == "managedcluster.cluster.open-cluster-management.io/edge2\n"

    shown = await hub.hubctl(
        "get", "clusters", "-o", "name", "--where", 'labels.region.startsWith("u") && !accepted && age < 1h'
    )
    assert (shown.out, shown.code) == ("managedcluster.cluster.open-cluster-management.io/edge2\n", 0)
    wrong = await hub.hubctl("get", "clusters", "--where", "versoin < 1.30")
    assert wrong.code != 0
    assert 'where: column 1: there is no field "versoin": did you mean "version"?' in wrong.err
    other = await hub.hubctl("get", "csr", "--where", "age > 1h")
    assert "certificatesigningrequests have no words for where" in other.err
    watched = await hub.hubctl("get", "clusters", "-w", "--where", "age > 1h")
    assert "age changes by itself" in watched.err
    raw = await hub.kubectl(
        "get", "--raw", "/apis/cluster.open-cluster-management.io/v1/managedclusters?where=name+%3D%3D+%22edge1%22"
    )
    assert [item["metadata"]["name"] for item in json.loads(raw.out)["items"]] == ["edge1"]

    await hub.join("edge3", region="eu")
    await beat(hub, "edge2")
    names = await hub.hubctl("get", "clusters", "-o", "name", "--sort-by", "-labels.region,-name")
    assert [line.rpartition("/")[2] for line in names.out.splitlines()] == ["edge2", "edge3", "edge1"]
    heard = await hub.hubctl("get", "clusters", "-o", "name", "--sort-by", "lastBeat", "--limit", "1")
    assert heard.out.strip().endswith("/edge2")
    grouped = await hub.hubctl("get", "clusters", "--group-by", "labels.region,connected")
    assert [line.split() for line in grouped.out.splitlines()] == [
        ["LABELS.REGION", "CONNECTED", "COUNT"],
        ["eu", "false", "2"],
        ["us", "true", "1"],
    ]
    assert (await hub.hubctl("get", "clusters", "--where", "connected", "--count")).out == "1\n"
    sheet = await hub.hubctl("get", "clusters", "--group-by", "version", "-o", "csv")
    assert sheet.out.splitlines() == ["version,Count", "<none>,3"]
    wrong = await hub.hubctl("get", "clusters", "--sort-by", "memry")
    assert wrong.code != 0
    assert 'did you mean "memory"' in wrong.err
    assert (await hub.hubctl("get", "csr", "--group-by", "version")).code != 0


async def test_clusters_are_shown_with_last_beat_and_session(hub: HubUnderTest) -> None:
    shown = await hub.hubctl("get", "csr")
    assert (shown.code, shown.out, shown.err) == (0, "", "there is no certificate request to show\n")

    await hub.join("edge1")
    await hub.join("edge2")
    await beat(hub, "edge1")
    shown = await hub.hubctl("get", "clusters")
    header, first, second = shown.out.splitlines()
    assert header == WIDE
    assert re.fullmatch(r"edge1 +false .* \d+s +1\.2\.3", first), first
    assert re.fullmatch(r"edge2 +false .* <none> +\(no session\)", second), second
    assert (shown.code, shown.err) == (0, "")

    await hub.store.run(replicas.close_session, ClusterName("edge1"), AGENT, "session-1")
    assert "(no session)" in (await hub.hubctl("get", "cluster", "edge1")).out


async def test_clusters_are_accepted_denied_and_deleted(hub: HubUnderTest) -> None:
    await hub.join("edge1")
    await hub.request("edge1", "edge1-x7k2p")
    accepted = await hub.hubctl("accept", "edge1")
    assert accepted.out.splitlines() == [
        'cluster "edge1" accepted',
        'its certificate request edge1-x7k2p waits: "hubctl certificate approve edge1"',
    ]
    assert 'cluster "edge1" is accepted already' in (await hub.hubctl("accept", "edge1")).out
    assert (await hub.hubctl("deny", "edge1")).out == 'cluster "edge1" denied\n'
    assert json.loads((await hub.hubctl("get", "cluster", "edge1", "-o", "json")).out)["spec"]["hubAcceptsClient"] is False

    for name in ("edge3", "edge4"):
        await hub.join(name)
    ended = await hub.hubctl("accept", "edge3", "nope", "edge4")
    assert ended.code == NOT_FOUND
    assert ended.out.splitlines() == ['cluster "edge3" accepted', 'cluster "edge4" accepted']
    assert '"nope" not found' in ended.err

    await hub.join("edge5")
    assert (await hub.hubctl("delete", "cluster", "edge5")).out == 'cluster "edge5" deleted\n'
    gone = await hub.hubctl("get", "cluster", "edge5")
    assert (gone.code, gone.err) == (
        NOT_FOUND,
        'error: managedclusters.cluster.open-cluster-management.io "edge5" not found\n',
    )


async def test_certificate_requests_are_decided_once(hub: HubUnderTest) -> None:
    refused = await hub.hubctl("certificate", "approve", "edge9")
    assert refused.code == NOT_FOUND
    assert "hubctl get csr" in refused.err

    await hub.join("edge1")
    await hub.request("edge1", "edge1-aaaaa")
    await hub.request("edge2", "edge2-bbbbb")
    approved = await hub.hubctl("certificate", "approve", "edge1")
    assert approved.out == 'certificate request "edge1-aaaaa" of cluster "edge1" approved\n'
    listed = (await hub.hubctl("get", "csr")).out
    assert re.search(r"edge1-aaaaa .*Approved", listed)
    assert re.search(r"edge2-bbbbb .*Pending", listed)

    await hub.request("edge1", "edge1-ccccc")
    assert (await hub.hubctl("certificate", "deny", "edge1-ccccc")).out == 'certificate request "edge1-ccccc" denied\n'
    again = await hub.hubctl("certificate", "deny", "edge1-ccccc")
    assert again.out == 'certificate request "edge1-ccccc" is denied already\n'
    refused = await hub.hubctl("certificate", "approve", "edge1-ccccc")
    assert (refused.code, "a decision is not taken back" in refused.err) == (1, True)


async def test_describe_tells_all_of_a_cluster(hub: HubUnderTest) -> None:
    await hub.join("edge1", region="eu")
    await hub.request("edge1", "edge1-aaaaa")
    await beat(hub, "edge1")
    page = (await hub.hubctl("describe", "cluster", "edge1")).out
    for expected in (
        r"^Name: +edge1$",
        r"^Labels: +region=eu$",
        r"^Accepted: +false$",
        r"^Last Beat: +\d+s ago$",
        r"^Session: +open$",
        r"^Agent: +1\.2\.3$",
        r"^  edge1-aaaaa .*Pending$",
    ):
        assert re.search(expected, page, re.MULTILINE), f"{expected} is not in\n{page}"


async def test_a_bootstrap_kubeconfig_is_complete_private_and_opens_the_hub(hub: HubUnderTest, tmp_path: Path) -> None:
    file = tmp_path / "edge1.kubeconfig"
    made = await hub.hubctl(
        *("create", "bootstrap-kubeconfig", "--cluster", "edge1", "-o", str(file), "--expires", "15m"),
        *("--server", "https://hub.example.org:6443", "--grpc-server", "hub.example.org:8443"),
    )
    assert made.code == 0, made.err
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    written = kubeconfig.read_kubeconfig(file)
    endpoint = written.require_endpoint()
    assert (written.cluster.server, endpoint.grpc_server, endpoint.hub_id) == (
        "https://hub.example.org:6443",
        "hub.example.org:8443",
        HUB,
    )
    credential = written.require_credential()
    assert pki.key_matches(credential.chain, credential.key)
    assert pki.is_issued_by(credential.chain, hub.issuer.trust_bundle)
    listed = (await hub.hubctl("get", "bootstrap-credentials")).out
    assert re.search(r"edge1 +0/1 +Active", listed)


async def test_a_bootstrap_kubeconfig_that_cannot_work_is_refused_and_leaves_nothing_behind(
    hub: HubUnderTest, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for arguments, said in (
        (("--cluster", "Edge_1"), "cluster name"),
        (("--cluster", "edge1", "--expires", "soon"), "is not a duration"),
        (("--cluster", "edge1", "--server", "http://hub.example.org"), "https://HOST:PORT"),
        (("--cluster", "edge1", "--grpc-server", "hub.example.org"), "HOST:PORT"),
        (("--cluster", "edge1", "--uses", "0"), "--uses"),
    ):
        with subtests.test(said=said):
            refused = await hub.hubctl("create", "bootstrap-kubeconfig", "-o", str(tmp_path / "f"), *arguments)
            assert (refused.code, said in refused.err) == (2, True), refused.err
    assert "there is no" in (await hub.hubctl("get", "bootstrap-credentials")).err

    file = tmp_path / "edge1.kubeconfig"
    refused = await hub.hubctl(
        *("create", "bootstrap-kubeconfig", "--cluster", "edge1", "-o", str(file), "--allow-loopback", "--expires", "366d")
    )
    assert (refused.code, "spec.expirationSeconds" in refused.err) == (1, True), refused.err
    assert half_written(tmp_path) == []

    file = tmp_path / "edge1.kubeconfig"
    refused = await hub.hubctl("create", "bootstrap-kubeconfig", "--cluster", "edge1", "-o", str(file))
    assert refused.code == 1
    for word in ("127.0.0.1", "loopback", "https_advertised", "--server", "--allow-loopback"):
        assert word in refused.err
    assert not file.exists()
    assert half_written(tmp_path) == []
    assert " Active" not in (await hub.hubctl("get", "bootstrap-credentials")).out
    allowed = await hub.hubctl("create", "bootstrap-kubeconfig", "--cluster", "edge1", "-o", str(file), "--allow-loopback")
    assert allowed.code == 0, allowed.err


async def test_no_key_is_ever_shown(hub: HubUnderTest, tmp_path: Path) -> None:
    """The canary: a part of every private key that is around, looked for in all that hubctl and the hub say."""
    file = tmp_path / "edge1.kubeconfig"
    await hub.join("edge1")
    said = [
        await hub.hubctl("create", "bootstrap-kubeconfig", "--cluster", "edge1", "-o", str(file), "--allow-loopback"),
        await hub.hubctl("get", "bootstrap-credentials", "-o", "yaml"),
        await hub.hubctl("get", "clusters", "-o", "json"),
        await hub.hubctl("describe", "cluster", "edge1"),
        await hub.hubctl("get", "clusters", path=file),
        await hub.hubctl("version"),
    ]
    keys = [kubeconfig.read_kubeconfig(path).require_credential().key for path in (file, await hub.admin())]
    canaries = [key.decode().splitlines()[1][20:60] for key in keys]
    text = "".join(ended.out + ended.err for ended in said)
    assert not [canary for canary in canaries if canary in text]
    assert "PRIVATE KEY" not in text
    stored = (tmp_path / "hub.db").read_bytes() + (tmp_path / "hub.db-wal").read_bytes()
    assert not [canary for canary in canaries if canary.encode() in stored], "the hub never saw the key"


async def test_a_kubeconfig_that_does_not_open_the_hub_is_named_with_the_reason(
    tmp_path: Path, subtests: pytest.Subtests, hub: HubUnderTest
) -> None:
    for content, said in (
        ("", "is empty"),
        ("current-context: x\n", 'has no context "x"'),
        ("{", "is not YAML"),
    ):
        with subtests.test(said=said):
            file = tmp_path / "bad.kubeconfig"
            file.write_text(content)
            refused = await hub.hubctl("get", "clusters", path=file)
            assert refused.code == 2
            assert str(file) in refused.err
            assert said in refused.err
            assert "Traceback" not in refused.err

    admin = yaml.safe_load((await hub.admin()).read_text())
    admin["users"][0]["user"] = {}
    file = hub.folder / "anonymous.kubeconfig"
    file.write_text(yaml.safe_dump(admin))
    refused = await hub.hubctl("get", "clusters", path=file)
    assert (refused.code, "holds no credential" in refused.err) == (1, True), refused.err

    admin["clusters"][0]["cluster"]["tls-server-name"] = "elsewhere.example.org"
    file = hub.folder / "elsewhere.kubeconfig"
    file.write_text(yaml.safe_dump(admin))
    refused = await hub.hubctl("get", "clusters", path=file)
    assert refused.code == 1
    assert "serving_names" in refused.err

    mine = kubeconfig.read_kubeconfig(await hub.admin()).require_credential()
    file = tmp_path / "other.kubeconfig"
    entry = kubeconfig.ClusterEntry("muster", hub.server, OtherCA("other").certificate)
    file.write_bytes(kubeconfig.write_kubeconfig(entry, mine, user="admin"))
    refused = await hub.hubctl("get", "clusters", path=file)
    assert refused.code == 1
    assert "not signed by the CA in that file" in refused.err

    refused = await hub.hubctl("get", "clusters", path=await hub.agent("edge1", expired_since=timedelta(hours=1)))
    assert refused.code == 1
    assert "agent-edge1.kubeconfig expired at " in refused.err
    assert "cannot be reached" not in refused.err

    await hub.revoke(await hub.admin())
    refused = await hub.hubctl("get", "clusters")
    assert refused.code == 1
    assert 'does not know user "admin"' in refused.err

    path = await hub.admin()
    await hub.stop()
    with kept_free(hub.port):
        refused = await hub.hubctl("get", "clusters", path=path)
    assert refused.code == UNREACHABLE
    assert hub.server in refused.err
    assert "hub serve" in refused.err


async def test_a_watch_shows_every_change_once_across_a_restart(hub: HubUnderTest) -> None:
    await hub.join("edge1")
    watching = await hub.start_hubctl("get", "clusters", "-w")
    assert await watching.line() == WIDE
    assert (await watching.line()).startswith("edge1 ")
    await hub.join("edge2")
    assert (await watching.line()).startswith("edge2 ")
    await hub.restart()
    for name in ("edge3", "edge4"):
        await hub.join(name)
    assert (await hub.hubctl("delete", "cluster", "edge2")).code == 0
    assert [(await watching.line()).split()[0] for _ in range(2)] == ["edge3", "edge4"]
    assert re.fullmatch(r"edge2 .*\(deleted\)", await watching.line())
    said = await watching.end()
    assert said.count("trying again") <= 1
    assert "Traceback" not in said


async def test_a_watch_outlives_a_hub_that_ends_it_and_takes_a_while_to_stop(hub: HubUnderTest) -> None:
    """Meanwhile it refuses what is asked, as does what stands before it: with a status, and without a word that is a hub's."""
    await hub.join("edge1")
    watching = await hub.start_hubctl("get", "clusters", "-w", "-o", "name")
    assert (await watching.line()).endswith("/edge1")
    hub.operators.draining.refuse()
    await hub.operators.door.end_watches(timedelta(seconds=1))
    assert watching.process.stderr is not None
    async with asyncio.timeout(15):
        assert "trying again" in (await watching.process.stderr.readline()).decode()
    await hub.stop()
    await hub.start()
    await hub.join("edge2")
    assert (await watching.line()).endswith("/edge2")
    assert "Traceback" not in await watching.end()


async def test_a_watch_of_one_cluster_shows_only_that_one(hub: HubUnderTest) -> None:
    await hub.join("edge1")
    watching = await hub.start_hubctl("get", "cluster", "edge1", "-w", "-o", "name")
    assert (await watching.line()).endswith("/edge1")
    await hub.join("edge2")
    assert (await hub.hubctl("accept", "edge1")).code == 0
    assert (await watching.line()).endswith("/edge1")
    await watching.end()


async def test_an_answer_that_cannot_be_written_is_one_sentence(hub: HubUnderTest) -> None:
    path = str(await hub.admin())
    with Path("/dev/full").open("w") as full:  # noqa: ASYNC230 - a device that takes nothing
        ended = await programs.run("hub.cli", "--kubeconfig", path, "get", "csr", "-o", "json", stdout=full)
    assert (ended.returncode, ended.stderr) == (1, "error: the answer cannot be written: No space left on device\n")


async def test_hubctl_starts_without_what_is_slow_to_load() -> None:
    """The figure (200 ms) is measured in bench; what would break it is caught here."""
    slow = ("asyncio", "kubernetes", "sqlalchemy", "aiohttp", "grpc", "cryptography", "pydantic", "rich", "structlog")
    modules = ", ".join(sorted({target.partition(":")[0] for target, _ in COMMANDS.values()}))
    code = f"import sys, {modules}; print([name for name in {slow} if name in sys.modules])"
    assert (await run(sys.executable, "-c", code)).out == "[]\n"


WITHOUT_A_HUB = {
    "completion": DONE,
    "apply": MISUSED,  # the file of its example is not there, and that is seen first
    "login": FAILED,  # the issuer is asked first, and nobody can name it
    "logout": MISUSED,  # there is no such kubeconfig
    "credential": MISUSED,  # kubectl has to call it
    "diff": MISUSED,  # as from diff(1): 1 is a difference, 2 is trouble
}
"""What the first example of a command ends with when there is no hub, where it does not ask one, or not first."""
ABOUT_ONE = (
    ("get", "cluster", "nobody"),
    ("get", "cluster/nobody", "-o", "yaml"),
    ("describe", "cluster", "nobody"),
    ("describe", "rule", "nobody"),
    ("accept", "nobody"),
    ("deny", "nobody"),
    ("move", "cluster", "nobody", "--to", "eu"),
    ("rotate", "cluster", "nobody"),
    ("label", "cluster", "nobody", "a=b"),
    ("annotate", "cluster", "nobody", "a=b"),
    ("taint", "cluster", "nobody", "a:NoSelect"),
    ("wait", "cluster", "nobody", "--for=condition=Available"),
    ("delete", "cluster", "nobody"),
    ("delete", "cluster", "nobody", "--force"),
    ("certificate", "approve", "nobody"),
    ("drain", "replica", "nobody"),
)


@pytest.fixture
async def gone(hub: HubUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Hubctl is led to a hub that is not running any more."""
    path = await hub.admin()
    await hub.stop()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HUBCTL_KUBECONFIG", str(path))
    with kept_free(hub.port):
        yield


@pytest.mark.usefixtures("gone")
async def test_a_hub_that_is_away_has_a_code_of_its_own_whichever_command_asks_it() -> None:
    ended = {}
    for words, command in LEAVES:
        if words.startswith("config "):
            continue  # it would change the kubeconfig of the others, and asks no hub
        begins = words.removesuffix(" anything").split()
        example = next(line for line in typed(command) if line[: len(begins)] == begins)
        said = await asyncio.to_thread(hubctl, *example)
        expected = WITHOUT_A_HUB.get(words, WITHOUT_A_HUB.get(begins[0], UNREACHABLE))
        if said.code != expected:
            ended[words] = (said.code, expected, said.err)
        assert "Traceback" not in said.err, said.err
    assert ended == {}, str(ended)


async def test_exit_codes_tell_missing_objects_wrong_usage_and_an_absent_hub_apart(hub: HubUnderTest) -> None:
    path = await hub.admin()
    ended = {words: await hubctl_at(path, *words) for words in ABOUT_ONE}
    assert {words: (said.code, said.err) for words, said in ended.items() if said.code != NOT_FOUND} == {}

    for words, _ in LEAVES:
        said = await hubctl_at(path, *words.split(), "--no-such-option")
        assert (said.code, "--no-such-option" in said.err) == (MISUSED, True), (words, said.err)
    absent = await hubctl_at(path.with_name("absent"), "get", "clusters")
    assert absent.code == MISUSED


CREATE = ("create", "bootstrap-kubeconfig", "--cluster", "edge1", "--allow-loopback", "-o")
JOIN = ("join", "edge1", "--allow-loopback", "-o")
LOGIN = ("login", "--authenticator", "serviceaccount", "--token-file", "/nowhere", "-o")
REFUSED = "is there already and holds something else"


def users(content: bytes) -> list[str]:
    document: Any = yaml.safe_load(content)
    return [entry["name"] for entry in document["users"]]


async def test_hubctl_overwrites_a_file_of_somebody_else_only_on_request(hub: HubUnderTest, tmp_path: Path) -> None:
    said = await hubctl_at(await hub.admin(), *CREATE, "/dev/null", "--overwrite")
    assert (said.code, "is no file that can be replaced" in said.err) == (2, True)

    file = tmp_path / "config"
    file.write_bytes((await hub.admin()).read_bytes())
    said = await hubctl_at(await hub.admin(), *CREATE, str(file), "--overwrite")
    assert (said.code, users(file.read_bytes())) == (0, ["bootstrap-edge1"]), said


async def test_a_file_of_somebody_else_stays_as_it_is(hub: HubUnderTest, tmp_path: Path) -> None:
    admin = await hub.admin()
    kept, odd, link = admin.read_bytes(), tmp_path / "odd", tmp_path / "link"
    link.symlink_to(admin)
    for command in (CREATE, JOIN, LOGIN):
        for content in (b"a: [", b"\xff\x00", b"words", kept.replace(b"kind: Config", b"kind: Other")):
            odd.write_bytes(content)
            said = await hubctl_at(admin, *command, str(odd))
            assert (said.code, REFUSED in said.err, odd.read_bytes()) == (2, True, content), said
        for path in (admin, link):
            said = await hubctl_at(admin, *command, str(path))
            assert (said.code, REFUSED in said.err, admin.read_bytes()) == (2, True, kept), said
    assert await hub.store.read(lambda tx: list(tx.credentials.all())) == []


async def test_what_the_command_wrote_itself_is_replaced_also_behind_a_link(
    hub: HubUnderTest, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for command in (CREATE, JOIN):
        with subtests.test(command=command):
            file, link = (tmp_path / f"{command[0]}-{kind}" for kind in ("file", "link"))
            file.touch()  # nothing is lost with an empty one
            link.symlink_to(file)
            written = set()
            for path in (file, file, link):
                said = await hubctl_at(await hub.admin(), *command, str(path))
                assert said.code == 0, said
                written.add(file.read_bytes())
            assert len(written) == 3
            assert link.is_symlink()
            assert file.stat().st_mode & 0o777 == 0o600


def test_a_login_is_replaced_by_the_next() -> None:
    entry, plugin = ClusterEntry("muster", "https://hub:6443", b"ca"), ExecUser("hubctl", ("credential", "--token-kept"))
    (written,) = yaml.safe_load_all(write_exec_kubeconfig(entry, plugin, user="ann"))
    assert is_login([written])
    assert is_login([])
    assert not is_bootstrap([written])
    assert not is_login([{**written, "contexts": [*written["contexts"], {"name": "another"}]}])
    assert not is_login([written, written])
    assert not is_login([{**written, "users": [{"name": "ann", "user": {"exec": {"args": ["get-token"]}}}]}])
