"""Who a replica is."""

import socket
from pathlib import Path

import pytest

from hub.replica import replica_name
from hub.settings import Settings, load
from machinery.directory import DataDirectory
from machinery.errors import InvalidError

SHARED = {"HUB_DATABASE_URL": "postgresql://db/hub"}


def named(folder: Path, environment: dict[str, str], name: str | None = None) -> str:
    settings: Settings = load({"replica_name": name}, None, environment)
    with DataDirectory(folder, "hub") as directory:
        return replica_name(settings, directory, environment)


def test_a_replica_is_called_as_told_then_as_its_pod_then_as_its_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "Machine_7.example.com")
    assert named(tmp_path, {**SHARED, "POD_NAME": "hub-1"}, "east") == "east"
    assert named(tmp_path, {**SHARED, "POD_NAME": "hub-1"}) == "hub-1"
    assert named(tmp_path, SHARED) == "machine-7.example.com"


def test_on_the_embedded_database_the_data_directory_keeps_the_name(tmp_path: Path) -> None:
    first = named(tmp_path / "a", {"POD_NAME": "hub-0"})
    assert named(tmp_path / "a", {}) == first
    assert named(tmp_path / "b", {}) != first
    (tmp_path / "a" / "replica").write_text("of-an-earlier-release\n")
    assert named(tmp_path / "a", {}) == "of-an-earlier-release"


@pytest.mark.parametrize("name", ["Hub", "a b", "-a", "a" * 201, "a/b"])
def test_a_name_that_no_object_can_have_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidError, match="can name no replica"):
        named(tmp_path, SHARED, name)
