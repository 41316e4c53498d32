"""Agents that are killed with -9 exactly at a write: while it is on its way, or when it was done and its answer was not."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing
from dataclasses import dataclass

from hollow.faults import HEALTHY, Faults
from machinery.pki import key_matches, parse_certificate
from tests.e2e.hubs import OWNER_SECRET, Hub, Hubs
from tests.e2e.processes import Program


@dataclass(frozen=True, slots=True)
class Point:
    """The n-th write of a secret, counted from 1; `done`: the agent dies after it, else before."""

    write: int
    done: bool

    @property
    def faults(self) -> Faults:
        return Faults(stall_after_write=self.write) if self.done else Faults(stall_before_write=self.write)

    def __str__(self) -> str:
        return f"{'after' if self.done else 'before'} write {self.write}"


def points(writes: int) -> list[Point]:
    return [Point(write, done) for write in range(1, writes + 1) for done in (False, True)]


async def dies(hubs: Hubs, agent: Program, cluster: str, point: Point, arrived: Callable[[], Awaitable[object]]) -> bool:
    """Kills the agent at that point; False: it had no such write until it had `arrived`, and is killed there.

    The agent runs already, or is started here; writes are counted from the moment at which the cluster got its faults.
    """
    hollow = await hubs.cluster(cluster)
    if hollow.faults != point.faults:
        hollow.faults = point.faults
    if not agent.running:
        await agent.start()
    stalling, arriving = asyncio.create_task(hollow.stalled()), asyncio.create_task(_value(arrived()))
    try:
        await asyncio.wait({stalling, arriving}, return_when=asyncio.FIRST_COMPLETED)
        if arriving.done():
            arriving.result()
        return stalling.done()
    finally:
        await agent.kill()
        hollow.faults = HEALTHY
        for task in (stalling, arriving):
            task.cancel()
        await asyncio.wait({stalling, arriving})


async def _value(work: Awaitable[object]) -> object:
    return await work


def assert_whole(contents: Mapping[str, bytes]) -> None:
    """A credential secret: certificate, key and kubeconfig belong together."""
    assert {"tls.crt", "tls.key", "kubeconfig", "cluster-name", "agent-name"} <= set(contents)
    assert key_matches(contents["tls.crt"], contents["tls.key"])


def issued(hub: Hub, cluster: str) -> list[int]:
    """Serials of all agent certificates that the hub has ever made for the cluster, as its records tell."""
    with closing(sqlite3.connect(f"file:{hub.database}?mode=ro", uri=True)) as connection:
        query = "SELECT serial FROM certificates WHERE purpose = 'agent' AND cluster = ?"
        return [int(serial, 16) for (serial,) in connection.execute(query, (cluster,))]


async def assert_registered_once(hubs: Hubs, cluster: str, *, certificates: int = 1) -> None:
    """Every hub made so many certificates for the cluster, of which the agent holds the newest, and nothing is pending."""
    for hub in hubs.all:
        contents = await hubs.secret(cluster, hub.secret())
        assert_whole(contents)
        serials = issued(hub, cluster)
        assert len(serials) == certificates, f"{hub.name} issued {len(serials)} certificates for {cluster}"
        assert parse_certificate(contents["tls.crt"]).serial in serials
        assert not [key for key in contents if "pending" in key.lower()], f"a request to {hub.name} is still pending"
        requests = [each for each in await hub.requests() if f":{cluster}:" in str(each["spec"].get("username", ""))]
        assert len(requests) <= certificates
    assert_whole(await hubs.secret(cluster))
    assert await hubs.secret_names(cluster) == {OWNER_SECRET, *(hub.secret() for hub in hubs.all)}
