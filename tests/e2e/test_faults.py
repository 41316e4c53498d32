"""What goes wrong around a hub: it is killed, its disk fills, its database is locked. Nothing acknowledged is ever lost."""

import asyncio
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from machinery.errors import MusterError
from machinery.identity import ClusterName
from machinery.kube.client import KubeClient
from tests.e2e.joining import Joiner, entrance
from tests.e2e.processes import CLUSTERS, REQUESTS, Bench, Program, free_port, recorded, status_of, until
from tests.trials import repeated

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

MANY = 200
KILLS = 3


class Operator:
    """Accepts every cluster that appears, and remembers what the hub confirmed."""

    def __init__(self, admin: Path) -> None:
        self._admin = admin
        self.confirmed: set[str] = set()

    async def work(self) -> None:
        """Until cancelled, whatever happens to the hub."""
        while True:
            try:
                async with await KubeClient.from_file(self._admin) as client:
                    for cluster in (await client.get(CLUSTERS))["items"]:
                        await self._accept(client, cluster["metadata"]["name"])
            except MusterError:
                pass
            await asyncio.sleep(0.05)

    async def _accept(self, client: KubeClient, name: str) -> None:
        if name not in self.confirmed:
            await client.patch(f"{CLUSTERS}/{name}", {"spec": {"hubAcceptsClient": True}})
            self.confirmed.add(name)


async def crash(bench: Bench, hub: Program, joiners: list[Joiner], share: float) -> None:
    async def far_enough() -> bool:
        return sum(joiner.issued is not None for joiner in joiners) >= share * len(joiners)

    await until(far_enough, what=f"{share:.0%} have their certificate", within=60)
    await hub.kill()
    await hub.start()
    await bench.ready(hub)


@repeated(1, 10)
async def test_a_hub_that_is_killed_while_200_clusters_register_loses_nothing_and_signs_nothing_twice(
    bench: Bench, trial: int
) -> None:
    random = Random(trial)  # of the share of certificates that have been handed out when the hub is killed
    hub = await bench.hub("--auto-approve=none-*")
    way_in = await entrance(bench.admin, uses=MANY)
    joiners = [Joiner(ClusterName(f"c{number:03}"), way_in) for number in range(MANY)]
    operator, approver = Operator(bench.admin), Approver(bench.admin)
    helping = [asyncio.create_task(operator.work()), asyncio.create_task(approver.work())]
    joining = asyncio.gather(*(joiner.join() for joiner in joiners))
    try:
        for share in sorted(random.uniform(0.05, 0.9) for _ in range(KILLS)):
            await crash(bench, hub, joiners, share)
        await asyncio.wait_for(joining, 90)

        async def all_accepted() -> bool:
            return len(operator.confirmed) == MANY

        await until(all_accepted, what="every acceptance is confirmed", within=60)
    finally:
        joining.cancel()
        for task in helping:
            task.cancel()
    clusters = {each["metadata"]["name"]: each for each in (await bench.get(CLUSTERS))["items"]}
    assert {name for name, each in clusters.items() if each["spec"]["hubAcceptsClient"]} == {joiner.name for joiner in joiners}
    requests = (await bench.get(REQUESTS))["items"]
    assert len(requests) == MANY
    assert all(joiner.issued and joiner.issued.certificate for joiner in joiners)
    assert await hub.stop() == 0
    for purpose in ("agent", "recovery"):
        assert recorded(bench.data / "hub.db", purpose) == Counter(joiner.name for joiner in joiners)
    assert "Traceback" not in hub.output


class Approver:
    """Approves every request that waits."""

    def __init__(self, admin: Path) -> None:
        self._admin = admin

    async def work(self) -> None:
        while True:
            try:
                async with await KubeClient.from_file(self._admin) as client:
                    for request in (await client.get(REQUESTS))["items"]:
                        if not request["status"].get("conditions"):
                            await self._approve(client, request)
            except MusterError:
                pass
            await asyncio.sleep(0.05)

    async def _approve(self, client: KubeClient, request: dict[str, Any]) -> None:
        entry = {"type": "Approved", "status": "True", "reason": "Tested", "message": "approved in a test"}
        document = {**request, "status": {**request["status"], "conditions": [entry]}}
        await client.update(f"{REQUESTS}/{request['metadata']['name']}/approval", document)


