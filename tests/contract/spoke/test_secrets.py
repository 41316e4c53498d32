"""What every adapter promises of the managed cluster and of the secrets that an agent keeps."""

import asyncio
import os
import resource
import stat
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from hollow.cluster import HollowCluster
from hollow.faults import Faults
from machinery.client.rest import KubeClient, RestResource
from machinery.errors import AlreadyExistsError, ConflictError, InvalidError, MusterError, UnavailableError
from machinery.meta.timestamps import format_micro_time
from machinery.runtime.clock import SystemClock
from spoke.cluster import CLAIMS, LEASES, NODES, KubeCluster
from spoke.credentials.directory import DATA, AtomicDirectory
from spoke.credentials.kubernetes_secrets import KubeSecrets
from spoke.domain.report import NodeResources, ReportedClaim
from spoke.observability.event_recorder import KubeEvents
from spoke.ports.cluster import ApiServerHealth, CredentialDirectory, Secrets, SecretSnapshot
from tests.checks import check_refusal, check_refusal_of
from tests.fakes.credentials import MemoryCluster, MemoryDirectory, MemorySecrets

NAME = "hub-kubeconfig-secret"


@pytest.fixture(params=["memory", "kubernetes"])
def secrets(request: pytest.FixtureRequest, client: KubeClient) -> Secrets:
    return MemorySecrets() if request.param == "memory" else KubeSecrets(client, "open-cluster-management-agent")


async def test_a_secret_is_replaced_whole_by_who_has_read_its_newest_version(secrets: Secrets) -> None:
    await secrets.delete(NAME)
    assert await secrets.read(NAME) == SecretSnapshot(contents={}, version=None)
    first = await secrets.write(NAME, {"tls.key": bytes(range(256)), "empty": b""}, None)
    assert (first.contents, await secrets.read(NAME)) == ({"tls.key": bytes(range(256)), "empty": b""}, first)
    await check_refusal_of(AlreadyExistsError, secrets.write(NAME, {"a": b"2"}, None))
    assert await secrets.read(NAME) == first
    second = await secrets.write(NAME, {"empty": b"2", "c": b"2"}, first.version)
    assert second.version != first.version
    await check_refusal_of(ConflictError, secrets.write(NAME, {"a": b"3"}, first.version))
    assert (await secrets.read(NAME)).contents == {"empty": b"2", "c": b"2"}
    outcomes = await asyncio.gather(
        *(secrets.write(NAME, {"epoch": b"%d" % number}, second.version) for number in range(2, 8)), return_exceptions=True
    )
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["ConflictError"] * 5 + ["SecretSnapshot"]
    newest = await secrets.read(NAME)
    await secrets.delete(NAME)
    await check_refusal_of(ConflictError, secrets.write(NAME, {"a": b"2"}, newest.version))
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


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def names(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()}


def test_files_are_for_their_owner_only_even_under_a_lax_umask(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    before = os.umask(0)
    try:
        for folder in (tmp_path / "new", tmp_path / "open"):
            AtomicDirectory(folder).replace({"tls.key": b"k"})
            assert (mode(folder), mode((folder / DATA).resolve()), mode(folder / "tls.key")) == (0o700, 0o700, 0o600)
    finally:
        os.umask(before)


def test_programs_find_each_key_as_a_file_and_nothing_of_earlier_sets_or_killed_writers(tmp_path: Path) -> None:
    directory = AtomicDirectory(tmp_path)
    directory.replace({"a": b"1", "b": b"1"})
    (tmp_path / "..torn").mkdir()
    (tmp_path / "..torn" / "a").write_bytes(b"half")
    (tmp_path / "..staged").symlink_to("..data/gone")
    for number in range(5):
        directory.replace({"a": b"%d" % number, "c": b"2"})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == {"a": b"4", "c": b"2"}
    assert names(tmp_path) == {"a", "c", DATA, (tmp_path / DATA).readlink().name}
    (tmp_path / "a").unlink()
    directory.replace({"a": b"4", "c": b"2"})
    assert (tmp_path / "a").read_bytes() == b"4", "a missing link of a torn write is made again"


def test_a_reader_of_the_whole_set_never_sees_a_mix(tmp_path: Path) -> None:
    directory = AtomicDirectory(tmp_path)
    directory.replace({"crt": b"0", "key": b"0"})
    mixes: list[object] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            seen = directory.read()
            if seen.get("crt") != seen.get("key") or not seen:
                mixes.append(seen)

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(200):
        directory.replace({"crt": b"%d" % number, "key": b"%d" % number})
    done.set()
    reader.join()
    assert mixes == []


def test_a_write_that_fails_leaves_the_old_set_and_no_rubbish(tmp_path: Path) -> None:
    directory = AtomicDirectory(tmp_path)
    directory.replace({"a": b"1"})
    before, limit = names(tmp_path), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limit[1]))  # as if the disk were full
    try:
        check_refusal(OSError, directory.replace, {"a": b"2" * 1000}, match="too large")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert (names(tmp_path), directory.read()) == (before, {"a": b"1"})


