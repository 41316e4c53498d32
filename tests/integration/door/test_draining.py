"""hubctl drain replica and uncordon replica at a real door: who may, what is refused, and how long it waits."""

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime

from hub.domain.replica import Replica
from hub.services import replicas
from tests.integration.door.conftest import HubUnderTest

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ONE = Replica("hub-0", "here", "i1", "1", "127.0.0.1:8443", "127.0.0.1:6443", EPOCH, EPOCH, sessions=1, ready=True)


async def shown(hub: HubUnderTest, name: str) -> dict[str, object]:
    status: dict[str, object] = json.loads((await hub.hubctl("get", "replica", name, "-o", "json")).out)["status"]
    return status


async def test_an_operator_drains_a_replica_waits_for_its_sessions_and_takes_it_back(hub: HubUnderTest) -> None:
    await hub.store.run(replicas.begin, ONE)
    refused = await hub.hubctl("drain", "replica", "hub-0")
    assert (refused.code, 'no other replica than "hub-0" takes sessions' in refused.err) == (1, True), refused.err
    await hub.store.run(replicas.begin, replace(ONE, name="hub-1"))
    done = asyncio.create_task(hub.hubctl("drain", "replica", "hub-0", "--timeout", "60s"))
    async with asyncio.timeout(30):
        while (await hub.store.read(lambda tx: tx.replicas.of("hub-0"))).drained is False:  # type: ignore[union-attr]  # noqa: ASYNC110 - a process of its own orders it
            await asyncio.sleep(0.05)
    assert (await shown(hub, "hub-0"))["state"] == "Draining"
    while not done.done():
        await hub.store.run(replicas.beat, replace(ONE, sessions=0))
        await asyncio.wait({done}, timeout=0.5)
    assert (done.result().code, done.result().out.splitlines()[-1]) == (0, "0 sessions are left"), done.result().err
    assert (await shown(hub, "hub-0"))["state"] == "Drained"
    assert "drains the replica hub-0" in (await hub.kubectl("get", "events", "-A")).out
    assert (await hub.hubctl("uncordon", "replica", "hub-0")).out == 'replica "hub-0" takes sessions\n'
    assert (await shown(hub, "hub-0"))["state"] == "Ready"


async def test_what_cannot_be_drained_is_told_and_who_may_not_does_not(hub: HubUnderTest) -> None:
    for name in ("hub-0", "hub-1"):
        await hub.store.run(replicas.begin, replace(ONE, name=name))
    late = await hub.hubctl("drain", "replica", "hub-0", "--timeout", "1s")
    assert (late.code, "still has 1 sessions" in late.err) == (4, True), late.err
    assert (await hub.hubctl("drain", "replica", "nowhere")).code == 3
    await hub.store.run(lambda tx: tx.replicas.put(replace(ONE, name="hub-1", seen=tx.now, sessions=0)))
    unheard = await hub.hubctl("drain", "replica", "hub-1", "--force", "--timeout", "1s")
    assert (unheard.code, "has not told yet" in unheard.err) == (4, True), (
        "that it had no session before the order is no answer"
    )
    agent = await hub.agent("edge1")
    refused = await hub.hubctl("uncordon", "replica", "hub-0", path=agent)
    assert (refused.code, "hubreplicas/drain" in refused.err) == (1, True), refused.err
    assert (await shown(hub, "hub-0"))["drained"] is True
