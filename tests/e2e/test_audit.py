"""The audit of a real hub: what was answered is remembered once, through a stop and around a kill, and tampering shows."""

import asyncio
import io
import json
import sqlite3
from collections import Counter
from contextlib import closing, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from hub.auditing import run
from machinery.errors import MusterError
from machinery.kube.client import KubeClient
from tests import programs
from tests.e2e.processes import CLUSTERS, Bench, stored, until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]


async def verify(bench: Bench, *noted: str, file: Path | None = None) -> tuple[int, str]:
    """What `hub audit verify` finds and says, without a process of its own."""
    said = io.StringIO()
    with redirect_stdout(said):
        code = await asyncio.to_thread(run, None, bench.data, file, noted)
    return code, said.getvalue()


async def program(*arguments: str) -> tuple[int, str]:
    ended = await programs.run("hub", "audit", "verify", *arguments, stderr=programs.STDOUT)
    return ended.returncode, ended.stdout


def remembered(database: Path) -> Counter[str]:
    """How often each cluster's creation stands in the database."""
    query = "SELECT name FROM audit WHERE verb = 'create' AND resource = 'managedclusters'"
    return Counter(name for (name,) in stored(database, query))


def new(name: str) -> dict[str, Any]:
    return {"apiVersion": "cluster.open-cluster-management.io/v1", "kind": "ManagedCluster", "metadata": {"name": name}}


async def create(bench: Bench, answered: set[str], worker: int) -> None:
    """Creates clusters until the hub is gone; notes which were answered."""
    try:
        async with await KubeClient.from_file(bench.admin) as client:
            for number in range(10_000):
                name = f"c-{worker}-{number}"
                await client.create(CLUSTERS, new(name))
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
    assert (await verify(bench))[0] == 0
    assert (await verify(bench, file=lines))[0] == 0
    assert "audit records flushed" in hub.output


async def test_a_kill_loses_nothing_that_was_flushed_and_the_chain_goes_on(bench: Bench) -> None:
    hub = await bench.hub()
    answered, tasks = await workload(bench, 20)
    first = set(answered)

    async def flushed() -> bool:
        return first <= set(remembered(bench.data / "hub.db"))

    await until(flushed, what="the records of the first windows are stored")
    await hub.kill()
    await asyncio.gather(*tasks)
    found = remembered(bench.data / "hub.db")
    assert first <= set(found)
    assert set(found.values()) == {1}
    await hub.start()
    await bench.ready(hub)
    async with await KubeClient.from_file(bench.admin) as client:
        await client.create(CLUSTERS, new("after"))
    assert (await verify(bench))[0] == 0  # while it runs
    assert await hub.stop() == 0
    assert remembered(bench.data / "hub.db")["after"] == 1
    code, out = await verify(bench)
    assert (code, len(out.splitlines())) == (0, 1), "one chain, before and after the kill"
    await tampering_shows(bench, out)


async def tampering_shows(bench: Bench, out: str) -> None:
    """`out` is what was said of the database before."""
    database = bench.data / "hub.db"
    noted = out.rpartition("head ")[2].strip()

    def tampered(statement: str) -> None:
        with closing(sqlite3.connect(database)) as connection, connection:
            connection.execute(statement)

    tampered("DELETE FROM audit WHERE sequence = (SELECT max(sequence) FROM audit)")
    assert (await verify(bench))[0] == 0  # this is what a chain cannot show
    code, out = await verify(bench, noted)
    assert (code, "cut short" in out) == (1, True)
    tampered("""UPDATE audit SET document = CAST(replace(document, '"admin"', '"nobody"') AS BLOB) WHERE sequence = 7""")
    code, out = await verify(bench)
    assert (code, "link 7: was changed" in out) == (1, True)
    tampered("DELETE FROM audit WHERE sequence = 4")
    code, out = await verify(bench)
    assert (code, "link 5: links 4 to 4 before it are missing" in out) == (1, True)

    lines = bench.folder / "audit.log"
    lines.write_text("{}")
    missing, broken = await asyncio.gather(
        program("--data-dir", str(bench.folder / "nowhere")),
        program("--file", str(lines)),
    )
    assert (missing[0], "there is no hub's database" in missing[1]) == (2, True)
    assert (broken[0], "line 1 of the file is no record" in broken[1]) == (1, True)
    assert (await verify(bench, "x"))[0] == 2
