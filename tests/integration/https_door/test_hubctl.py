"""hubctl against a real door: what it shows, what it does, what it writes, and how it fails."""

import asyncio
import json
import re
import stat
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from hub.api.liveness import Beat
from hub.api.meta.change import MANAGED_CLUSTERS
from hub.ports import Transaction
from hub.registry.hubreplicas import service as replicas
from hub.registry.hubreplicas.service import Opened
from hubctl.client.http import ApiClient
from hubctl.client.resources import CLUSTER_LABEL
from hubctl.commands.access.login import is_login
from hubctl.commands.clusters.create import is_bootstrap
from hubctl.errors import DONE, FAILED, MISUSED, NOT_FOUND, UNREACHABLE
from machinery import pki
from machinery.client import kubeconfig
from machinery.client.exec_credential import ExecUser
from machinery.client.kubeconfig import ClusterEntry, write_kubeconfig
from machinery.identity import AgentId, ClusterName
from machinery.meta.objects import Key
from tests.checks import PYTHON, WRONG_TEXTS, check_each, present
from tests.fakes.authority import OtherCA
from tests.fakes.hubctl import LEAVES, hubctl, typed
from tests.fakes.inprocess_hub import HUB
from tests.integration.https_door.conftest import CLUSTERS, REQUESTS, HubUnderTest, admin_of, asked_for, kept_free

AGENT = AgentId("xk7pq")
TITLES = ("NAME ", "HUB ACCEPTED", "MANAGED CLUSTER URLS", "JOINED", "AVAILABLE", "AGE", "VERSION", "NODES", "HUBS  ", "FLAPS")
WIDE = "   ".join((*TITLES, "LAST BEAT", "AGENT"))
NAMED = "managedcluster.cluster.open-cluster-management.io"


async def beat(hub: HubUnderTest, cluster: str, *, agent: str | None = "1.2.3") -> None:
    """A beat just now, and an open session unless `agent` is None."""
    name = ClusterName(cluster)
    await hub.store.run(lambda tx: tx.heartbeats.store([Beat(name, timedelta(), available=True)]))
    if agent is not None:
        await hub.store.run(replicas.open_session, Opened(name, AGENT, "session-1", agent, "hub-0"))


def report(tx: Transaction, cluster: str, version: str, memory: str) -> None:
    old = present(tx.objects.get(MANAGED_CLUSTERS, Key("", cluster)))
    status = {"version": {"kubernetes": version}, "capacity": {"cpu": "1500m", "memory": memory}}
    tx.objects.put(MANAGED_CLUSTERS, {**old.document, "status": status}, old, "tester")


