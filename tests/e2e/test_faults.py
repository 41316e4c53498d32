"""What goes wrong around a hub: it is killed, its disk fills, its database is locked. Nothing acknowledged is ever lost."""

import asyncio
import sqlite3
from collections import Counter
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

from machinery.errors import MusterError
from machinery.identity import ClusterName
from machinery.kube.client import KubeClient
from tests.e2e.crowd import Joiner, entrance
from tests.e2e.processes import CLUSTERS, REQUESTS, SHORT_LEASE, Bench, Program, recorded, status_of, until
from tests.fakes.mortal_hub import BEFORE, COMMITTED, SIGNED
from tests.trials import repeated, soaked, trials

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

MANY, KILLS = trials(20, 200), trials(1, 3)


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
                            await client.update(f"{REQUESTS}/{request['metadata']['name']}/approval", approved(request))
            await asyncio.sleep(0.05)


def approved(request: dict[str, Any]) -> dict[str, Any]:
    entry = {"type": "Approved", "status": "True", "reason": "Tested", "message": "approved in a test"}
    return {**request, "status": {**request["status"], "conditions": [entry]}}


async def crash(bench: Bench, hub: Program, joiners: list[Joiner], share: float) -> None:
    await until(
        lambda: sum(joiner.issued is not None for joiner in joiners) >= share * len(joiners),
        what=f"{share:.0%} have their certificate",
    )
    await hub.kill()
    await hub.start()
    await bench.ready(hub)


@repeated(1, 10)
async def test_a_hub_that_is_killed_while_clusters_register_loses_nothing_and_signs_nothing_twice(
    bench: Bench, trial: int
) -> None:
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
    requests = (await bench.get(REQUESTS))["items"]
    assert len(requests) == MANY
    assert all(joiner.issued and joiner.issued.certificate for joiner in joiners)
    assert await hub.stop() == 0
    for purpose in ("agent", "recovery"):
        assert recorded(bench.data / "hub.db", purpose) == Counter(joiner.name for joiner in joiners)
    assert "Traceback" not in hub.output


async def test_a_locked_database_delays_a_join_fails_none_and_makes_nobody_unknown(bench: Bench) -> None:
    hub = await bench.hub("--auto-approve=*", *SHORT_LEASE)
    bootstrap = await bench.bootstrap("c1")
    with closing(sqlite3.connect(bench.data / "hub.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        spoke = await bench.spoke("c1", bootstrap)
        locked = "the database is locked by another process"
        await until(lambda: locked in hub.output + spoke.output, what="somebody says that the database is locked")
        other.execute("ROLLBACK")
        before = (await bench.available("c1"))["status"]["conditions"]
        other.execute("BEGIN IMMEDIATE")
        await asyncio.sleep(6)  # longer than the grace of five seconds: this is the fault itself
        other.execute("ROLLBACK")

    async def beating() -> bool:
        return "(no session)" not in await bench.hubctl("get", "clusters")

    await until(beating, what="the session is open")
    await asyncio.sleep(1)
    cluster = await bench.cluster("c1")
    assert status_of(cluster, "ManagedClusterConditionAvailable") == "True"
    moments = [each["lastTransitionTime"] for each in cluster["status"]["conditions"]]
    assert moments == [each["lastTransitionTime"] for each in before]
    assert hub.running
    assert "Traceback" not in bench.logs


async def refusal(bench: Bench) -> MusterError:
    """What the hub answers when it can store no more."""
    for _ in range(500):
        try:
            await entrance(bench.admin, uses=1)
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
        await full.stop()
    assert [line for line in (await said).splitlines() if "Traceback" in line] == []
    again = bench.hub_program("--auto-approve=*", name="again")
    await again.start()
    await bench.ready(again)
    await entrance(bench.admin, uses=1)
    await bench.available("c1")


@repeated(1, 5)
async def test_a_first_start_that_is_killed_at_any_moment_is_made_good_by_the_next(bench: Bench, trial: int) -> None:
    for made in ("hub.db-wal", "ca.key", "ca.crt", "admin.kubeconfig"):
        bench.data_name = f"hub-{made}"
        hub = await bench.hub_program("--auto-approve=*", name=bench.data_name).start()
        while not (bench.data / made).exists() and hub.running:  # noqa: ASYNC110 - a file tells nobody that it has come
            await asyncio.sleep(0.001)
        await asyncio.sleep(Random(trial).uniform(0, 0.05) if trial else 0)
        await hub.kill()
        await hub.start()
        await bench.ready(hub)
        assert await hub.stop() == 0
        assert "Traceback" not in hub.output


@soaked(1)
@pytest.mark.parametrize("moment", (SIGNED, BEFORE, COMMITTED)[: trials(1, 3)])
async def test_a_hub_killed_around_the_signature_has_one_certificate_for_its_agent(bench: Bench, moment: str) -> None:
    doors = (f"--grpc-listen=127.0.0.1:{bench.grpc_port}", f"--https-listen=127.0.0.1:{bench.https_port}")
    serve = ("serve", f"--data-dir={bench.data}", *doors, "--auto-approve=c1", "--default-lease-duration=2s")
    mortal = await bench.program("mortal-hub", "tests.fakes.mortal_hub", moment, *serve).start()
    await bench.ready(mortal)
    agent = await bench.spoke("c1")
    assert await mortal.ended() == -9
    survived = recorded(bench.data / "hub.db", "agent")["c1"]
    assert survived == (1 if moment == COMMITTED else 0), "record and signature come together"

    await bench.hub("--auto-approve=c1", "--default-lease-duration=2s")
    await bench.available("c1")
    assert agent.running
    assert recorded(bench.data / "hub.db", "agent")["c1"] == recorded(bench.data / "hub.db", "recovery")["c1"] == 1
    held = bench.certificate("c1")
    assert held.serial in {int(serial, 16) for (serial,) in bench.stored("SELECT serial FROM certificates")}
    assert len(await bench.requests()) == 1, "a request that is handed in again is the same one"
