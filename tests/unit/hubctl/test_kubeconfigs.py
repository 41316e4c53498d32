"""Kubeconfig files: which is taken, several read together, contexts changed as kubectl does, addresses others can reach."""

import json
import os
import stat
from pathlib import Path

import pytest
import yaml

from hubctl.auth.kubeconfig import KubeconfigFiles
from hubctl.commands.clusters.credential_options import check_endpoints, split_host, unreachable
from hubctl.errors import CommandError
from tests.checks import present, refusal
from tests.fakes.hubctl import hubctl

LOOPBACK = ("127.0.0.1", "127.8.9.10", "127.1", "2130706433", "0x7f000001", "::1", "[::1]", "::ffff:127.0.0.1")
UNREACHABLE = {
    "loopback": (*LOOPBACK, "localhost", "LocalHost.", "hub.localhost"),
    "unspecified": ("0.0.0.0", "0", "::"),  # noqa: S104 - nothing is bound
    "link-local": ("169.254.10.1", "fe80::1%eth0"),
    "multicast": ("224.0.0.1",),
    "pod network": ("10.244.3.7", "10.42.0.9"),
    "inside one Kubernetes cluster": ("hub.muster.svc", "hub.muster.svc.cluster.local"),
}
REACHABLE = ("hub.example.org", "192.168.1.20", "10.0.0.5", "203.0.113.9", "2001:db8::5", "localhost.example.org")


def test_only_addresses_that_other_machines_reach_are_accepted() -> None:
    found = {word: tuple(host for host in hosts if word in (unreachable(host) or "")) for word, hosts in UNREACHABLE.items()}
    assert (found, [host for host in REACHABLE if unreachable(host) is not None]) == (UNREACHABLE, [])
    check_endpoints("https://hub.example.org:6443", "hub.example.org:8443")
    check_endpoints("", "")
    for endpoints, words in (
        (("https://127.0.0.1:6443", "hub:8443"), ("https_advertised", "--https-advertised", "--server")),
        (("https://hub:6443", "[::]:8443"), ("grpc_advertised", "--grpc-advertised", "--grpc-server")),
    ):
        refused = present(refusal(CommandError, check_endpoints, *endpoints))
        assert all(word in refused.sentence for word in (*words, "--allow-loopback")), refused.sentence
    read = {"hub:8443": ("hub", 8443), "[::1]:8443": ("::1", 8443), "hub": ("hub", None), "[::1]": ("::1", None)}
    assert {address: split_host(address) for address in read} == read
    wrong = ("", "hub:0", "hub:65536", "hub:x", "a b:1", "https://hub:1", "me@hub:1")
    assert [address for address in wrong if "host:port" not in str(refusal(ValueError, split_host, address))] == []


def file_of(flag: str | None = None) -> Path:
    return KubeconfigFiles.chosen(flag).present[0]


def test_flag_own_variable_kubectls_and_local_hub_are_tried_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HUBCTL_KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(CommandError, match="HUBCTL_KUBECONFIG") as missing:
        file_of()
    for line in ("version", "version --client --kubeconfig absent"):
        assert (hubctl(*line.split()).code, len(hubctl(*line.split()).lines)) == (0, 1), line
    assert hubctl("version", "--kubeconfig", "absent").code == 2
    with pytest.raises(CommandError, match="absent cannot be read") as refused:
        KubeconfigFiles.chosen(str(tmp_path / "absent")).read()
    assert (missing.value.code, refused.value.code) == (2, 2)
    admin = tmp_path / "muster" / "admin.kubeconfig"
    admin.parent.mkdir()
    admin.touch()
    assert file_of() == admin
    monkeypatch.setenv("KUBECONFIG", "/kubectl")
    assert file_of() == Path("/kubectl")
    monkeypatch.setenv("KUBECONFIG", f"/absent:{admin}")
    assert file_of() == admin, "the first of a list that exists"
    monkeypatch.setenv("HUBCTL_KUBECONFIG", "/hubctl")
    assert (file_of(), file_of("/flag")) == (Path("/hubctl"), Path("/flag"))


KEY = "LS0tc2VjcmV0"


