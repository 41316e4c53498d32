from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from spoke.credentials import AtomicDirectory
from spoke.ports import CredentialDirectory
from tests.fakes.credentials import MemoryDirectory


@pytest.fixture(params=["memory", "files"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> CredentialDirectory:
    made: Mapping[str, Callable[[], CredentialDirectory]] = {
        "memory": MemoryDirectory,
        "files": lambda: AtomicDirectory(tmp_path / "a" / "hub-kubeconfig"),
    }
    return made[request.param]()


def test_a_directory_that_was_never_written_is_empty(directory: CredentialDirectory) -> None:
    assert directory.read() == {}


def test_the_directory_holds_exactly_what_it_was_given_last(directory: CredentialDirectory) -> None:
    directory.replace({"kubeconfig": b"a", "tls.key": b"\x00\xff"})
    directory.replace({"kubeconfig": b"b", "tls.crt": b"c"})
    assert directory.read() == {"kubeconfig": b"b", "tls.crt": b"c"}


def test_the_same_contents_again_change_nothing(directory: CredentialDirectory) -> None:
    for _ in range(2):
        directory.replace({"kubeconfig": b"a"})
        assert directory.read() == {"kubeconfig": b"a"}


def test_everything_can_be_taken_away(directory: CredentialDirectory) -> None:
    directory.replace({"kubeconfig": b"a"})
    directory.replace({})
    assert directory.read() == {}
