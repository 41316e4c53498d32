"""A large write at the door does not hold up what is written beside it."""

import asyncio
from datetime import timedelta
from time import monotonic

from hub.domain.heartbeat import Beat
from hub.services import heartbeats
from machinery.apiserver.patches import MAX_OPERATIONS
from machinery.identity import ClusterName
from tests.integration.door.conftest import HubUnderTest
from tests.integration.door.test_access import CLUSTERS
from tests.integration.door.test_audit import admin

PROMISED = 1.0
"""Seconds from a beat to its acknowledgement; five times as many on a machine that does other work."""


async def test_beats_are_stored_while_a_large_patch_is_worked_out(hub: HubUnderTest) -> None:
    await hub.join("edge1")
    operator, status = await admin(hub), f"{CLUSTERS}/edge1/status"
    large = {"status": {"allocatable": {f"r{number}": "1" for number in range(5_000)}}}
    merge, apart = ({"content-type": f"application/{kind}+json"} for kind in ("merge-patch", "json-patch"))
    assert (await operator.ask("PATCH", status, large, **merge))[0] == 200
    tests = [{"op": "test", "path": "/metadata/name", "value": "edge1"}] * (MAX_OPERATIONS - 1)
    changes = [*tests, {"op": "replace", "path": "/status/allocatable", "value": {"cpu": "4"}}]
    waits = []
    async with asyncio.timeout(60):
        patch = asyncio.create_task(operator.ask("PATCH", status, changes, **apart))
        while not patch.done():
            began = monotonic()
            beat = Beat(ClusterName("edge1"), timedelta(), available=True)
            await hub.store.run(heartbeats.flush, [beat])
            waits.append(monotonic() - began)
    code, answer = await patch
    assert code == 200
    assert answer["status"]["allocatable"] == {"cpu": "4"}
    assert max(waits) < 5 * PROMISED


async def test_an_object_that_is_too_large_is_refused_before_it_is_stored(hub: HubUnderTest) -> None:
    await hub.join("edge1")
    operator, one = await admin(hub), f"{CLUSTERS}/edge1"
    merge = {"content-type": "application/merge-patch+json"}
    half = {"status": {"version": {"kubernetes": "x" * 800_000}}}
    other = {"spec": {"managedClusterClientConfigs": [{"url": "https://edge1", "caBundle": "A" * 800_000}]}}
    assert (await operator.ask("PATCH", f"{one}/status", half, **merge))[0] == 200
    code, answer = await operator.ask("PATCH", one, other, **merge)
    assert (code, answer["reason"]) == (413, "RequestEntityTooLarge")
    assert "the object is too large" in answer["message"]
