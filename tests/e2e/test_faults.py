"""A hub that is killed, stopped, without room or restored from a backup: what was answered is there, once."""

import asyncio
import json
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest

from machinery.client.kubeconfig import read_kubeconfig
from machinery.client.reflector import ObjectKey, Reflector
from machinery.client.rest import KubeClient
from machinery.errors import MusterError
from machinery.identity import ClusterName
from spoke.options import Pause, Pauses
from tests.e2e.crowd import Crowd, Joiner, crowd_of, entrance
from tests.e2e.processes import CLUSTERS, REQUESTS, Bench, Program, new_cluster, recorded, stored, until
from tests.fakes.stage import OWNER
from tests.programs import STDOUT, run
from tests.trials import SOAKING, repeated, soaked, trials

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

MANY, KILLS = trials(20, 200), trials(1, 3)
APPROVED = {"type": "Approved", "status": "True", "reason": "Tested", "message": "approved in a test"}


@dataclass
class Operator:
    """Accepts every cluster and approves every request that appears, and remembers which acceptances the hub confirmed."""

    admin: Path
    confirmed: set[str] = field(default_factory=set)

    async def work(self) -> None:
        """Until cancelled, whatever happens to the hub."""
        while True:
            with suppress(MusterError):
                async with await KubeClient.from_file(self.admin) as client:
                    for cluster in (await client.get(CLUSTERS))["items"]:
                        if (name := cluster["metadata"]["name"]) not in self.confirmed:
                            await client.patch(f"{CLUSTERS}/{name}", {"spec": {"hubAcceptsClient": True}})
                            self.confirmed.add(name)
                    for request in (await client.get(REQUESTS))["items"]:
                        if not request["status"].get("conditions"):
                            request["status"]["conditions"] = [APPROVED]
                            await client.update(f"{REQUESTS}/{request['metadata']['name']}/approval", request)
            await asyncio.sleep(0.05)


async def crash(bench: Bench, hub: Program, joiners: list[Joiner], share: float) -> None:
    await until(
        lambda: sum(joiner.issued is not None for joiner in joiners) >= share * len(joiners),
        what=f"{share:.0%} have their certificate",
    )
    await hub.kill()
    await hub.start()
    await bench.ready(hub)


@repeated(1, 10)
async def test_hub_killed_while_clusters_register_loses_nothing_and_signs_nothing_twice(bench: Bench, trial: int) -> None:
    random = Random(trial)  # of the share of certificates that have been handed out when the hub is killed
    hub = await bench.hub("--auto-approve=none-*")
    way_in = await entrance(bench.admin, uses=MANY)
    joiners = [Joiner(ClusterName(f"c{number:03}"), way_in) for number in range(MANY)]
    operator = Operator(bench.admin)
    deciding = asyncio.create_task(operator.work())
    joining = asyncio.gather(*(joiner.join() for joiner in joiners))
    try:
        for share in sorted(random.uniform(0.05, 0.9) for _ in range(KILLS)):
            await crash(bench, hub, joiners, share)
        await joining
        await until(lambda: len(operator.confirmed) == MANY, what="every acceptance is confirmed")
    finally:
        joining.cancel()
        deciding.cancel()
    clusters = {each["metadata"]["name"]: each for each in (await bench.get(CLUSTERS))["items"]}
    assert {name for name, each in clusters.items() if each["spec"]["hubAcceptsClient"]} == {joiner.name for joiner in joiners}
    assert len((await bench.get(REQUESTS))["items"]) == MANY
    assert all(joiner.issued and joiner.issued.certificate for joiner in joiners)
    assert await hub.stop() == 0
    for purpose in ("agent", "recovery"):
        assert recorded(bench.data / "hub.db", purpose) == Counter(joiner.name for joiner in joiners)
    assert "Traceback" not in hub.output


async def refusal(bench: Bench) -> MusterError:
    """What the hub answers when it can store no more."""
    async with await KubeClient.from_file(bench.admin) as client:
        for number in range(500):
            document = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"filler-{number}"}}
            try:
                await client.create("/api/v1/namespaces/default/configmaps", {**document, "data": {"filler": "x" * 100_000}})
            except MusterError as error:
                return error
    pytest.fail("the disk never filled")


async def test_a_full_disk_refuses_what_is_new_keeps_what_is_there_and_ends_with_room(bench: Bench) -> None:
    hub = await bench.hub("--auto-approve=*")
    await bench.spoke("c1")
    await bench.available("c1")
    await hub.stop()
    size = max((bench.data / name).stat().st_size for name in ("hub.db",))
    full = bench.hub_program("--auto-approve=*", name="full", file_limit=size + 4096)
    await full.start()
    answer = asyncio.create_task(full.piped())
    try:
        await bench.ready(full)
        error = await refusal(bench)
        assert error.reason == "ServiceUnavailable"
        assert any(words in error.message for words in ("disk", "full"))
        assert (await bench.cluster("c1"))["spec"]["hubAcceptsClient"] is True
    finally:
        await (full.stop() if SOAKING else full.kill())  # a stop waits until its audit records have found room, or for 15 s
    assert [line for line in (await answer).splitlines() if "Traceback" in line] == []
    again = bench.hub_program("--auto-approve=*", name="again")
    await again.start()
    await bench.ready(again)
    await entrance(bench.admin, uses=1)
    await bench.available("c1")


