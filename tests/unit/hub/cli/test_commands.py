"""What holds for every command of hubctl: help, examples that can be typed, suggestions, completion, pages."""

import re
from pathlib import Path

import click
import pytest

from hub.cli.__main__ import COMMANDS, ELSEWHERE, hubctl
from hub.cli.plugin import offered
from hub.cli.reference import CODES, drift, pages, write
from tests.fakes import hubctl as here
from tests.fakes.hubctl import ALL, LEAVES, typed


def test_a_command_describes_itself_and_how_it_is_typed() -> None:
    wrong = []
    for words, command in LEAVES:
        help_text = command.help or ""
        begins = words.removesuffix(" anything").split()
        described = re.match(r"[A-Z].*\.", help_text) and "\b\nExamples:\n" in help_text.replace("\b\n    ", "\b\n")
        if not described or not any(line[: len(begins)] == begins for line in typed(command)):
            wrong.append(words)
    assert wrong == []


def test_examples_can_be_typed() -> None:
    for _, command in ALL:
        for line in typed(command):
            found: click.Command = hubctl
            context = hubctl.make_context("hubctl", list(line))
            while isinstance(found, click.Group):
                _, below, arguments = found.resolve_command(context, [*context._protected_args, *context.args])
                assert below is not None, line
                found, context = below, below.make_context(below.name, list(arguments), parent=context)


def test_a_wrong_command_is_told_what_was_meant() -> None:
    assert 'did you mean "get"?' in here.hubctl("gte").err
    assert "use `hubctl certificate approve`" in here.hubctl("approve", "edge1").err
    assert here.hubctl("xyzzy").code == 2
    assert "Did you mean 'approve'" in here.hubctl("certificate", "aprove").err
    assert "'--output'" in here.hubctl("get", "--outptu").err
    assert not set(ELSEWHERE) & set(COMMANDS)


def test_pages_say_what_help_says_and_drift_is_seen(tmp_path: Path) -> None:
    write(tmp_path)
    assert drift(tmp_path) == []
    assert set(pages()) == {"README.md", *(f"{name}.md" for name in COMMANDS)}
    (tmp_path / "get.md").write_text("other")
    (tmp_path / "gone.md").write_text("")
    assert drift(tmp_path) == ["get.md", "gone.md"]
    write(tmp_path)
    assert not (tmp_path / "gone.md").exists()
    assert all(f"| {code} | " in (tmp_path / "README.md").read_text() for code, _ in CODES)


def test_completion_offers_kinds_options_and_forms_and_is_silent_where_nothing_can_be_offered(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HUBCTL_KUBECONFIG", "/nowhere")
    assert offered(["get", "bootstrap"]) == ["bootstrap-credentials", ":4"]
    assert offered(["get", "clusters", ""]) == [":4"]
    assert offered(["get", "clusters", "-o", "js"]) == ["json", "jsonpath=", "jsonpath-as-json=", "jsonpath-file=", ":4"]
    assert "--field-selector\tFields, as in 'status.available!=True'." in offered(["get", "--fie"])
    assert [line.partition("\t")[0] for line in offered(["certificate", ""])] == ["approve", "deny", ":4"]
    for words in (["accept", ""], ["get", "cluster/"], ["wait", "clusters", ""], ["--context", ""], ["get", "nothing", ""]):
        assert offered(words) == [":4"], words
    assert capfd.readouterr() == ("", "")
    for shell in ("bash", "zsh", "fish", "powershell"):
        said = here.hubctl("completion", shell)
        assert (said.code, "_HUBCTL_COMPLETE" in said.out) == (0, True), shell