async def test_clusters_are_formatted_sorted_grouped_and_chosen_by_conditions(hub: HubUnderTest) -> None:
    for name, region in (("edge1", "eu"), ("edge2", "us")):
        await hub.join(name, region=region)
    everything = json.loads(await hub.output("hubctl get clusters -o json"))
    assert [item["metadata"]["name"] for item in everything["items"]] == ["edge1", "edge2"]
    assert yaml.safe_load(await hub.output("hubctl get clusters edge1 -o yaml"))["metadata"]["labels"] == {"region": "eu"}
    assert await hub.output("hubctl get mcl -o name -l 'region in (us)'") == f"{NAMED}/edge2\n"
    where = 'labels.region.startsWith("u") && !accepted && age < 1h'
    assert await hub.output("hubctl get clusters -o name --where", where) == f"{NAMED}/edge2\n"
    await hub.runs(
        ("hubctl get clusters --where 'versoin < 1.30'", 1, 'column 1: there is no field "versoin": did you mean "version"?'),
        ("hubctl get csr --where 'age > 1h'", 1, "certificatesigningrequests do not support where"),
        ("hubctl get clusters --group-by version --sort-by cpu", 1, "groups are not sorted by cpu: use version, count"),
        ("hubctl get clusters --group-by connected --at 0s", 1, "have no history"),
        ("hubctl get clusters --count --sum cpu", 2, "--count cannot be used with"),
        ("hubctl get clusters --sort-by memry", 1, 'did you mean "memory"'),
        ("hubctl get csr --group-by version", 1, ""),
    )
    for line, code, words in (
        ("get clusters -w --where 'age < 1h'", FAILED, "age changes without a write"),
        ("get clusters --where 'available == Unknown'", FAILED, 'a text needs quotes, as in "Unknown"'),
        ("get clusters --output-watch-events", MISUSED, "needs -w"),
        ("get cluster nope -w", NOT_FOUND, "not found"),
        ("get crl -w", MISUSED, "cannot be watched"),
        ("history edge1 -w --until 1h", MISUSED, "leave out -w, or --until"),
    ):
        refused = await hub.hubctl(line)
        assert (refused.code, refused.out, words in refused.err) == (code, "", True), (
            line,
            refused,
            "nothing is listed before",
        )
    raw = await hub.output(f"kubectl get --raw {CLUSTERS}?where=name+%3D%3D+%22edge1%22")
    assert [item["metadata"]["name"] for item in json.loads(raw)["items"]] == ["edge1"]

    await hub.join("edge3", region="eu")
    await beat(hub, "edge2")
    names = await hub.output("hubctl get clusters -o name --sort-by -labels.region,-name")
    assert [line.rpartition("/")[2] for line in names.splitlines()] == ["edge2", "edge3", "edge1"]
    assert await hub.output("hubctl get clusters -o name --sort-by lastBeat --limit 1") == f"{NAMED}/edge2\n"
    grouped = await hub.output("hubctl get clusters --group-by labels.region,connected")
    assert [line.split() for line in grouped.splitlines()[1:]] == [["eu", "false", "2"], ["us", "true", "1"]]
    assert grouped.split()[:3] == ["LABELS.REGION", "CONNECTED", "COUNT"]
    assert await hub.output("hubctl get clusters --where connected --count") == "1\n"
    sheet = await hub.output("hubctl get clusters --group-by version -o csv")
    assert sheet.splitlines() == ["version,Count", "<none>,3"]
    before = await hub.store.read(lambda tx: tx.changes.newest())
    for name, version, memory in (
        ("edge1", "v1.30.1", "96Gi"),
        ("edge2", "v1.29.5", "32Gi"),
        ("edge3", "v1.30.9", "32505856Ki"),
    ):
        await hub.store.run(report, name, version, memory)
    asked = "hubctl get clusters --group-by version.minor --sum cpu,memory"
    rows = {
        f"{asked}": ["1.30 2 3 127.0Gi", "1.29 1 1500m 32.0Gi"],
        f"{asked} -o csv": ["version.minor,Count,cpu,memory", "1.30,2,3,127Gi", "1.29,1,1500m,32Gi"],
        f"{asked} --sort-by version.minor --limit 1": ["1.29 1 1500m 32.0Gi"],
        f"{asked} --at {before}": ["<none> 3 <none> <none>"],
        "hubctl get clusters --sum memory --where 'version.minor == 1.30'": ["2 127.0Gi"],
        f"hubctl get clusters --count --at {before}": ["3"],
    }
    shown = {each: [" ".join(line.split()) for line in (await hub.output(each)).splitlines()] for each in rows}
    assert {each: [line for line in lines if "COUNT" not in line] for each, lines in shown.items()} == rows


async def test_clusters_are_shown_with_last_beat_and_session_and_described(hub: HubUnderTest) -> None:
    shown = await hub.hubctl("get csr")
    assert (shown.code, shown.out, shown.err) == (0, "", "there is no certificate request to show\n")
    await hub.join("edge1", region="eu")
    await hub.join("edge2")
    await hub.request("edge1", "edge1-aaaaa")
    await beat(hub, "edge1")
    header, first, second = (await hub.output("hubctl get clusters")).splitlines()
    assert header == WIDE
    assert re.fullmatch(r"edge1 +false .* \d+s +1\.2\.3", first), first
    assert re.fullmatch(r"edge2 +false .* <none> +\(no session\)", second), second
    page = await hub.output("hubctl describe cluster edge1")
    for expected in (
        *(r"^Name: +edge1$", r"^Labels: +region=eu$", r"^Accepted: +false$", r"^Last Beat: +\d+s ago$"),
        *(r"^Session: +open$", r"^Agent: +1\.2\.3$", r"^  edge1-aaaaa .*Pending$"),
    ):
        assert re.search(expected, page, re.MULTILINE), f"{expected} is not in\n{page}"
    await hub.store.run(replicas.close_session, ClusterName("edge1"), AGENT, "session-1")
    assert "(no session)" in await hub.output("hubctl get cluster edge1")
    await beat(hub, "edge2", agent=None)
    assert "(driver csr)" in await hub.output("hubctl get cluster edge2")


