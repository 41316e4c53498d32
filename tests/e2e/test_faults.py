"""A hub that is killed or stopped under load, or has no room: what was answered is there, once, with its audit record."""

import asyncio
import json
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

from machinery.client.rest import KubeClient
from machinery.errors import MusterError
from machinery.identity import ClusterName
from tests.e2e.crowd import Joiner, entrance
from tests.e2e.processes import CLUSTERS, REQUESTS, Bench, Program, new_cluster, recorded, stored, until
from tests.trials import SOAKING, repeated, trials

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
    said = asyncio.create_task(full.piped())
    try:
        await bench.ready(full)
        error = await refusal(bench)
        assert error.reason == "ServiceUnavailable"
        assert any(words in error.message for words in ("disk", "full"))
        assert (await bench.cluster("c1"))["spec"]["hubAcceptsClient"] is True
    finally:
        await (full.stop() if SOAKING else full.kill())  # a stop waits until its audit records have found room, or for 15 s
    assert [line for line in (await said).splitlines() if "Traceback" in line] == []
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
        while not (own.data / made).exists() and hub.running:  # noqa: ASYNC110 - a file tells nobody that it has come
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
    assert await hub.stop() == 0
    assert remembered(bench.data / "hub.db") == {**found, "after": 1}
