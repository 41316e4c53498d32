"""The audit of a real hub: what was answered is remembered once, through a stop and around a kill, and tampering shows."""

import asyncio
import io
import json
import signal
import sqlite3
import sys
from collections import Counter
from contextlib import closing, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from hub.audit.trail import WINDOW
from hub.auditing import run
from machinery.errors import MusterError
from machinery.kube.client import KubeClient
from tests.e2e.processes import CLUSTERS, Bench, until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]


async def verify(bench: Bench, *noted: str, file: Path | None = None) -> tuple[int, str]:
    """What `hub audit verify` finds and says, without a process of its own."""
    said = io.StringIO()
    with redirect_stdout(said):
        code = await asyncio.to_thread(run, None, bench.data, file, noted)
    return code, said.getvalue()


async def program(*arguments: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "hub", "audit", "verify", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await asyncio.wait_for(process.communicate(), 30)
    return process.returncode or 0, out.decode()


def remembered(database: Path) -> Counter[str]:
    """How often each cluster's creation stands in the database."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        rows = connection.execute("SELECT name FROM audit WHERE verb = 'create' AND resource = 'managedclusters'").fetchall()
    return Counter(name for (name,) in rows)


def new(name: str) -> dict[str, Any]:
    return {"apiVersion": "cluster.open-cluster-management.io/v1", "kind": "ManagedCluster", "metadata": {"name": name}}


async def create(bench: Bench, answered: dict[str, float], worker: int) -> None:
    """Creates clusters until the hub is gone; notes when each was answered."""
    loop = asyncio.get_running_loop()
    try:
        async with await KubeClient.from_file(bench.admin) as client:
            for number in range(10_000):
                name = f"c-{worker}-{number}"
                await client.create(CLUSTERS, new(name))
                answered[name] = loop.time()
    except (MusterError, OSError):
        return


async def workload(bench: Bench, count: int) -> tuple[dict[str, float], "list[asyncio.Task[None]]"]:
    """Four clients that create clusters, once `count` were answered."""
    answered: dict[str, float] = {}
    tasks = [asyncio.create_task(create(bench, answered, worker)) for worker in range(4)]

    async def enough() -> bool:
        return len(answered) >= count

    await until(enough, what=f"{count} clusters are created")
    return answered, tasks


async def test_what_is_answered_until_the_stop_is_remembered_once_in_both_places(bench: Bench) -> None:
    lines = bench.folder / "audit.log"
    hub = await bench.hub(f"--audit-log-path={lines}")
    answered, tasks = await workload(bench, 100)
    assert await hub.stop() == 0
    await asyncio.gather(*tasks)
    found = remembered(bench.data / "hub.db")
    assert set(answered) <= set(found)
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


async def test_a_kill_loses_no_more_than_the_window_and_the_chain_goes_on(bench: Bench) -> None:
    hub = await bench.hub()
    answered, tasks = await workload(bench, 20)
    await asyncio.sleep(8 * WINDOW.total_seconds())  # answers of the first windows must be there, whatever becomes of the last
    killed = asyncio.get_running_loop().time()
    await hub.kill()
    await asyncio.gather(*tasks)
    old = {name for name, at in answered.items() if at < killed - 6 * WINDOW.total_seconds()}
    found = remembered(bench.data / "hub.db")
    assert old
    assert old <= set(found)
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


async def test_tampering_shows_and_so_does_a_tail_that_was_noted(bench: Bench) -> None:
    hub = await bench.hub()
    _, tasks = await workload(bench, 20)
    assert await hub.stop(signal.SIGINT) == 0
    await asyncio.gather(*tasks)
    database = bench.data / "hub.db"
    code, out = await verify(bench)
    noted = out.rpartition("head ")[2].strip()
    assert code == 0

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


async def test_what_cannot_be_verified_is_told_apart_from_what_is_broken(bench: Bench) -> None:
    lines = bench.folder / "audit.log"
    lines.write_text("{}")
    missing, broken = await asyncio.gather(
        program("--data-dir", str(bench.folder / "nowhere")),
        program("--file", str(lines)),
    )
    assert (missing[0], "there is no hub's database" in missing[1]) == (2, True)
    assert (broken[0], "line 1 of the file is no record" in broken[1]) == (1, True)
    assert (await verify(bench, "x"))[0] == 2


async def test_a_bad_policy_keeps_the_hub_from_starting(bench: Bench) -> None:
    policy = bench.folder / "policy.yaml"
    policy.write_text("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- level: All\n- level: Metadata\n  color: red\n")
    hub = await bench.hub_program(f"--audit-policy-file={policy}").start()
    assert await hub.ended() == 1
    assert "has 2 problems" in hub.output
    assert "rules[0].level: must be one of None, Metadata, Request, RequestResponse" in hub.output