@repeated(1, 5)
async def test_a_first_start_that_is_killed_at_any_moment_is_made_good_by_the_next(bench: Bench, trial: int) -> None:
    async def killed_once_it_has(made: str) -> None:
        own = Bench(bench.folder, bench.programs, data_name=f"hub-{made}")
        hub = await own.hub_program("--auto-approve=*", name=own.data_name).start()
        while not (own.data / made).exists() and hub.running:  # noqa: ASYNC110 - a new file sets no Event
            await asyncio.sleep(0.001)
        await asyncio.sleep(Random(trial).uniform(0, 0.05) if trial else 0)
        await hub.kill()
        await hub.start()
        await own.ready(hub)
        assert await hub.stop() == 0
        assert "Traceback" not in hub.output

    await asyncio.gather(*map(killed_once_it_has, ("hub.db-wal", "ca.key", "ca.crt", "admin.kubeconfig")))


def remembered(database: Path) -> Counter[str]:
    """How often each cluster's creation stands in the database."""
    query = "SELECT name FROM audit WHERE verb = 'create' AND resource = 'managedclusters'"
    return Counter(name for (name,) in stored(database, query))


async def create(bench: Bench, answered: set[str], worker: int) -> None:
    """Creates clusters until the hub is gone; notes which were answered."""
    try:
        async with await KubeClient.from_file(bench.admin) as client:
            for number in range(10_000):
                name = f"c-{worker}-{number}"
                await client.create(CLUSTERS, new_cluster(name))
                answered.add(name)
    except (MusterError, OSError):
        return


async def workload(bench: Bench, count: int) -> tuple[set[str], "list[asyncio.Task[None]]"]:
    """Four clients that create clusters, once `count` were answered."""
    answered: set[str] = set()
    tasks = [asyncio.create_task(create(bench, answered, worker)) for worker in range(4)]
    await until(lambda: len(answered) >= count, what=f"{count} clusters are created")
    return answered, tasks


async def test_what_is_answered_until_the_stop_is_remembered_once_in_both_places(bench: Bench) -> None:
    lines = bench.folder / "audit.log"
    hub = await bench.hub(f"--audit-log-path={lines}")
    answered, tasks = await workload(bench, 100)
    assert await hub.stop() == 0
    await asyncio.gather(*tasks)
    found = remembered(bench.data / "hub.db")
    assert answered <= set(found)
    assert set(found.values()) == {1}
    in_file = Counter(
        event["objectRef"]["name"]
        for event in map(json.loads, lines.read_text().splitlines())
        if event["objectRef"]["resource"] == "managedclusters"
    )
    assert in_file == found
    assert "audit records flushed" in hub.output


async def test_a_kill_loses_no_record_of_a_write_that_was_answered(bench: Bench) -> None:
    hub = await bench.hub()
    answered, tasks = await workload(bench, 20)
    await hub.kill()
    await asyncio.gather(*tasks)
    found = remembered(bench.data / "hub.db")
    assert answered <= set(found)
    assert set(found.values()) == {1}
    await hub.start()
    await bench.ready(hub)
    async with await KubeClient.from_file(bench.admin) as client:
        await client.create(CLUSTERS, new_cluster("after"))
    assert (await hub.stop(), remembered(bench.data / "hub.db")) == (0, {**found, "after": 1})


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


async def renew_some(bench: Bench, edge: Crowd) -> set[str]:
    """Every other agent stores a new certificate; who they are."""
    chosen = [f"edge-{number}" for number in range(1, edge.count, 2)]
    before = {name: edge.secrets[name].contents(OWNER)["tls.crt"] for name in chosen}
    async with await KubeClient.from_file(bench.admin) as client:
        for name in chosen:
            await client.create(f"{CLUSTERS}/{name}/rotate", {**ROTATION, "spec": {"withinSeconds": 1}})
    await until(
        lambda: all(edge.secrets[name].contents(OWNER)["tls.crt"] != old for name, old in before.items()),
        what="every other agent has renewed",
    )
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
        output = await hub_program("backup", backup, f"--data-dir={bench.data}", sealed)
        hub_id = read_kubeconfig(bench.admin).require_endpoint().hub_id
        assert hub_id in output
        renewed, late = await renew_some(bench, edge), await crowd(bench, LATE, "late")
        async with late.running():
            await late.all_heard()
            await bench.hubctl("revoke", "cluster", REVOKED)
            newest = await lists(bench)
            served = int((await bench.get(CLUSTERS))["metadata"]["resourceVersion"])
            await hub.kill()
            output = await hub_program(
                *("restore", backup, f"--data-dir={bench.data}", sealed, "--replace"), *(f"--crl={file}" for file in newest)
            )
            assert REVOKED in output
            before = asyncio.get_running_loop().time()
            await bench.hub(*FAST, name="restored")
            assert read_kubeconfig(bench.admin).require_endpoint().hub_id == hub_id
            await edge.all_heard_of([number for number in range(AGENTS) if f"edge-{number}" != REVOKED])
            await wait_for_acceptance(bench)
            await bench.hubctl("accept", *(f"late-{number}" for number in range(LATE)))
            await late.all_heard(before)
            await everybody_sees_the_same(bench, held, served)
    issued = bench.stored("SELECT cluster, credential FROM certificates WHERE purpose = 'agent'")
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
