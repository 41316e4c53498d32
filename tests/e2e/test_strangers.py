"""Strangers who send the worst they can cost an administrator little, and no probe and no stop fails by them."""

import asyncio
import json
import logging
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from statistics import quantiles
from typing import Any

import aiohttp
import pytest

from machinery.client.kubeconfig import read_kubeconfig
from machinery.client.rest import KubeClient
from tests.e2e.processes import CLUSTERS, Bench, Program
from tests.trials import soak_only

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("quiet"), pytest.mark.timeout(600)]

CLIENTS, SECONDS, IDLE_SECONDS = 20, 60, 20
PAUSE = 0.02  # seconds between two requests of the administrator
TIMES = 5

log = logging.getLogger(__name__)


def now() -> float:
    return asyncio.get_running_loop().time()


async def percentile_of_gets(admin: KubeClient, seconds: float) -> float:
    """The 99th percentile of an administrator's GETs, in seconds."""
    spent, end = [], now() + seconds
    while now() < end:
        began = now()
        await admin.get(f"{CLUSTERS}?limit=10")
        spent.append(now() - began)
        await asyncio.sleep(PAUSE)
    return quantiles(spent, n=100)[98]


async def statuses_of_livez(server: str, found: set[Any]) -> None:
    """Asks as a kubelet does: on a new connection every half second."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    while True:
        connector, limit = aiohttp.TCPConnector(ssl=context), aiohttp.ClientTimeout(total=1)
        try:
            async with (
                aiohttp.ClientSession(connector=connector, timeout=limit) as session,
                session.get(f"{server}/livez") as answer,
            ):
                found.add(answer.status)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            found.add(type(error).__name__)
        await asyncio.sleep(0.5)


async def seconds_to_stop(hub: Program) -> float:
    began = now()
    assert await hub.stop() == 0, hub.output[-2000:]
    return now() - began


@asynccontextmanager
async def flooded(server: str) -> AsyncIterator[dict[str, int]]:
    """A block in which the strangers send; afterwards it has their answers."""
    arguments = ("-m", "tests.e2e.strangers", server, str(CLIENTS))
    root = Path(__file__).parents[2]
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE, cwd=root)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"sending\n"
    found: dict[str, int] = {}
    try:
        yield found
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        answer, _ = await process.communicate()
    found |= json.loads(answer)


@soak_only(CLIENTS)  # in `make test`: test_bodies.py and test_limits.py hold the bounds one by one
async def test_strangers_who_send_the_worst_slow_an_administrator_little_and_end_no_probe(bench: Bench) -> None:
    hub = await bench.hub()
    server, liveness = read_kubeconfig(bench.admin).cluster.server, set[Any]()
    usual = await seconds_to_stop(hub)
    await hub.start()
    await bench.ready(hub)
    async with await KubeClient.from_file(bench.admin) as admin:
        idle = await percentile_of_gets(admin, IDLE_SECONDS)
        async with flooded(server) as answers:
            probing = asyncio.create_task(statuses_of_livez(server, liveness))
            busy = await percentile_of_gets(admin, SECONDS)
            probing.cancel()
            stopped = await seconds_to_stop(hub)
    found = f"p99 idle {idle * 1e3:.1f} ms, flooded {busy * 1e3:.1f} ms; stop {usual:.2f} s, {stopped:.2f} s; {answers}"
    log.info(found)
    assert sum(answers.values()) > SECONDS * CLIENTS, found
    assert liveness == {200}, found
    assert busy < TIMES * idle, found
    assert stopped < TIMES * usual, found