def kubeconfig(name: str, *, current: str = "") -> str:
    shared = {"server": f"https://shared-of-{name}", "certificate-authority-data": "Q0E="}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": name, "cluster": {"server": f"https://{name}:6443", "certificate-authority": f"{name}.crt"}},
                {"name": "shared", "cluster": shared},
            ],
            "users": [
                {"name": "admin", "user": {"client-key-data": KEY, "client-certificate": "pki/me.crt", "token": "t0ken"}}
            ],
            "contexts": [{"name": name, "context": {"cluster": name, "user": "admin"}}],
            "current-context": current,
        }
    )


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Two files in two folders, named in $KUBECONFIG with one between that is not there."""
    berlin, paris = tmp_path / "berlin" / "config", tmp_path / "paris" / "config"
    for path, current in ((berlin, ""), (paris, "paris")):
        path.parent.mkdir()
        path.write_text(kubeconfig(path.parent.name, current=current))
    monkeypatch.delenv("HUBCTL_KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join((str(berlin), str(tmp_path / "absent"), str(paris))))
    return berlin, paris


def current_in(path: Path) -> str:
    return str(yaml.safe_load(path.read_text()).get("current-context") or "")


def test_the_first_file_wins_and_paths_are_relative_to_the_folder_of_each_file(files: tuple[Path, Path]) -> None:
    whole = KubeconfigFiles.chosen(None).merged
    clusters = {entry["name"]: entry["cluster"] for entry in whole["clusters"]}
    assert clusters["shared"]["server"] == "https://shared-of-berlin"
    assert clusters["paris"]["certificate-authority"] == str(files[1].parent / "paris.crt")
    assert whole["users"][0]["user"]["client-certificate"] == str(files[0].parent / "pki" / "me.crt")
    assert whole["current-context"] == "paris"


@pytest.mark.usefixtures("files")
def test_contexts_and_view_are_shown_without_secrets() -> None:
    assert hubctl("config", "get-contexts").lines == [
        "CURRENT   NAME     CLUSTER   AUTHINFO   NAMESPACE",
        "          berlin   berlin    admin",
        "*         paris    paris     admin",
    ]
    assert hubctl("config", "get-contexts", "-o", "name").out == "berlin\nparis\n"
    assert (hubctl("config", "get-contexts", "rome").code, hubctl("config", "current-context").out) == (3, "paris\n")
    shown = hubctl("config", "view").out
    assert (KEY in shown, "t0ken" in shown, "REDACTED" in shown) == (False, False, True)
    assert KEY in hubctl("config", "view", "--raw").out
    small = hubctl("--context", "berlin", "config", "view", "--minify", "-o", "jsonpath={.clusters[*].cluster.server}")
    assert small.out == "https://berlin:6443"
    assert hubctl("--context", "rome", "config", "view", "--minify").code == 3
    refused = hubctl("--context", "rome", "get", "clusters")
    assert (refused.code, 'no context "rome": it has berlin, paris' in refused.err) == (2, True), refused.err
    assert hubctl("get", "clusters", "--context", "rome").code == 2


def test_a_context_is_chosen_in_the_file_that_has_the_choice(files: tuple[Path, Path]) -> None:
    files[1].chmod(0o640)
    lock = files[1].with_name("config.lock")
    lock.touch()
    refused = hubctl("config", "use-context", "berlin")
    assert (refused.code, str(lock) in refused.err, current_in(files[1])) == (1, True, "paris"), "another changes the file"
    lock.unlink()
    assert hubctl("config", "use-context", "berlin").out == 'switched to context "berlin"\n'
    assert (current_in(files[0]), current_in(files[1])) == ("", "berlin")
    assert stat.S_IMODE(files[1].stat().st_mode) == 0o640
    assert [path.name for path in files[1].parent.iterdir()] == ["config"]
    refused = hubctl("config", "use-context", "rome")
    assert (refused.code, "there are berlin, paris" in refused.err) == (3, True)
    link = files[1].with_name("link")
    link.symlink_to(files[1])
    assert hubctl("config", "use-context", "paris", "--kubeconfig", str(link)).code == 0
    assert (link.is_symlink(), current_in(files[1])) == (True, "paris")


def test_a_context_is_made_changed_renamed_and_deleted_where_it_is(files: tuple[Path, Path]) -> None:
    assert hubctl("config", "set-context", "rome", "--cluster", "shared", "--user", "admin").out == 'context "rome" created\n'
    assert "rome" in files[0].read_text()
    assert hubctl("config", "set-context", "--current", "--namespace", "shops").out == 'context "paris" modified\n'
    assert yaml.safe_load(files[1].read_text())["contexts"][0]["context"]["namespace"] == "shops"
    hubctl("config", "set-context", "--current", "--namespace", "")
    assert "namespace" not in files[1].read_text()
    assert hubctl("config", "rename-context", "paris", "lyon").code == 0
    assert (current_in(files[1]), "lyon" in files[1].read_text()) == ("lyon", True)
    gone = hubctl("config", "delete-context", "lyon")
    assert (gone.out, "it was the current one" in gone.err) == ('context "lyon" deleted\n', True)
    assert hubctl("config", "get-contexts", "-o", "name").out == "berlin\nrome\n"
    assert (hubctl("config", "rename-context", "berlin", "rome").code, hubctl("config", "set-context").code) == (2, 2)


def test_a_bad_file_in_a_list_is_named(files: tuple[Path, Path]) -> None:
    wrong = {"[]": "not a mapping", "{": "is not YAML", "clusters: [{}]": "an entry without a name in clusters"}
    for content, words in wrong.items():
        files[0].write_text(content)
        with pytest.raises(CommandError, match=words) as refused:
            KubeconfigFiles.chosen(None).read()
        assert str(files[0]) in refused.value.sentence
