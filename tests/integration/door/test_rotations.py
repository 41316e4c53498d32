"""hubctl rotate cluster at a real door: who may order it, what becomes of it, and how far it is."""

import asyncio

from hub.domain import document as doc
from hub.domain.renewal import RENEW
from hub.services import clusters
from machinery.identity import ClusterName
from tests.integration.door.conftest import HubUnderTest


async def ordered(hub: HubUnderTest, name: str) -> str:
    stored = await hub.store.read(clusters.find, ClusterName(name))
    return doc.annotations(stored.document).get(RENEW, "")


async def test_an_operator_has_a_cluster_renewed_and_sees_when_it_has(hub: HubUnderTest) -> None:
    await hub.join("edge1")
    await hub.agent("edge1")
    asked = await hub.hubctl("rotate", "cluster", "edge1", "--within", "10m")
    assert (asked.code, asked.out) == (0, 'cluster "edge1" is asked to renew within 10m\n')
    assert (await ordered(hub, "edge1")).endswith("/PT600S")
    waiting = await hub.hubctl("rotate", "cluster", "edge1", "--wait", "--timeout", "1s")
    assert (waiting.code, "0 of 1 renewed" in waiting.out, "edge1" in waiting.err) == (4, True, True)
    order = asyncio.create_task(hub.hubctl("rotate", "cluster", "edge1", "--wait", "--timeout", "30s"))
    before = await ordered(hub, "edge1")
    async with asyncio.timeout(20):
        while await ordered(hub, "edge1") == before:  # noqa: ASYNC110 - a process of its own orders it
            await asyncio.sleep(0.05)
    await hub.agent("edge1")
    done = await order
    assert (done.code, "1 of 1 renewed" in done.out) == (0, True), done.err


async def test_all_clusters_are_asked_and_spread(hub: HubUnderTest) -> None:
    for name in ("edge1", "edge2", "edge3"):
        await hub.join(name)
    asked = await hub.hubctl("rotate", "cluster", "--all", "--wait")
    assert (asked.code, asked.out) == (0, "3 clusters are asked to renew within 1m\n3 of 3 renewed\n"), asked.err
    assert all([await ordered(hub, name) for name in ("edge1", "edge2", "edge3")])


async def test_what_cannot_be_is_refused_with_a_sentence(hub: HubUnderTest) -> None:
    await hub.join("edge1")
    agent = await hub.agent("edge1")
    refused = await hub.hubctl("rotate", "cluster", "edge1", path=agent)
    assert (refused.code, "managedclusters/rotate" in refused.err) == (1, True), refused.err
    assert await ordered(hub, "edge1") == ""
    for words, code in ((("nobody",), 3), ((), 2), (("edge1", "--all"), 2), (("edge1", "--within", "soon"), 2)):
        assert (await hub.hubctl("rotate", "cluster", *words)).code == code, words
    too_long = await hub.hubctl("rotate", "cluster", "edge1", "--within", "30d")
    assert (too_long.code, "spec.withinSeconds" in too_long.err) == (1, True), too_long.err
