"""Watches of the health of the agents' door are bounded, in time and in number."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from grpc_health.v1 import health_pb2 as wire

from hub.rpc.health import MOST_WATCHES, WATCHED_FOR, Health
from tests.fakes.virtual_time import in_virtual_time


class RefusedError(Exception):
    """The call was aborted."""


async def refuse(*_: Any) -> None:
    raise RefusedError


def watch(health: Health) -> Any:
    return health.Watch(wire.HealthCheckRequest(), SimpleNamespace(abort=refuse))


def test_a_watch_ends_after_an_hour() -> None:
    async def told() -> tuple[list[Any], float]:
        health = Health()
        await health.set_serving(serving=True)
        seen = [answer.status async for answer in watch(health)]
        return seen, asyncio.get_running_loop().time()

    seen, after = in_virtual_time(told())
    assert seen == [wire.HealthCheckResponse.SERVING]
    assert after == WATCHED_FOR.total_seconds()


async def test_so_many_watch_at_once_and_no_more_until_one_has_gone() -> None:
    health = Health()
    watches = [watch(health) for _ in range(MOST_WATCHES)]
    for each in watches:
        await anext(each)
    with pytest.raises(RefusedError):
        await anext(watch(health))
    await watches[0].aclose()
    watches[0] = watch(health)
    await anext(watches[0])
    for each in watches:
        await each.aclose()
