"""Revoked agents are cut off on both of two replicas: real hubs on one PostgreSQL, as `bench revoke` measures at length."""

import pytest

from bench.revoke import measure
from bench.spread import told_to_hubs

PROMISED_MS = 1_000.0
STREAMS = 12

pytestmark = [pytest.mark.e2e, pytest.mark.postgres, pytest.mark.timeout(180)]


async def test_streams_on_both_replicas_end_soon_after_the_order_and_nobody_comes_again(postgres_url: str) -> None:
    with told_to_hubs(postgres_url):
        found = await measure(STREAMS, 2, 0.05)
    assert (found["wrong"], found["came again"]) == (0, 0), found
    assert found["p99 ms"] < 5 * PROMISED_MS, found
