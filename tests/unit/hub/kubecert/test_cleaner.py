"""Pods of an older form of the cert agent go, one by one, and nothing else does."""

from typing import Any

import pytest

from hub.kubecert.cleaner import OutdatedPods
from machinery.errors import NotFoundError, UnavailableError
from tests.fakes.host_cluster import SHAPE, HostInMemory, pod

LABEL = "kube-cert-agent.muster/hub-kube-cert-agent"
OLD = {**SHAPE.labels, LABEL: "v0"}


def cleaner(host: HostInMemory, *, leads: bool = True) -> OutdatedPods:
    return OutdatedPods(host, SHAPE, lambda: leads)


async def test_without_pods_nothing_is_done() -> None:
    host = HostInMemory(agents_pods=[])
    assert await cleaner(host).reconcile("gone") is None
    assert host.done == []


async def test_of_a_mix_only_older_pods_with_all_labels_go() -> None:
    mix: dict[str, Any] = {
        "old": OLD,
        "present": SHAPE.pod_labels,
        "another's": {LABEL: "v0"},
        "stranger": SHAPE.labels,
    }
    host = HostInMemory(agents_pods=[pod(name, labels=labels) for name, labels in mix.items()])
    assert host.outdated() == ["old"]
    for name in mix:
        await cleaner(host).reconcile(name)
    [(verb, removed)] = host.done
    assert (verb, removed["metadata"]["name"]) == ("remove_pod", "old")
    assert (removed["metadata"]["uid"], removed["metadata"]["resourceVersion"]) == ("uid-of-old", "7"), "this very one"


async def test_a_pod_that_went_meanwhile_is_done_and_another_failure_is_tried_again() -> None:
    host = HostInMemory(agents_pods=[pod("old", labels=OLD)], failures={"remove_pod": NotFoundError("gone")})
    assert await cleaner(host).reconcile("old") is None
    host.failures = {"remove_pod": UnavailableError("away")}
    with pytest.raises(UnavailableError):
        await cleaner(host).reconcile("old")
    host.failures = {"pod": UnavailableError("away")}
    with pytest.raises(UnavailableError):
        await cleaner(host).reconcile("old")


async def test_a_follower_removes_nothing_and_does_not_even_look() -> None:
    host = HostInMemory(agents_pods=[pod("old", labels=OLD)], failures={"pod": UnavailableError("asked")})
    assert await cleaner(host, leads=False).reconcile("old") is None
    assert host.done == []