async def test_clusters_are_accepted_denied_and_deleted(hub: HubUnderTest) -> None:
    for name in ("edge1", "edge3", "edge4", "edge5", "edge6"):
        await hub.join(name)
    await hub.request("edge1", "edge1-x7k2p")
    waits = 'its certificate request edge1-x7k2p waits: "hubctl certificate approve edge1-x7k2p"'
    assert await hub.output("hubctl accept edge1 --skip-approve") == f'cluster "edge1" accepted\n{waits}\n'
    assert not await approved(hub)
    await hub.runs(
        ("hubctl accept csr/edge1", MISUSED, '"csr/edge1" is not a cluster'),
        ("hubctl deny edge1", DONE, 'cluster "edge1" denied\n'),
        ("hubctl get cluster edge1 -o jsonpath={.spec.hubAcceptsClient}", DONE, "false"),
    )
    ended = await hub.hubctl("accept edge3 nope edge4")
    assert (ended.code, '"nope" not found' in ended.err) == (NOT_FOUND, True)
    assert [line for line in ended.lines if "certificate" not in line] == [
        'cluster "edge3" accepted',
        'cluster "edge4" accepted',
    ]
    for options in ("--cluster edge5", "--cluster-pattern edge*"):
        await hub.output(f"hubctl create bootstrap-kubeconfig {options} --allow-loopback -o {hub.folder / options[-5:-1]}")
    *_, glob = await hub.store.read(lambda tx: [each.id for each in tx.credentials.all()])
    warning = (
        f"a deleted cluster can return with bootstrap credential {glob} (edge*): hubctl revoke bootstrap-credential {glob}"
    )
    for rest, said in (("--dry-run", " (dry run)"), ("edge6", '\ncluster "edge6" deleted')):
        ended = await hub.hubctl(f"delete cluster edge5 {rest}")
        assert (ended.code, ended.out) == (DONE, f'cluster "edge5" deleted{said}\n')
        assert ended.err.startswith(f"warning: {warning}\n")
    assert re.search("edge5 +0/1 +Revoked", await hub.output("hubctl get bootstrap-credentials"))
    assert 'cluster "edge5" was deleted' in await hub.output("hubctl get revocations")
    await hub.runs(("kubectl delete managedcluster edge4", DONE, f"Warning: {warning}"))
    gone = await hub.hubctl("get cluster edge5")
    missing = 'error: managedclusters.cluster.open-cluster-management.io "edge5" not found\n'
    assert (gone.code, gone.err) == (NOT_FOUND, missing)


async def approved(hub: HubUnderTest) -> list[str]:
    found = json.loads(await hub.output("hubctl get csr -o json"))["items"]
    return [each["metadata"]["name"] for each in found if (each.get("status") or {}).get("conditions")]


OWN = (
    'edge1" accepted\ncertificate request "edge1-own" approved: requester system:bootstrap:ID, bootstrap credential ID '
    "(for edge1), age 0s, key SHA256:KEY, duration the hub's default\n"
)


