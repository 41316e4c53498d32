"""`-o FILE` of commands that write credentials: theirs is replaced, and nobody else's file."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from hub.cli.creating import is_bootstrap
from hub.cli.login import is_login
from machinery.execcredential import ExecUser
from machinery.kubeconfig import ClusterEntry, write_exec_kubeconfig
from tests.fakes.hubctl import hubctl_at
from tests.integration.door.conftest import HubUnderTest

CREATE = ("create", "bootstrap-kubeconfig", "--cluster", "edge1", "--allow-loopback", "-o")
JOIN = ("join", "edge1", "--allow-loopback", "-o")
LOGIN = ("login", "--authenticator", "serviceaccount", "--token-file", "/nowhere", "-o")
REFUSED = "is there already and holds something else"


def users(content: bytes) -> list[str]:
    document: Any = yaml.safe_load(content)
    return [entry["name"] for entry in document["users"]]


@pytest.mark.parametrize("command", [CREATE, JOIN, LOGIN])
async def test_a_file_of_others_stays_as_it_is(hub: HubUnderTest, tmp_path: Path, command: tuple[str, ...]) -> None:
    admin = await hub.admin()
    kept = admin.read_bytes()
    odd = tmp_path / "odd"
    for content in (b"a: [", b"\xff\x00", b"words", kept.replace(b"kind: Config", b"kind: Other")):
        odd.write_bytes(content)
        said = await hubctl_at(admin, *command, str(odd))
        assert (said.code, REFUSED in said.err, odd.read_bytes()) == (2, True, content)
    link = tmp_path / "link"
    link.symlink_to(admin)
    for path in (admin, link):
        said = await hubctl_at(admin, *command, str(path))
        assert (said.code, REFUSED in said.err, admin.read_bytes()) == (2, True, kept), said
    assert await hub.store.read(lambda tx: list(tx.credentials.all())) == []


async def test_a_file_that_is_none_is_not_replaced(hub: HubUnderTest) -> None:
    said = await hubctl_at(await hub.admin(), *CREATE, "/dev/null", "--overwrite")
    assert (said.code, "is no file that can be replaced" in said.err) == (2, True)


@pytest.mark.parametrize("command", [CREATE, JOIN])
async def test_what_the_command_wrote_itself_is_replaced_also_behind_a_link(
    hub: HubUnderTest, tmp_path: Path, command: tuple[str, ...]
) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
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


async def test_a_word_is_enough_to_replace_anything(hub: HubUnderTest, tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_bytes((await hub.admin()).read_bytes())
    said = await hubctl_at(await hub.admin(), *CREATE, str(file), "--overwrite")
    assert (said.code, users(file.read_bytes())) == (0, ["bootstrap-edge1"]), said


def test_a_login_is_replaced_by_the_next() -> None:
    entry, plugin = ClusterEntry("muster", "https://hub:6443", b"ca"), ExecUser("hubctl", ("credential", "--token-kept"))
    (written,) = yaml.safe_load_all(write_exec_kubeconfig(entry, plugin, user="ann"))
    assert is_login([written])
    assert is_login([])
    assert not is_bootstrap([written])
    assert not is_login([{**written, "contexts": [*written["contexts"], {"name": "another"}]}])
    assert not is_login([written, written])
    assert not is_login([{**written, "users": [{"name": "ann", "user": {"exec": {"args": ["get-token"]}}}]}])
