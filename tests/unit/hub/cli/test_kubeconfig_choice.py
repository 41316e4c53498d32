"""Which kubeconfig hubctl takes when several are at hand."""

from pathlib import Path

import pytest

from hub.cli.connection import kubeconfig_path, load_kubeconfig
from hub.cli.failures import CommandError


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HUBCTL_KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))


def test_the_flag_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUBCTL_KUBECONFIG", "/env")
    assert kubeconfig_path("/flag") == Path("/flag")


def test_hubctls_own_variable_wins_over_kubectls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "/kubectl")
    assert kubeconfig_path(None) == Path("/kubectl")
    monkeypatch.setenv("HUBCTL_KUBECONFIG", "/hubctl")
    assert kubeconfig_path(None) == Path("/hubctl")


def test_of_a_list_the_first_file_that_exists_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.touch()
    monkeypatch.setenv("KUBECONFIG", f"/absent:{there}")
    assert kubeconfig_path(None) == there


def test_a_hub_on_this_machine_is_found_by_itself(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="HUBCTL_KUBECONFIG") as missing:
        kubeconfig_path(None)
    assert missing.value.code == 2
    (tmp_path / "muster").mkdir()
    admin = tmp_path / "muster" / "admin.kubeconfig"
    admin.touch()
    assert kubeconfig_path(None) == admin


def test_an_unreadable_file_is_named_and_is_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="absent cannot be read") as refused:
        load_kubeconfig(str(tmp_path / "absent"))
    assert refused.value.code == 2
