"""What it costs to know who wrote which field: processor time and bytes per write of the hub's own, without the database."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import click
import msgspec

from hub.api.certificatesigningrequests import request as requests
from hub.api.managedclusters import cluster as clusters
from hub.api.managedclusters.cluster import AVAILABLE, UNAVAILABLE, ClusterClaim, StatusReport
from hub.api.meta.change import MANAGED_CLUSTERS, REQUESTS, Kind
from hub.api.objects.managed_fields import AGENT_WRITER, HUB_WRITER, tracked
from machinery.identity import CLUSTER_LABEL, SIGNER

NOW = datetime(2026, 11, 21, tzinfo=UTC)
AMOUNTS = {"cpu": "96", "memory": "384Gi", "pods": "3300", "ephemeral-storage": "1Ti"}
CLAIMS = tuple(ClusterClaim(f"claim-{number}", "value") for number in range(15))


def _report(condition: Any, version: str) -> StatusReport:
    return StatusReport((condition,), capacity=AMOUNTS, allocatable=AMOUNTS, kubernetes_version=version, claims=CLAIMS)


@click.command()
@click.option("--runs", default=2000, show_default=True, type=click.IntRange(100), help="Writes per figure.")
def ownership(runs: int) -> None:
    """Measure field ownership, write by write."""
    joined = _cluster()
    cluster = _after(MANAGED_CLUSTERS, joined, None, AGENT_WRITER)
    reported = _after(
        MANAGED_CLUSTERS, clusters.with_report(cluster, _report(AVAILABLE, "v1.31.0"), NOW), cluster, AGENT_WRITER
    )
    report = _plain(clusters.with_report(reported, _report(UNAVAILABLE, "v1.31.1"), NOW))
    submitted = _after(REQUESTS, _request(), None, AGENT_WRITER)
    decision = requests.with_decision(submitted, requests.APPROVED, "Test", "", NOW)
    decided = _after(REQUESTS, decision, submitted, HUB_WRITER)
    certificate = requests.with_certificate(decided, b"c" * 1500, b"r" * 1500)
    _say("a join", runs, lambda: tracked(MANAGED_CLUSTERS, joined, None, AGENT_WRITER, NOW))
    _say("a status report", runs, lambda: tracked(MANAGED_CLUSTERS, report, reported, AGENT_WRITER, NOW))
    _say("a request", runs, lambda: tracked(REQUESTS, _request(), None, AGENT_WRITER, NOW))
    _say("its approval", runs, lambda: tracked(REQUESTS, decision, submitted, HUB_WRITER, NOW))
    _say("its certificate", runs, lambda: tracked(REQUESTS, certificate, decided, HUB_WRITER, NOW))


def _cluster() -> dict[str, Any]:
    metadata = {"name": "edge", "annotations": {clusters.CLUSTER_UID: "8e49ce2a-f450-4073-96ff-c55e65c8092a"}}
    spec = {"hubAcceptsClient": False, "leaseDurationSeconds": 60}
    return {"apiVersion": clusters.API_VERSION, "kind": clusters.KIND, "metadata": metadata, "spec": spec}


def _request() -> dict[str, Any]:
    metadata = {"name": "edge-abcde", "generateName": "edge-", "labels": {CLUSTER_LABEL: "edge"}}
    spec = {
        "request": "r" * 600,
        "signerName": SIGNER,
        "usages": list(requests.USAGES),
        "username": "system:bootstrap:x",
    }
    return {"apiVersion": requests.API_VERSION, "kind": requests.KIND, "metadata": metadata, "spec": spec, "status": {}}


def _after(kind: Kind, new: dict[str, Any], old: dict[str, Any] | None, writer: str) -> dict[str, Any]:
    return _plain(tracked(kind, new, old, writer, NOW))


def _plain(document: Any) -> dict[str, Any]:
    """As it comes out of the database: parts that are equal are not the same objects."""
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(document))
    return plain


def _say(what: str, runs: int, write: Callable[[], dict[str, Any]]) -> None:
    """The least of five rounds: whatever else the machine does makes a round longer, never shorter."""
    rounds = [_seconds(write, runs // 5) for _ in range(5)]
    told = write()["metadata"].get("managedFields", [])
    size = len(msgspec.json.encode(told))
    click.echo(f"{what:<16} {min(rounds) * 1_000_000:4.0f} µs of processor time, {size:4} bytes of managedFields after it")


def _seconds(write: Callable[[], object], times: int) -> float:
    began = time.process_time()
    for _ in range(times):
        write()
    return (time.process_time() - began) / times
