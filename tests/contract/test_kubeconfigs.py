"""Several kubeconfig files are to hubctl what they are to kubectl."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.fakes.hubctl import hubctl

pytestmark = pytest.mark.kubectl


def kubeconfig(name: str, current: str) -> str:
    shared = {"name": "shared", "cluster": {"server": f"https://shared-of-{name}", "certificate-authority-data": "Q0E="}}
    user = {"name": "admin", "user": {"token": f"token-of-{name}"}}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": f"https://{name}"}}, shared],
        "users": [user],
        "contexts": [{"name": name, "context": {"cluster": name, "user": "admin"}}],
        "current-context": current,
    }
    return json.dumps(document)


def test_files_are_read_together_and_changed_as_by_kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text(kubeconfig("berlin", ""))
    two.write_text(kubeconfig("paris", "paris"))
    monkeypatch.delenv("HUBCTL_KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join((str(one), str(tmp_path / "absent"), str(two))))
    monkeypatch.setenv("HOME", str(tmp_path))

    def both(*words: str) -> tuple[str, str]:
        said = subprocess.run(["kubectl", *words], capture_output=True, text=True, check=True)
        return said.stdout, hubctl(*words).out

    def documents() -> list[dict[str, object]]:
        found = [json.loads(text) for text in both("config", "view", "--raw", "-o", "json")]
        return [{**each, **{part: _sorted(each[part]) for part in ("clusters", "users", "contexts")}} for each in found]

    kubectls, ours = documents()
    assert {name: kubectls[name] for name in ours} == ours
    assert hubctl("config", "use-context", "berlin").code == 0
    for words in (("config", "current-context"), ("config", "get-contexts", "-o", "name")):
        theirs, mine = both(*words)
        assert theirs == mine
    subprocess.run(["kubectl", "config", "rename-context", "berlin", "rome"], capture_output=True, check=True)
    assert hubctl("config", "current-context").out == "rome\n"


def _sorted(entries: list[dict[str, object]]) -> list[dict[str, object]]:
    return sorted(entries, key=lambda entry: str(entry["name"]))
