import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from pathlib import Path

import pytest

from hollow.cluster import HollowCluster
from machinery.errors import AlreadyExistsError, ConflictError
from machinery.kube.client import KubeClient
from spoke.credentials import AtomicDirectory, KubeSecrets
from spoke.ports import CredentialDirectory, Secrets, SecretSnapshot
from tests.fakes.credentials import MemoryDirectory, MemorySecrets

NAME = "hub-kubeconfig-secret"


@pytest.fixture(params=["memory", "kubernetes"])
async def secrets(request: pytest.FixtureRequest, hollow_cluster: HollowCluster) -> AsyncIterator[Secrets]:
    if request.param == "memory":
        yield MemorySecrets()
        return
    async with await KubeClient.from_document(hollow_cluster.kubeconfig()) as client:
        yield KubeSecrets(client, "open-cluster-management-agent")


async def test_a_secret_is_replaced_whole_by_who_has_read_its_newest_version(secrets: Secrets) -> None:
    await secrets.delete(NAME)
    assert await secrets.read(NAME) == SecretSnapshot(contents={}, version=None)
    first = await secrets.write(NAME, {"tls.key": bytes(range(256)), "empty": b""}, None)
    assert first.contents == {"tls.key": bytes(range(256)), "empty": b""}
    assert await secrets.read(NAME) == first
    with pytest.raises(AlreadyExistsError):
        await secrets.write(NAME, {"a": b"2"}, None)
    assert await secrets.read(NAME) == first
    second = await secrets.write(NAME, {"empty": b"2", "c": b"2"}, first.version)
    assert second.version != first.version
    with pytest.raises(ConflictError):
        await secrets.write(NAME, {"a": b"3"}, first.version)
    assert (await secrets.read(NAME)).contents == {"empty": b"2", "c": b"2"}
    outcomes = await asyncio.gather(
        *(secrets.write(NAME, {"epoch": b"%d" % number}, second.version) for number in range(2, 8)), return_exceptions=True
    )
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["ConflictError"] * 5 + ["SecretSnapshot"]
    newest = await secrets.read(NAME)
    await secrets.delete(NAME)
    with pytest.raises(ConflictError):
        await secrets.write(NAME, {"a": b"2"}, newest.version)
    assert (await secrets.read(NAME)).version is None


async def test_changes_are_the_present_then_every_new_state_of_this_secret_alone(secrets: Secrets) -> None:
    async with aclosing(secrets.changes(NAME)) as changes:  # type: ignore[type-var]
        assert (await anext(changes)).version is None
        await secrets.write("another", {"a": b"1"}, None)
        first = await secrets.write(NAME, {"a": b"1"}, None)
        assert await anext(changes) == first
        second = await secrets.write(NAME, {"a": b"2"}, first.version)
        assert await anext(changes) == second
        await secrets.delete(NAME)
        assert (await anext(changes)).version is None
        version = None
        for number in range(5):
            version = (await secrets.write(NAME, {"n": b"%d" % number}, version)).version
        async for snapshot in changes:
            if snapshot.version == version:
                break


async def test_the_secrets_that_were_made_here_are_found_by_how_their_names_begin(secrets: Secrets) -> None:
    for name in (f"{NAME}-a", f"{NAME}-b", "other"):
        await secrets.write(name, {"a": b"1"}, None)
    assert sorted(await secrets.named(f"{NAME}-")) == [f"{NAME}-a", f"{NAME}-b"]
    await secrets.delete(f"{NAME}-a")
    assert list(await secrets.named(f"{NAME}-")) == [f"{NAME}-b"]


@pytest.fixture(params=["memory", "files"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> CredentialDirectory:
    made: Mapping[str, Callable[[], CredentialDirectory]] = {
        "memory": MemoryDirectory,
        "files": lambda: AtomicDirectory(tmp_path / "a" / "hub-kubeconfig"),
    }
    return made[request.param]()


def test_the_directory_holds_exactly_what_it_was_given_last(directory: CredentialDirectory) -> None:
    directory.replace({"kubeconfig": b"a", "tls.key": b"\x00\xff"})
    directory.replace({"kubeconfig": b"b", "tls.crt": b"c"})
    assert directory.read() == {"kubeconfig": b"b", "tls.crt": b"c"}
