"""A CA whose key somebody else may have: who is connected moves, and nothing of the old one is accepted after it."""

import sqlite3
from contextlib import closing

import pytest

from tests.e2e.processes import Bench, is_available, recorded, until

pytestmark = pytest.mark.timeout(180)

SETTINGS = ("--auto-approve=*", "--default-lease-duration=2s", "--beat-interval=1s")


async def test_connected_agents_move_and_all_else_of_a_compromised_ca_is_worth_nothing(bench: Bench) -> None:
    await bench.hub(*SETTINGS)
    here, off = await bench.spoke("here"), await bench.spoke("off")
    for name in ("here", "off"):
        await bench.available(name)
    await off.kill()
    (bench.folder / "off.bootstrap").unlink()
    copied = bench.folder / "copied.kubeconfig"
    copied.write_bytes(bench.admin.read_bytes())

    async def alone() -> bool:
        told = await bench.hubctl("ca", "rotate", "--compromised", code=130)  # nobody says yes
        return "1 agents are connected" in told and "1 agents will need a new bootstrap credential:\n  off" in told

    await until(alone, what="the command says whom it strands", within=40)
    await bench.hubctl("ca", "rotate", "--compromised", "--yes")

    async def retired() -> bool:
        with closing(sqlite3.connect(f"file:{bench.data / 'hub.db'}?mode=ro", uri=True)) as connection:
            phases = connection.execute("SELECT phase FROM authorities ORDER BY phase").fetchall()
        return phases == [("Issuing",), ("Retired",)]

    await until(retired, what="the old CA is retired", within=100)
    await bench.available("here")
    assert here.running
    assert recorded(bench.data / "hub.db", "agent")["here"] == 2, "it has renewed, and did not register anew"
    refused = await run_hubctl(bench, str(copied))
    assert refused != 0, "a copy of an operator's kubeconfig is of the old CA"
    await off.start()

    async def is_left_out() -> bool:
        return "agent.trouble" in off.output and not is_available(await bench.cluster("off"))

    await until(is_left_out, what="the agent that was off does not come in", within=40)
    assert recorded(bench.data / "hub.db", "agent")["off"] == 1


async def run_hubctl(bench: Bench, kubeconfig: str) -> int:
    one = bench.program(f"copied-{len(bench.programs)}", "hub.cli", "--kubeconfig", kubeconfig, "get", "clusters")
    await one.start()
    return await one.ended(60)
