"""Real processes: what one agent makes of being denied, revoked and deleted in turn, as `docs/how-to/revocation.md` has it."""

import json
from typing import Any

import aiohttp
import pytest

from machinery.pki import parse_certificate
from tests.e2e.processes import Bench, free_port, until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]
WITHIN = 45
QUICK = ("--default-lease-duration=4s", "--auto-approve=*")


def serial(bench: Bench) -> int:
    return parse_certificate((bench.folder / "c1.credentials" / "tls.crt").read_bytes()).serial


async def told(port: int) -> dict[str, Any]:
    """What `spoke status` asks the running agent."""
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/statusz") as answer:
        return dict(json.loads(await answer.text()))


async def in_state(port: int, state: str) -> dict[str, Any]:
    async def reached() -> dict[str, Any] | None:
        document = await told(port)
        return document if [hub["state"] for hub in document["hubs"]] == [state] else None

    found: dict[str, Any] = await until(reached, what=f"the agent says that it is {state}", within=WITHIN)
    return found


async def test_an_agent_acts_differently_on_each_and_never_restarts(bench: Bench) -> None:
    await bench.hub(*QUICK)
    port = free_port()
    spoke = await bench.spoke("c1", None, f"--health-listen=127.0.0.1:{port}")
    await bench.available("c1", within=WITHIN)
    process, first = spoke.pid, serial(bench)
    old_bootstrap = (bench.folder / "c1.bootstrap").read_bytes()

    await bench.hubctl("deny", "c1")
    document = await in_state(port, "denied")
    assert "hubctl accept c1" in json.dumps(document)
    await bench.hubctl("accept", "c1")
    await in_state(port, "ready")
    assert serial(bench) == first, "a denied agent keeps its credential, and comes back with it"

    said = await bench.hubctl("revoke", "cluster", "c1", "--reason", "KeyCompromise")
    assert "revoked: 3 certificates, 1 bootstrap credential" in said
    await in_state(port, "revoked")
    assert serial(bench) == first, "it is kept, and not shown"
    assert "the hub has revoked the stored credential" in spoke.output
    assert (bench.folder / "c1.bootstrap").read_bytes() == old_bootstrap
    fresh = await bench.bootstrap("c1")
    assert fresh.read_bytes() != old_bootstrap

    async def is_another() -> bool:
        return serial(bench) != first

    await until(is_another, what="the agent has come back with a new bootstrap kubeconfig", within=WITHIN)
    await in_state(port, "ready")
    second = serial(bench)

    await bench.hubctl("delete", "cluster", "c1")
    await bench.bootstrap("c1")

    async def registered_again() -> bool:
        return serial(bench) != second

    await until(registered_again, what="the deleted cluster has registered anew", within=WITHIN)
    assert "the hub has revoked" not in spoke.output.rpartition("KeyCompromise")[2]
    assert spoke.pid == process
    assert spoke.running