def test_files_of_others_are_left_alone_and_a_folder_that_is_theirs_is_refused(tmp_path: Path) -> None:
    directory = AtomicDirectory(tmp_path / "ours")
    directory.replace({"a": b"1"})
    (tmp_path / "ours" / "note").write_text("mine")
    directory.replace({"a": b"2"})
    assert ((tmp_path / "ours" / "note").read_text(), directory.read()) == ("mine", {"a": b"2"})
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "thesis.txt").write_text("years of work")
    check_refusal(InvalidError, AtomicDirectory(tmp_path / "theirs").replace, {"a": b"1"}, match="contains other files")
    assert names(tmp_path / "theirs") == {"thesis.txt"}


def test_key_that_no_secret_can_have_is_refused(tmp_path: Path) -> None:
    for key in ("", "..", "..data", ".", "a/b", "../evil", "a\n", "k" * 254, "é"):
        check_refusal(InvalidError, AtomicDirectory(tmp_path / "d").replace, {key: b"1"}, match="cannot be a file")
        assert not (tmp_path / "d").exists()


NODE = NodeResources(name="n", capacity={"cpu": "4"}, allocatable={"cpu": "3900m"}, schedulable=True)
CORDONED = NodeResources(name="n", capacity={"cpu": "4"}, allocatable={"cpu": "3900m"}, schedulable=False)
CLAIM = ReportedClaim(name="c", value="1")
MOMENT = datetime(2026, 11, 21, 8, 0, 0, 123456, tzinfo=UTC)


@dataclass
class MemoryStage:
    """A cluster and the means to change it."""

    cluster: MemoryCluster

    async def set_nodes(self, *nodes: NodeResources) -> None:
        self.cluster.set_nodes(nodes)

    async def set_claims(self, *claims: ReportedClaim) -> None:
        self.cluster.set_claims(claims)

    async def set_lease(self, namespace: str, name: str, renewed: datetime) -> None:
        self.cluster.leases[namespace, name] = renewed

    async def break_down(self) -> None:
        self.cluster.fail = UnavailableError("broken")
        self.cluster.answered_health = ApiServerHealth(ok=False, status_code=500, detail="broken")


@dataclass
class HollowStage:
    cluster: KubeCluster
    client: KubeClient
    hollow: HollowCluster

    async def set_nodes(self, *nodes: NodeResources) -> None:
        await self._replace(NODES, "v1", "Node", {node.name: _node_fields(node) for node in nodes})

    async def set_claims(self, *claims: ReportedClaim) -> None:
        version = f"{CLAIMS.group}/{CLAIMS.version}"
        await self._replace(CLAIMS, version, "ClusterClaim", {claim.name: {"spec": {"value": claim.value}} for claim in claims})

    async def set_lease(self, namespace: str, name: str, renewed: datetime) -> None:
        lease = {"metadata": {"name": name}, "spec": {"renewTime": format_micro_time(renewed)}}
        await self.client.create(LEASES.path(namespace=namespace), lease)

    async def break_down(self) -> None:
        self.hollow.faults = Faults(error=True)

    async def _replace(self, resource: RestResource, api_version: str, kind: str, wanted: dict[str, dict[str, Any]]) -> None:
        present = {item["metadata"]["name"]: item for item in await self.client.list(resource.path())}
        for name in present.keys() - wanted.keys():
            await self.client.delete(resource.path(name))
        for name, fields in wanted.items():
            body = {"apiVersion": api_version, "kind": kind, "metadata": {"name": name}}
            if name not in present:
                await self.client.create(resource.path(), {**body, **fields})
            else:
                await self.client.patch(resource.path(name), fields)


