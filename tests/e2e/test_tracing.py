"""One trace from the agent through the hub's door into its store, as a collector gets it; and an agent told to log more."""

import json
import re
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.processes import Bench, Program, until
from tests.fakes.tracing import Collector, collecting

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

ENSURE, CONNECT = "muster.registration.v1.Registration/EnsureCluster", "muster.session.v1.Session/Connect"
HUB, SPOKE = "muster-hub", "muster-spoke"
SECRET = re.compile(rb"PRIVATE KEY|BEGIN CERTIFICATE|eyJ[\w-]{9}")
"""A key, a certificate, a token: of the last so much that ids, which are random bytes, do not look like it by chance."""
ENDED_WITHIN = 10
"""Seconds, five times what the end of a process waits for its collector."""


def lines(program: Program) -> Iterator[dict[str, Any]]:
    for line in program.output.splitlines():
        if line.startswith("{"):
            yield json.loads(line)


def children(collector: Collector, parent: Any) -> list[str]:
    return [span.name for span in collector.spans if span.parent_span_id == parent.span_id]


async def logs_at(spoke: Program, level: str) -> None:
    async def told() -> bool:
        return any(line["event"] == "log level changed" and line["log_level"] == level for line in lines(spoke))

    await until(told, what=f"the agent logs at {level}")


async def test_a_join_is_one_trace_of_both_programs_and_a_collector_that_is_gone_holds_up_nobody(bench: Bench) -> None:
    """Meanwhile a signal has the agent log everything, and a second one takes that back."""
    async with collecting() as collector:
        to = f"--trace-endpoint={collector.endpoint}"
        hub = await bench.hub("--auto-approve=*", to)
        spoke = await bench.spoke("edge1", None, to)
        await bench.available("edge1")
        for level in ("debug", "info"):
            spoke.send(signal.SIGUSR2)
            await logs_at(spoke, level)
        await spoke.stop()  # what it has not sent yet is sent now

        async def both() -> bool:
            return bool(collector.named(SPOKE, "join") and collector.named(HUB, ENSURE) and collector.named(HUB, CONNECT))

        await until(both, what="both have sent their spans", within=30)
    (join,), (answered,) = collector.named(SPOKE, "join"), collector.named(HUB, ENSURE)
    assert {"get hub", "obtain certificate"} <= set(children(collector, join))
    asked = next(span for span in collector.named(SPOKE, "ensure cluster") if span.span_id == answered.parent_span_id)
    assert asked.trace_id == answered.trace_id == join.trace_id
    assert "store write" in children(collector, answered)
    assert not SECRET.search(collector.raw)
    await bench.hubctl("get", "clusters")  # spans that nobody takes any more
    assert await hub.stop(within=ENDED_WITHIN) == 0
