import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from hollow.cluster import HollowCluster
from machinery.errors import AlreadyExistsError, ConflictError
from machinery.kube.client import KubeClient
from spoke.credentials import KubeSecrets
from spoke.ports import Secrets, SecretSnapshot
from tests.fakes.credentials import MemorySecrets

NAME = "hub-kubeconfig-secret"


@pytest.fixture(params=["memory", "kubernetes"])
async def secrets(request: pytest.FixtureRequest, hollow_cluster: HollowCluster) -> AsyncIterator[Secrets]:
    if request.param == "memory":
        yield MemorySecrets()
        return
    async with await KubeClient.from_document(hollow_cluster.kubeconfig()) as client:
        yield KubeSecrets(client, "open-cluster-management-agent")


async def test_a_missing_secret_is_read_as_one_without_version(secrets: Secrets) -> None:
    assert await secrets.read(NAME) == SecretSnapshot(contents={}, version=None)


async def test_what_is_written_is_read_back_byte_by_byte(secrets: Secrets) -> None:
    written = await secrets.write(NAME, {"tls.key": bytes(range(256)), "empty": b""}, None)
    assert written.contents == {"tls.key": bytes(range(256)), "empty": b""}
    assert await secrets.read(NAME) == written


async def test_a_write_replaces_the_whole_contents(secrets: Secrets) -> None:
    first = await secrets.write(NAME, {"a": b"1", "b": b"1"}, None)
    second = await secrets.write(NAME, {"b": b"2", "c": b"2"}, first.version)
    assert second.version != first.version
    assert (await secrets.read(NAME)).contents == {"b": b"2", "c": b"2"}


async def test_making_a_secret_that_exists_is_refused(secrets: Secrets) -> None:
    await secrets.write(NAME, {"a": b"1"}, None)
    with pytest.raises(AlreadyExistsError):
        await secrets.write(NAME, {"a": b"2"}, None)
    assert (await secrets.read(NAME)).contents == {"a": b"1"}


async def test_a_write_over_what_changed_since_it_was_read_is_refused(secrets: Secrets) -> None:
    first = await secrets.write(NAME, {"a": b"1"}, None)
    await secrets.write(NAME, {"a": b"2"}, first.version)
    with pytest.raises(ConflictError):
        await secrets.write(NAME, {"a": b"3"}, first.version)
    assert (await secrets.read(NAME)).contents == {"a": b"2"}


async def test_a_write_over_what_was_deleted_since_it_was_read_is_refused(secrets: Secrets) -> None:
    first = await secrets.write(NAME, {"a": b"1"}, None)
    await secrets.delete(NAME)
    with pytest.raises(ConflictError):
        await secrets.write(NAME, {"a": b"2"}, first.version)
    assert (await secrets.read(NAME)).version is None


async def test_of_many_writers_with_the_same_version_one_wins(secrets: Secrets) -> None:
    first = await secrets.write(NAME, {"epoch": b"1"}, None)
    outcomes = await asyncio.gather(
        *(secrets.write(NAME, {"epoch": b"%d" % number}, first.version) for number in range(2, 8)), return_exceptions=True
    )
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["ConflictError"] * 5 + ["SecretSnapshot"]


async def test_deleting_a_missing_secret_is_fine(secrets: Secrets) -> None:
    await secrets.delete(NAME)


async def test_changes_tell_the_present_then_every_new_state(secrets: Secrets) -> None:
    async with asyncio.timeout(10), aclosing(secrets.changes(NAME)) as changes:  # type: ignore[type-var]
        assert (await anext(changes)).version is None
        first = await secrets.write(NAME, {"a": b"1"}, None)
        assert await anext(changes) == first
        second = await secrets.write(NAME, {"a": b"2"}, first.version)
        assert await anext(changes) == second
        await secrets.delete(NAME)
        assert (await anext(changes)).version is None


async def test_changes_of_another_secret_are_not_told(secrets: Secrets) -> None:
    async with asyncio.timeout(10), aclosing(secrets.changes(NAME)) as changes:  # type: ignore[type-var]
        await anext(changes)
        await secrets.write("another", {"a": b"1"}, None)
        mine = await secrets.write(NAME, {"a": b"1"}, None)
        assert await anext(changes) == mine


async def test_a_slow_reader_of_changes_sees_the_newest_state(secrets: Secrets) -> None:
    async with asyncio.timeout(10), aclosing(secrets.changes(NAME)) as changes:  # type: ignore[type-var]
        await anext(changes)
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