def _node_fields(node: NodeResources) -> dict[str, Any]:
    status = {"capacity": dict(node.capacity), "allocatable": dict(node.allocatable)}
    return {"spec": {"unschedulable": None if node.schedulable else True}, "status": status}


Stage = MemoryStage | HollowStage


@pytest.fixture(params=["memory", "kubernetes"])
async def stage(request: pytest.FixtureRequest, hollow_cluster: HollowCluster, client: KubeClient) -> Stage:
    if request.param == "memory":
        return MemoryStage(MemoryCluster())
    return HollowStage(KubeCluster(client, coalesce=timedelta(milliseconds=10)), client, hollow_cluster)


async def test_cluster_reports_its_identity_nodes_claims_leases_changes_and_health(stage: Stage) -> None:
    cluster = stage.cluster
    assert len(await cluster.uid()) == 36
    assert await cluster.uid() == await cluster.uid()
    assert (await cluster.version()).startswith("v1.")
    assert await cluster.lease_renewed_at("default", "addon") is None
    await stage.set_lease("default", "addon", MOMENT)
    assert await cluster.lease_renewed_at("default", "addon") == MOMENT
    await stage.set_nodes(NODE)
    await stage.set_claims(CLAIM)
    assert (list(await cluster.nodes()), list(await cluster.claims())) == ([NODE], [CLAIM])
    async with aclosing(cluster.changes()) as changes:  # type: ignore[type-var]
        assert {await anext(changes), await anext(changes)} == {"nodes", "claims"}
        await stage.set_nodes(CORDONED)
        assert await anext(changes) == "nodes"
        await stage.set_claims()
        assert await anext(changes) == "claims"
    assert (list(await cluster.nodes()), list(await cluster.claims())) == ([CORDONED], [])
    assert await cluster.health() == ApiServerHealth(ok=True, status_code=200, detail="ok")
    await stage.break_down()
    health = await cluster.health()
    assert (health.ok, health.status_code) == (False, 500)
    reads: Sequence[Any] = (cluster.uid, cluster.version, cluster.nodes, cluster.claims)
    for read in reads:
        await check_refusal_of(MusterError, read())


LABEL = "clusterset.open-cluster-management.io/abc"


async def test_namespaces_are_found_by_a_label_and_made_only_when_that_is_wanted(stage: Stage) -> None:
    await stage.cluster.label_namespace("gone", LABEL, "true", create=False)
    assert await stage.cluster.labelled_namespaces(LABEL) == frozenset()
    await stage.cluster.label_namespace("blue", LABEL, "true", create=True)
    await stage.cluster.label_namespace("red", LABEL, "true", create=True)
    assert await stage.cluster.labelled_namespaces(LABEL) == {"blue", "red"}
    await stage.cluster.label_namespace("blue", LABEL, "false", create=False)
    assert await stage.cluster.labelled_namespaces(LABEL) == {"red"}
    await stage.cluster.label_namespace("blue", LABEL, "true", create=True)
    assert await stage.cluster.labelled_namespaces(LABEL) == {"blue", "red"}


NAMESPACE = "open-cluster-management-agent"


async def test_an_announcement_is_an_event_about_the_owners_secret(client: KubeClient) -> None:
    await client.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    events = KubeEvents(client, NAMESPACE, SystemClock())
    await events.announce("HubFailedOver", "from a to b", warning=False)
    await events.announce("HubEpochRaised", "x" * 5000, warning=True)
    by_reason = {event["reason"]: event for event in await client.list(f"/api/v1/namespaces/{NAMESPACE}/events")}
    assert by_reason["HubFailedOver"]["message"] == "from a to b"
    assert by_reason["HubFailedOver"]["involvedObject"]["name"] == "hub-kubeconfig-secret"
    assert (by_reason["HubEpochRaised"]["type"], len(by_reason["HubEpochRaised"]["message"])) == ("Warning", 1024)
