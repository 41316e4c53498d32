"""Many requests, long ones, and made-up ones: heartbeats, renewals and operators go on, and no answer is a 500."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bench.fuzz import fuzzed
from machinery.clock import SystemClock
from machinery.identity import ClusterName
from machinery.kubeconfig import read_kubeconfig
from machinery.tls import client_context
from spoke.hubclient.client import GrpcHubClient
from spoke.ports import Greeting
from tests.e2e.crowd import Joiner, entrance
from tests.e2e.processes import CLUSTERS, Bench
from tests.trials import soaked, trials

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

CLIENTS = trials(50, 500)


async def beat(agent: Joiner, storm: asyncio.Future[Any]) -> int:
    """How many beats of one session were acknowledged while the storm went on."""
    beats = 0
    client = GrpcHubClient(agent.entrance.address, agent.identity, SystemClock())
    async with client.session(Greeting(f"uid-of-{agent.name}")) as session:
        while not storm.done():
            await session.beat(available=True)
            beats += 1
    await client.close()
    return beats


async def renew(agent: Joiner, storm: asyncio.Future[Any]) -> int:
    """How many renewals were answered while the storm went on."""
    renewed = 0
    while not storm.done():
        await Joiner(agent.name, replace(agent.entrance, identity=agent.identity)).join()
        renewed += 1
        await asyncio.wait({storm}, timeout=0.3)
    return renewed


@soaked(CLIENTS)
async def test_heartbeats_renewals_and_operators_live_through_a_registration_storm(bench: Bench) -> None:
    await bench.hub("--auto-approve=*", "--max-registrations-inflight=16", "--flush-window=200ms")
    entry = await entrance(bench.admin, CLIENTS + 10)
    agent = Joiner(ClusterName("agent-1"), entry)
    await agent.join()
    joiners = [Joiner(ClusterName(f"storm-{number}"), entry) for number in range(CLIENTS)]
    storm = asyncio.gather(*(joiner.join() for joiner in joiners))
    beating, renewing = asyncio.create_task(beat(agent, storm)), asyncio.create_task(renew(agent, storm))
    answered = 0
    while not storm.done():
        await bench.get(f"{CLUSTERS}/agent-1")
        answered += 1
        await asyncio.wait({storm}, timeout=0.3)
    await storm
    assert min(await beating, await renewing, answered) > 0
    assert len((await bench.get(CLUSTERS))["items"]) == CLIENTS + 1


def resident(pid: int) -> int:
    """MiB of memory that a process holds."""
    lines = Path(f"/proc/{pid}/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmRSS"))


async def test_a_body_without_end_is_not_kept(bench: Bench) -> None:
    hub = await bench.hub()
    kubeconfig = read_kubeconfig(bench.admin)
    credential = kubeconfig.require_credential()
    context = client_context(kubeconfig.cluster.certificate_authority, credential.chain, credential.key)
    before, most = resident(hub.pid), 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal most
        for _ in range(1_000):
            yield b" " * 100_000
            most = max(most, resident(hub.pid))

    url = f"https://127.0.0.1:{bench.https_port}{CLUSTERS}"
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session:
        with suppress(aiohttp.ClientOSError):  # the hub does not read on after its answer
            async with session.post(url, data=endless(), headers={"Content-Type": "application/json"}) as response:
                assert response.status == 413
    assert most
    assert most - before < 40
    assert (await bench.get(CLUSTERS))["items"] == []


OPERATIONS, FEWEST = 20, 4


async def test_no_request_is_answered_by_500_or_by_what_is_not_documented(bench: Bench) -> None:
    await bench.hub()

    findings = await asyncio.to_thread(fuzzed, bench.admin, examples=3, number=20_261_121, most=OPERATIONS)

    assert findings.failures == {}
    assert sum(count for status, count in findings.answers.items() if status < 300) > FEWEST, findings.answers
    assert sum(count for status, count in findings.answers.items() if status >= 400) > FEWEST, findings.answers
    assert '"level": "error"' not in bench.logs
