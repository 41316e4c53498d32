"""Kubeconfig files read together, and their contexts changed, as kubectl does both."""

import json
import os
import stat
from pathlib import Path

import pytest
import yaml

from hub.cli.failures import CommandError
from hub.cli.kubeconfigs import KubeconfigFiles
from tests.fakes.hubctl import hubctl

KEY = "LS0tc2VjcmV0"


def kubeconfig(name: str, *, current: str = "", user: str = "admin") -> str:
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": name, "cluster": {"server": f"https://{name}:6443", "certificate-authority": f"{name}.crt"}},
                {"name": "shared", "cluster": {"server": f"https://shared-of-{name}", "certificate-authority-data": "Q0E="}},
            ],
            "users": [{"name": user, "user": {"client-key-data": KEY, "client-certificate": "pki/me.crt", "token": "t0ken"}}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": user}}],
            "current-context": current,
        }
    )


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Two files in two folders, named in $KUBECONFIG with one between that is not there."""
    found = []
    for name, current in (("berlin", ""), ("paris", "paris")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config").write_text(kubeconfig(name, current=current, user="admin"))
        found.append(folder / "config")
    monkeypatch.delenv("HUBCTL_KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join((str(found[0]), str(tmp_path / "absent"), str(found[1]))))
    return found[0], found[1]


def current_in(path: Path) -> str:
    return str(yaml.safe_load(path.read_text()).get("current-context") or "")


def test_the_first_file_wins_and_paths_are_meant_from_each_files_own_folder(files: tuple[Path, Path]) -> None:
    whole = KubeconfigFiles.chosen(None).merged
    clusters = {entry["name"]: entry["cluster"] for entry in whole["clusters"]}
    assert clusters["shared"]["server"] == "https://shared-of-berlin"
    assert clusters["paris"]["certificate-authority"] == str(files[1].parent / "paris.crt")
    assert whole["users"][0]["user"]["client-certificate"] == str(files[0].parent / "pki" / "me.crt")
    assert whole["current-context"] == "paris"


def test_contexts_are_listed_with_the_current_one(files: tuple[Path, Path]) -> None:
    assert files
    assert hubctl("config", "get-contexts").lines == [
        "CURRENT   NAME     CLUSTER   AUTHINFO   NAMESPACE",
        "          berlin   berlin    admin",
        "*         paris    paris     admin",
    ]
    assert hubctl("config", "get-contexts", "-o", "name").out == "berlin\nparis\n"
    assert hubctl("config", "get-contexts", "rome").code == 3
    assert hubctl("config", "current-context").out == "paris\n"


def test_a_context_is_chosen_in_the_file_that_has_the_choice(files: tuple[Path, Path]) -> None:
    files[1].chmod(0o640)
    assert hubctl("config", "use-context", "berlin").out == 'switched to context "berlin"\n'
    assert (current_in(files[0]), current_in(files[1])) == ("", "berlin")
    assert stat.S_IMODE(files[1].stat().st_mode) == 0o640
    assert [path.name for path in files[1].parent.iterdir()] == ["config"]
    refused = hubctl("config", "use-context", "rome")
    assert (refused.code, "there is berlin, paris" in refused.err) == (3, True)


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
    assert hubctl("config", "rename-context", "berlin", "rome").code == 2
    assert hubctl("config", "set-context").code == 2


def test_a_view_has_no_secret_unless_it_is_asked_for(files: tuple[Path, Path]) -> None:
    assert files
    shown = hubctl("config", "view").out
    assert (KEY in shown, "t0ken" in shown, "REDACTED" in shown) == (False, False, True)
    assert KEY in hubctl("config", "view", "--raw").out
    small = hubctl("--context", "berlin", "config", "view", "--minify", "-o", "jsonpath={.clusters[*].cluster.server}")
    assert small.out == "https://berlin:6443"
    assert hubctl("--context", "rome", "config", "view", "--minify").code == 3


def test_a_file_that_another_changes_is_left_alone(files: tuple[Path, Path]) -> None:
    lock = files[1].with_name("config.lock")
    lock.touch()
    refused = hubctl("config", "use-context", "berlin")
    assert (refused.code, str(lock) in refused.err, current_in(files[1])) == (1, True, "paris")


def test_a_link_is_written_through(files: tuple[Path, Path]) -> None:
    link = files[1].with_name("link")
    link.symlink_to(files[1])
    assert hubctl("config", "use-context", "paris", "--kubeconfig", str(link)).code == 0
    assert link.is_symlink()


def test_an_unknown_context_is_wrong_usage_and_names_those_there_are(files: tuple[Path, Path]) -> None:
    assert files
    refused = hubctl("--context", "rome", "get", "clusters")
    assert (refused.code, 'no context "rome": it has berlin, paris' in refused.err) == (2, True), refused.err
    assert hubctl("get", "clusters", "--context", "rome").code == 2


@pytest.mark.parametrize(
    ("content", "words"),
    [("[]", "not a mapping"), ("{", "is not YAML"), ("clusters: [{}]", "an entry without a name in clusters")],
)
def test_a_bad_file_in_a_list_is_named(files: tuple[Path, Path], content: str, words: str) -> None:
    files[0].write_text(content)
    with pytest.raises(CommandError, match=words) as refused:
        KubeconfigFiles.chosen(None).read()
    assert str(files[0]) in refused.value.sentence