async def test_accept_approves_the_only_request_of_a_credential_of_this_cluster_alone(
    hub: HubUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1, 7):
        await hub.join(f"edge{number}")
    for name, *patterns in (("1-own",), ("2-own",), ("2-the-last", "edge*"), ("3-glob", "edge*"), ("6-own",)):
        await hub.request(f"edge{name[0]}", f"edge{name}", *patterns)
    await (await admin_of(hub)).ask("POST", REQUESTS, asked_for("edge4", "bcdfg", "edge4"))
    text = re.sub(r"\b[0-9a-f]{16}\b", "ID", re.sub(r"\b[0-9a-f]{64}\b", "KEY", await hub.output("hubctl accept edge1")))
    assert re.sub(r"age \ds", "age 0s", text).partition('"')[2] == OWN
    await hub.runs(
        ("hubctl accept edge1", DONE, 'edge1" is accepted already\nits certificate request edge1-own is approved already'),
        ("hubctl accept edge2", FAILED, '"edge2" is accepted, but its certificate request is not approved: 2 wait'),
        ("hubctl accept edge2", FAILED, "(for edge2), age "),
        ("hubctl accept edge3", FAILED, "(for edge*), age "),
        ("hubctl accept edge3", FAILED, "`hubctl certificate approve edge3-glob`"),
        ("hubctl accept edge4", FAILED, "requester admin, no bootstrap credential"),
        ("hubctl accept edge5", DONE, '"edge5" accepted\nit has not requested a certificate yet'),
    )
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
    assert await approved(hub) == ["edge1-own"]
    lines = (await hub.output("hubctl audit")).splitlines()
    audited = [line.split()[2:4] for line in lines if "edge1" in line]
    assert audited == [["update", "certificatesigningrequests/edge1-own/approval"], ["patch", "managedclusters/edge1"]]


async def test_certificate_requests_are_decided_once(hub: HubUnderTest) -> None:
    await hub.join("edge1")
    for name, cluster in (("edge1-aaaaa", "edge1"), ("edge2-bbbbb", "edge2")):
        await hub.request(cluster, name)
    await hub.runs(
        ("hubctl certificate approve edge9", NOT_FOUND, "hubctl get csr"),
        ("hubctl certificate approve edge1", DONE, 'certificate request "edge1-aaaaa" of cluster "edge1" approved\n'),
    )
    described = await hub.output("hubctl describe csr edge1-aaaaa")
    assert re.search(r"CommonName: .*edge1:bcdfg\n", described)
    assert re.search(r"Key: SHA256:[0-9a-f]{64}, held by the requester\n", described)
    listed = await hub.output("hubctl get csr")
    assert re.search(r"edge1-aaaaa .*Approved", listed)
    assert re.search(r"edge2-bbbbb .*Pending", listed)
    await hub.request("edge1", "edge1-ccccc")
    await hub.runs(
        ("hubctl certificate deny edge1-ccccc", DONE, 'certificate request "edge1-ccccc" denied\n'),
        ("hubctl certificate deny edge1-ccccc", DONE, 'certificate request "edge1-ccccc" is denied already\n'),
        ("hubctl certificate approve edge1-ccccc", FAILED, "a decision is final"),
    )
    before = await approved(hub)
    await hub.request("edge1", "edge1-ddddd")
    await hub.runs(
        ("hubctl certificate deny --all", MISUSED, "2 certificate requests: edge1-ddddd, edge2-bbbbb. Add --yes"),
        (f"hubctl certificate approve -l {CLUSTER_LABEL}=edge1 --dry-run", DONE, '"edge1-ddddd" approved (dry run)'),
        ("hubctl certificate deny --all --dry-run=server", DONE, '"edge2-bbbbb" denied (dry run)\n2 of 2 done'),
        ("hubctl certificate approve --all edge1", MISUSED, "not both"),
        ("hubctl certificate approve", MISUSED, "specify csr"),
    )
    assert await approved(hub) == before
    lines = await hub.output(f"hubctl get csr -o name -l {CLUSTER_LABEL}=edge1")
    ended = await hub.hubctl("certificate approve -f -", given=lines)
    assert ('request "edge1-ddddd" approved\n' in ended.out, "1 of 3 failed, 2 done" in ended.err) == (True, True), ended
    await hub.runs(
        ("hubctl certificate deny --all --yes", DONE, '"edge2-bbbbb" denied\n1 of 1 done'),
        ("hubctl certificate approve --all", NOT_FOUND, "no pending certificate request matches"),
    )


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