async def test_a_database_that_is_locked_for_a_while_delays_a_join_and_fails_none(bench: Bench) -> None:
    hub = await bench.hub("--auto-approve=*", "--default-lease-duration=1s", "--flush-window=100ms")
    bootstrap = await bench.bootstrap("c1")
    with closing(sqlite3.connect(bench.data / "hub.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        spoke = await bench.spoke("c1", bootstrap)

        async def noticed() -> bool:
            return "the database is locked by another process" in hub.output + spoke.output

        await until(noticed, what="somebody says that the database is locked", within=30)
        other.execute("ROLLBACK")
    await bench.available("c1", within=40)
    assert hub.running
    assert "Traceback" not in bench.logs


async def test_nobody_reads_unknown_because_the_database_could_not_be_written(bench: Bench) -> None:
    hub = await bench.hub("--auto-approve=*", "--default-lease-duration=1s", "--flush-window=100ms", "--beat-interval=300ms")
    await bench.spoke("c1")
    await bench.available("c1")
    before = (await bench.cluster("c1"))["status"]["conditions"]
    with closing(sqlite3.connect(bench.data / "hub.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        await asyncio.sleep(8)  # longer than the grace of five seconds: this is the fault itself
        other.execute("ROLLBACK")

    async def beating() -> bool:
        return "(no session)" not in await bench.hubctl("get", "clusters")

    await until(beating, what="the session is open", within=20)
    await asyncio.sleep(1)
    cluster = await bench.cluster("c1")
    assert status_of(cluster, "ManagedClusterConditionAvailable") == "True"
    moments = [each["lastTransitionTime"] for each in cluster["status"]["conditions"]]
    assert moments == [each["lastTransitionTime"] for each in before]
    assert hub.running


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


@pytest.mark.parametrize("made", ["hub.db-wal", "ca.key", "ca.crt", "admin.kubeconfig"])
@repeated(1, 5)
async def test_a_first_start_that_is_killed_at_any_moment_is_made_good_by_the_next(bench: Bench, made: str, trial: int) -> None:
    hub = bench.hub_program("--auto-approve=*")
    await hub.start()
    while not (bench.data / made).exists() and hub.running:  # noqa: ASYNC110 - a file tells nobody that it has come
        await asyncio.sleep(0.001)
    await asyncio.sleep(Random(trial).uniform(0, 0.05) if trial else 0)
    await hub.kill()
    await hub.start()
    await bench.ready(hub)
    assert await hub.stop() == 0
    assert "Traceback" not in hub.output


def secret_lines(*files: Path) -> set[str]:
    """What stands between the first and the last line of PEM keys."""
    return {line for file in files for line in file.read_text().splitlines()[1:-1]}


async def test_no_secret_is_in_any_log(bench: Bench) -> None:
    await bench.hub("--auto-approve=*", "--log-level=debug")
    bootstrap = await bench.bootstrap("c1")
    await bench.spoke("c1", bootstrap, "--log-level", "debug")
    await bench.available("c1")
    credentials = list((bench.folder / "c1.credentials").rglob("tls.key"))
    assert credentials
    found = secret_lines(bench.data / "ca.key", bench.data / "serving.key", *credentials)
    users = [yaml.safe_load(file.read_text())["users"][0]["user"] for file in (bench.admin, bootstrap)]
    found |= {user["client-key-data"][start : start + 40] for user in users for start in (40, 80, 120)}
    assert len(found) > 8
    assert [secret for secret in found if secret in bench.logs] == []
    assert "PRIVATE KEY" not in bench.logs


async def test_the_password_of_a_database_that_does_not_answer_is_not_told(bench: Bench) -> None:
    url = f"postgresql://muster:canary@127.0.0.1:{free_port()}/hub"
    hub = await bench.hub_program("--log-level=debug", "--start-timeout=2s", environment={"HUB_DATABASE_URL": url}).start()
    assert await hub.ended() == 1
    assert "the database does not answer" in hub.output
    assert "canary" not in hub.output
    assert "Traceback" not in hub.output
