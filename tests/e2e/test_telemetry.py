"""Metrics and traces of a hub and an agent: every metric there is, and one trace from the agent into the hub's store."""

import re
import signal
import time
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

import hub.metrics as of_hub
import spoke.observability.probes as of_spoke
from docs.reference_pages import rules
from machinery.observability.metrics import Metric
from tests.e2e.processes import Bench, free_port, until
from tests.fakes.prometheus import Prometheus
from tests.fakes.tracing import Collector, collecting

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

Samples = dict[str, dict[tuple[str, ...], float]]
NOW = time.time()
STATES = ("available", "unavailable", "unknown", "other_hub", "never_heard_of")
MOMENTS = [NOW + 60 * minute for minute in range(200)]
HAPPENED = {
    *("muster_hub_leader_lost_total", "muster_hub_logins_total", "muster_hub_cluster_transitions_total", "muster_hub_watchers"),
    *("muster_hub_ocm_grpc_handled_total", "muster_hub_ocm_grpc_connections", "muster_hub_ocm_grpc_streams"),
    *("muster_hub_backup_timestamp_seconds", "muster_spoke_troubles_total", "muster_spoke_failover_total"),
}  # what has no series before it happens for the first time, or with an extension that is off


def samples(text: str) -> Samples:
    """The values of each name by the values of its labels."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for each in family.samples:
            found.setdefault(each.name, {})[tuple(each.labels.values())] = each.value
    return found


async def scraped(port: int) -> str:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/metrics") as response:
        assert response.status == 200
        return await response.text()


def fired(text: str, half: str) -> list[str]:
    """The alerts that fire with these samples alone."""
    world = Prometheus()
    for family in text_string_to_metric_families(text):
        for each in family.samples:
            world.add(each.name, {**each.labels, "instance": half}, [(moment, each.value) for moment in MOMENTS])
    return [rule["alert"] for rule in rules(half) if world.firing(rule, MOMENTS[-1])]


def missing(seen: Samples, metrics: tuple[Metric, ...], *, detailed: bool) -> Iterator[str]:
    for metric in metrics:
        if metric.name not in HAPPENED and (detailed or not metric.detailed):
            yield from (name for name in metric.series if name not in seen)


async def test_a_hub_and_an_agent_tell_every_metric_there_is(bench: Bench) -> None:
    port = free_port()
    flags = ("--auto-approve=*", f"--metrics-listen=127.0.0.1:{port}", "--metrics-per-cluster=true", "--beat-interval=300ms")
    await bench.hub(*flags, "--flush-window=100ms")
    agent = await bench.spoke("c1")
    await bench.available("c1")
    await bench.hubctl("label", "cluster", "c1", "alert.open-cluster-management.io/critical=true")

    async def counted() -> Samples | None:
        seen = samples(await scraped(port))
        is_there = seen["muster_hub_heartbeats_total"]["stored",] and seen["muster_hub_agent_certificates"]["30d",]
        is_there = is_there and "muster_hub_critical_cluster_available" in seen
        return seen if is_there and seen["muster_hub_clusters"]["available",] else None

    seen: Samples = await until(counted, what="the available cluster and its beats are counted")
    assert list(missing(seen, of_hub.METRICS, detailed=True)) == []
    assert seen["muster_hub_clusters"] == {(name,): int(name == "available") for name in STATES}
    assert (seen["muster_hub_cluster_available"], seen["muster_hub_leader"][()]) == ({("c1",): 1}, 1)
    assert (seen["muster_hub_csr_total"]["Issued",], seen["muster_hub_certificates_signed_total"]["agent", "hub"]) == (1, 1)
    assert (seen["muster_hub_agent_certificates"]["30d",], sum(seen["muster_hub_sessions"].values())) == (1, 1)
    assert seen["muster_hub_readiness_check"]["database",] == 1
    assert seen["muster_hub_grpc_handled_total"]["SubmitRequest", "OK"] == 1
    assert seen["muster_hub_heartbeat_lag_seconds_count"][()] == seen["muster_hub_heartbeats_total"]["stored",]
    text = await scraped(port)
    named = {line.partition("{")[0] for line in text.splitlines() if '"c1"' in line}
    asked_for = {metric.name for metric in of_hub.METRICS if metric.detailed}
    assert named == {*asked_for, "muster_hub_critical_cluster_available"}, "only where that was asked for"
    assert fired(text, "hub") == ["MusterHubNeverBackedUp"]
    status, text = await agent.probe("/metrics")
    assert fired(text, "spoke") == []
    of_agent = samples(text)
    assert (status, list(missing(of_agent, of_spoke.METRICS, detailed=False))) == (200, [])
    assert (of_agent["muster_spoke_hubs"]["ready",], of_agent["muster_spoke_ready"][()]) == (1, 1)
    assert of_agent["muster_spoke_heartbeats_acknowledged_total"][()] > 0
    assert "c1" not in text


ENSURE, CONNECT = "muster.registration.v1.Registration/EnsureCluster", "muster.session.v1.Session/Connect"
HUB, SPOKE = "muster-hub", "muster-spoke"
SECRET = re.compile(rb"PRIVATE KEY|BEGIN CERTIFICATE|eyJ[\w-]{9}")
"""A key, a certificate, a token: of the last so much that ids, which are random bytes, do not look like it by chance."""


def children(collector: Collector, parent: Any) -> list[str]:
    return [span.name for span in collector.spans if span.parent_span_id == parent.span_id]


async def test_a_join_is_one_trace_of_both_programs_and_a_collector_that_is_gone_holds_up_nobody(bench: Bench) -> None:
    """Meanwhile a signal has the agent log everything, and a second one takes that back."""
    async with collecting() as collector:
        to = f"--trace-endpoint={collector.endpoint}"
        hub, spoke = await bench.hub("--auto-approve=*", to), await bench.spoke("edge1", None, to)
        await bench.available("edge1")
        for level in ("debug", "info"):
            spoke.send(signal.SIGUSR2)
            changed = {"event": "log level changed", "log_level": level}.items()
            await until(lambda: any(changed <= line.items() for line in spoke.lines), what=f"it logs at {level}")  # noqa: B023
        await spoke.stop()  # what it has not sent yet is sent now
        await until(
            lambda: bool(collector.named(SPOKE, "join") and collector.named(HUB, ENSURE) and collector.named(HUB, CONNECT)),
            what="both have sent their spans",
        )
    (join,), (answered,) = collector.named(SPOKE, "join"), collector.named(HUB, ENSURE)
    assert {"get hub", "obtain certificate"} <= set(children(collector, join))
    asked = next(span for span in collector.named(SPOKE, "ensure cluster") if span.span_id == answered.parent_span_id)
    assert asked.trace_id == answered.trace_id == join.trace_id
    assert "store write" in children(collector, answered)
    assert not SECRET.search(collector.raw)
    await bench.hubctl("get", "clusters")  # spans that nobody takes any more
    assert await hub.stop() == 0