async def test_bootstrap_kubeconfig_that_cannot_work_is_refused_and_leaves_nothing(hub: HubUnderTest, tmp_path: Path) -> None:
    file = tmp_path / "edge1.kubeconfig"
    create = f"hubctl create bootstrap-kubeconfig -o {file}"
    await hub.runs(
        (f"{create} --cluster Edge_1", MISUSED, "cluster name"),
        (f"{create} --cluster edge1 --expires soon", MISUSED, "is not a duration"),
        (f"{create} --cluster edge1 --server http://hub.example.org", MISUSED, "https://HOST:PORT"),
        (f"{create} --cluster edge1 --grpc-server hub.example.org", MISUSED, "HOST:PORT"),
        (f"{create} --cluster edge1 --uses 0", MISUSED, '--uses "0"'),
        (create, MISUSED, "--cluster NAME, --cluster-pattern GLOB or --cluster-set SET"),
        (f"{create} --cluster a --cluster-pattern b*", MISUSED, "not both"),
        (f"{create} --cluster a --label x", MISUSED, '--label "x"'),
        ("hubctl get bootstrap-credentials", DONE, "there is no"),
        (f"{create} --cluster edge1 --allow-loopback --expires 366d", FAILED, "spec.expirationSeconds"),
    )
    refused = await hub.hubctl(f"create bootstrap-kubeconfig --cluster edge1 -o {file}")
    assert refused.code == FAILED
    for word in ("127.0.0.1", "loopback", "https_advertised", "--server", "--allow-loopback"):
        assert word in refused.err
    assert not file.exists()
    assert not list(tmp_path.glob(".edge1*")), "nothing is left half written"  # noqa: ASYNC240 - a temporary folder
    assert " Active" not in (await hub.hubctl("get bootstrap-credentials")).out
    await hub.output(f"{create} --cluster edge1 --allow-loopback")


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
ABOUT_ONE = (
    *("get cluster nobody", "get cluster/nobody -o yaml", "describe cluster nobody", "describe rule nobody", "accept nobody"),
    *("deny nobody", "move cluster nobody --to eu", "rotate cluster nobody", "label cluster nobody a=b"),
    *("annotate cluster nobody a=b", "taint cluster nobody a:NoSelect", "wait cluster nobody --for=condition=Available"),
    *("delete cluster nobody", "delete cluster nobody --force", "certificate approve nobody", "drain replica nobody"),
)


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
            example = next(line for line in typed(command) if line[: len(begins)] == begins)
            said = await asyncio.to_thread(hubctl, *example)
            expected = WITHOUT_A_HUB.get(words, WITHOUT_A_HUB.get(begins[0], UNREACHABLE))
            if said.code != expected or "Traceback" in said.err:
                ended[words] = (said.code, expected, said.err)
    assert ended == {}, str(ended)


async def test_exit_codes_tell_missing_objects_wrong_usage_and_an_absent_hub_apart(hub: HubUnderTest) -> None:
    ended = {words: await hub.hubctl(words) for words in ABOUT_ONE}
    assert {words: said for words, said in ended.items() if said.code != NOT_FOUND} == {}
    ended = {words: await hub.hubctl(words, "--no-such-option") for words, _ in LEAVES}
    assert {words: said for words, said in ended.items() if said.code != MISUSED or "--no-such-option" not in said.err} == {}
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
            said = await hub.hubctl(command, str(odd))
            assert (said.code, REFUSED in said.err, odd.read_bytes()) == (MISUSED, True, content), said
        for path in (admin, link):
            said = await hub.hubctl(command, str(path))
            assert (said.code, REFUSED in said.err, admin.read_bytes()) == (MISUSED, True, kept), said
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
        said = hubctl("--kubeconfig", str(file), *words.split(), *arguments, flag, value)
        told = (said.out + said.err).replace(value[:80], "")
        assert not PYTHON.search(told), told

    flags = [
        (words, option.opts[-1])
        for words, command in LEAVES
        for option in command.params
        if isinstance(option, click.Option) and not option.is_flag
    ]
    check_each(check, ((*flag, value) for flag in flags for value in (*WRONG_TEXTS, "\udcff")))
