"""A hub is lost and restored from a backup while its agents and watchers live on."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest

from machinery.client.kubeconfig import read_kubeconfig
from machinery.client.reflector import ObjectKey, Reflector
from machinery.client.rest import KubeClient
from spoke.options import Pause, Pauses
from tests.e2e.crowd import Crowd, crowd_of
from tests.e2e.processes import CLUSTERS, Bench, until
from tests.programs import STDOUT, run
from tests.trials import soaked, trials

AGENTS, LATE = trials(test=8, soak=200), trials(test=3, soak=50)
WATCHERS = 5
PATIENCE = 30 + AGENTS
FAST = ("--beat-interval=1s", "--flush-window=200ms", "--default-lease-duration=60s")
SOON = Pause(timedelta(milliseconds=200), timedelta(seconds=2))
REVOKED = "edge-0"
ROTATION = {"apiVersion": "hub.open-cluster-management.io/v1alpha1", "kind": "ClusterRotation"}


async def hub_program(*words: str | Path) -> str:
    """What `hub` said; it has succeeded."""
    ended = await run("hub", *map(str, words), stderr=STDOUT)
    assert ended.returncode == 0, ended.stdout
    return ended.stdout


async def crowd(bench: Bench, count: int, prefix: str) -> Crowd:
    """With a bootstrap kubeconfig of its own."""
    made = await crowd_of(bench.admin, count)
    file = bench.folder / f"{prefix}.bootstrap"
    shutil.copy(made.bootstraps[0], file)
    return Crowd([file], count, prefix, pauses=Pauses(SOON, SOON, SOON, SOON))


@asynccontextmanager
async def watched(bench: Bench) -> AsyncIterator[Sequence[Mapping[ObjectKey, Any]]]:
    """What watchers hold of the clusters (name to revision) who never look but through their watch, until the block ends."""
    admin = bench.folder / "watchers.kubeconfig"
    shutil.copy(bench.admin, admin)
    client = await KubeClient.from_file(admin)
    async with client, asyncio.TaskGroup() as tasks:
        watchers = [
            Reflector(client, CLUSTERS, lambda one: one["metadata"]["resourceVersion"], backoff=SOON.backoff(Random(1)))
            for _ in range(WATCHERS)
        ]
        running = [tasks.create_task(watcher.run()) for watcher in watchers]
        yield [watcher.items for watcher in watchers]
        for task in running:
            task.cancel()


def serials(bench: Bench) -> set[str]:
    """Of agents' certificates that stand."""
    return {
        serial for (serial,) in bench.stored("SELECT serial FROM certificates WHERE purpose='agent' AND revoked_at IS NULL")
    }


async def renew_some(bench: Bench, edge: Crowd) -> set[str]:
    """Every other agent gets a new certificate; who they are."""
    before, chosen = serials(bench), [f"edge-{number}" for number in range(1, edge.count, 2)]
    async with await KubeClient.from_file(bench.admin) as client:
        for name in chosen:
            await client.create(f"{CLUSTERS}/{name}/rotate", {**ROTATION, "spec": {"withinSeconds": 1}})
    await until(lambda: len(serials(bench) - before) == len(chosen), what="every other agent has renewed")
    return set(chosen)


async def lists(bench: Bench) -> list[Path]:
    """The revocation lists as anybody fetches them."""
    found = []
    async with await KubeClient.from_file(bench.admin) as client:
        for one in (await client.get("/crl"))["lists"]:
            file = bench.folder / Path(one["der"]).name
            file.write_bytes((await client.raw("GET", one["der"])).body)
            found.append(file)
    return found


@soaked(AGENTS + LATE)
@pytest.mark.timeout(240 + 4 * AGENTS)
async def test_a_restored_hub_orphans_no_agent_misleads_no_watcher_and_trusts_nothing_revoked(bench: Bench) -> None:
    hub = await bench.hub(*FAST, "--auto-approve=*")
    edge = await crowd(bench, AGENTS, "edge")
    (bench.folder / "passphrase").write_text("correct horse battery staple\n")
    backup, sealed = bench.folder / "hub.zip", f"--passphrase-file={bench.folder / 'passphrase'}"
    async with edge.running(), watched(bench) as held:
        await edge.all_heard()
        told = await hub_program("backup", backup, f"--data-dir={bench.data}", sealed)
        hub_id = read_kubeconfig(bench.admin).require_endpoint().hub_id
        assert hub_id in told
        renewed = await renew_some(bench, edge)
        late = await crowd(bench, LATE, "late")
        async with late.running():
            await late.all_heard()
            await bench.hubctl("revoke", "cluster", REVOKED)
            newest = await lists(bench)
            served = int((await bench.get(CLUSTERS))["metadata"]["resourceVersion"])
            await hub.kill()
            told = await hub_program(
                *("restore", backup, f"--data-dir={bench.data}", sealed, "--replace"), *(f"--crl={file}" for file in newest)
            )
            assert REVOKED in told
            before = asyncio.get_running_loop().time()
            await bench.hub(*FAST, name="restored")
            assert read_kubeconfig(bench.admin).require_endpoint().hub_id == hub_id
            standing = [number for number in range(AGENTS) if f"edge-{number}" != REVOKED]
            await edge.all_heard_of(standing)
            await wait_for_acceptance(bench)
            await bench.hubctl("accept", *(f"late-{number}" for number in range(LATE)))
            await late.all_heard(before)
            await everybody_sees_the_same(bench, held, served)
    issued = bench.stored("SELECT cluster, credential FROM certificates WHERE purpose = 'agent' AND signed_by IS NOT NULL")
    again = {cluster for cluster, credential in issued if credential is None}
    assert again >= renewed | set(late.use_counts), "they came back by themselves"
    assert edge.use_counts[REVOKED].heard < before, "what was revoked stays revoked"
    assert bench.stored("SELECT cluster FROM transitions WHERE status = 'Unknown'") == []


async def wait_for_acceptance(bench: Bench) -> None:
    """The clusters that joined after the backup are there again, and nobody has accepted them for the operator."""

    async def entered() -> bool:
        found = {one["metadata"]["name"]: one["spec"]["hubAcceptsClient"] for one in (await bench.get(CLUSTERS))["items"]}
        return [found.get(f"late-{number}") for number in range(LATE)] == [False] * LATE

    await until(entered, what="late clusters are entered, and wait")


async def everybody_sees_the_same(bench: Bench, held: Sequence[Mapping[ObjectKey, Any]], served: int) -> None:
    """Watchers hold what a list shows, and that is of a revision that was never served before."""

    async def same() -> bool:
        listed = await bench.get(CLUSTERS)
        now = {ObjectKey("", one["metadata"]["name"]): one["metadata"]["resourceVersion"] for one in listed["items"]}
        assert int(listed["metadata"]["resourceVersion"]) > served + 1_000_000
        return len(now) == AGENTS + LATE and all(dict(each) == now for each in held)

    await until(same, what="every watcher has relisted")
