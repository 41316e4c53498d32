"""hubctl prints JSONPath templates and reads kubeconfig files as kubectl does."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from hub.cli.failures import CommandError
from hub.cli.jsonpath import parse_template, rendered
from tests.fakes.hubctl import hubctl
from tests.fakes.jsonpaths import DOCUMENT, IN_NO_ORDER, SAME, WRONG

APART = "\n-----\n"
NOT_REFUSED = {
    "{range .spec.list[*]}{.name}",  # kubectl prints the body, and then what follows once more
    ".metadata.name",  # kubectl prints the text itself
}

pytestmark = pytest.mark.kubectl


def printed(folder: Path, template: str) -> subprocess.CompletedProcess[str]:
    """By a kubectl without any server: it sets a label on a file and prints the object."""
    file = folder / "thing.json"
    file.write_text(json.dumps(DOCUMENT))
    command = ("kubectl", "label", "--local", "--overwrite", "-f", str(file), "x=y", "-o", f"jsonpath={template}")
    environment = {**os.environ, "HOME": str(folder), "KUBECONFIG": str(folder / "none")}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=30, env=environment)


def told(template: str, text: str) -> str:
    return " ".join(sorted(text.split())) if template in IN_NO_ORDER else text


def test_kubectl_prints_the_same(tmp_path: Path) -> None:
    said = printed(tmp_path, f'{{"{APART}"}}'.replace("\n", "\\n").join(SAME))
    assert said.returncode == 0, said.stderr
    printed_by_kubectl = dict(zip(SAME, said.stdout.split(APART), strict=True))
    assert {template: told(template, text) for template, text in printed_by_kubectl.items()} == {
        template: told(template, text) for template, text in SAME.items()
    }


def test_kubectl_prints_documents_and_refuses_templates_as_we_do(tmp_path: Path) -> None:
    template = "{@}"
    assert printed(tmp_path, template).stdout == rendered(parse_template(template), DOCUMENT)
    for template in [template for template in WRONG if template not in NOT_REFUSED][::4]:
        assert printed(tmp_path, template).returncode != 0, template
        with pytest.raises(CommandError):
            rendered(parse_template(template), DOCUMENT)


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
