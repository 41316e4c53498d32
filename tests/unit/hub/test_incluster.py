"""What the election's Lease is called, and what it belongs to: found out in time, named by the operator, or refused."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from hub.election.incluster import lease_on
from hub.settings import load
from machinery.clock import ManualClock
from machinery.election import Candidate
from machinery.errors import ForbiddenError, InvalidError, MusterError, NotFoundError, UnavailableError
from machinery.kube.client import KubeClient
from machinery.kube.ownership import owner_of
from tests.fakes.virtual_time import in_virtual_time

PODS = "/api/v1/namespaces/muster/pods"
SETS, DEPLOYMENTS = "/apis/apps/v1/namespaces/muster/replicasets", "/apis/apps/v1/namespaces/muster/deployments"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/muster/leases"
OWNER = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "hub", "uid": "uid-hub"}


def owned(kind: str, name: str) -> dict[str, Any]:
    reference = {"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": f"uid-{name}"}
    return {"ownerReferences": [{**reference, "controller": True, "blockOwnerDeletion": True}]}


class Documents(KubeClient):
    """An API with these documents' metadata. `trouble`: what a path raises, as long as it does."""

    def __init__(self) -> None:
        self.documents: dict[str, Any] = {
            f"{PODS}/hub-5d-x": owned("ReplicaSet", "hub-5d"),
            f"{SETS}/hub-5d": owned("Deployment", "hub"),
            f"{DEPLOYMENTS}/hub": {},
            f"{PODS}/alone": {},
        }
        self.trouble: dict[str, Callable[[], MusterError | None]] = {}
        self.made: list[dict[str, Any]] = []

    async def get(self, path: str, *_: Any, **__: Any) -> dict[str, Any]:
        if path in self.trouble and (error := self.trouble[path]()):
            raise error
        if path not in self.documents:
            raise NotFoundError(path)
        return {"metadata": self.documents[path]}

    async def create(self, path: str, body: dict[str, Any], *_: Any, **__: Any) -> dict[str, Any]:
        assert path == LEASES
        self.made.append(body)
        return {**body, "metadata": {**body["metadata"], "resourceVersion": "1"}}


def made(cluster: Documents, pod: str, name: str | None = None) -> float:
    """Has the Lease made for that pod, under the name that was given; how many seconds that took."""
    settings = load({"leader_elect_resource_name": name} if name else {}, None, {})

    async def told() -> float:
        begun = asyncio.get_running_loop().time()
        lease = await lease_on(cluster, settings, "muster", pod, ManualClock())
        await lease.take(None, Candidate("one", "one-1"), timedelta(seconds=15))
        return asyncio.get_running_loop().time() - begun

    return in_virtual_time(told())


def metadata(cluster: Documents) -> tuple[str, Any]:
    [lease] = cluster.made
    return lease["metadata"]["name"], lease["metadata"].get("ownerReferences")


def times(count: int, error: MusterError) -> Callable[[], MusterError | None]:
    """So often, and then no more."""
    left = iter([error] * count)
    return lambda: next(left, None)


def test_a_lease_without_a_name_is_called_as_what_the_pod_belongs_to_and_belongs_to_it() -> None:
    cluster = Documents()
    assert made(cluster, "hub-5d-x") == 0
    assert metadata(cluster) == ("hub", [OWNER])


@pytest.mark.parametrize("path", [f"{PODS}/hub-5d-x", f"{SETS}/hub-5d", f"{DEPLOYMENTS}/hub"])
@pytest.mark.parametrize("error", [UnavailableError("away"), ForbiddenError("not yet"), NotFoundError("not yet")])
def test_a_link_of_the_chain_that_cannot_be_read_is_waited_for_and_never_guessed(path: str, error: MusterError) -> None:
    cluster = Documents()
    cluster.trouble[path] = times(20, error)
    assert 15 < made(cluster, "hub-5d-x") < 30
    assert metadata(cluster) == ("hub", [OWNER])
    cluster.trouble[path] = times(1000, error)
    with pytest.raises(InvalidError, match=f"was not found out in 30s .{error.message}.: name the Lease"):
        made(cluster, "hub-5d-x")


def test_a_pod_that_belongs_to_nothing_needs_a_name() -> None:
    cluster = Documents()
    with pytest.raises(InvalidError, match="belongs to no Deployment or StatefulSet: name the Lease"):
        made(cluster, "alone")
    with capture_logs() as told:
        made(cluster, "alone", "mine")
    assert metadata(cluster) == ("mine", None)
    assert "gets no owner" in told[-1]["event"]


def test_a_lease_with_a_name_belongs_to_what_the_pod_belongs_to() -> None:
    cluster = Documents()
    made(cluster, "hub-5d-x", "mine")
    assert metadata(cluster) == ("mine", [OWNER])


def test_a_cluster_that_is_away_keeps_no_hub_from_starting_and_no_lease_is_made_without_its_owner() -> None:
    cluster = Documents()
    cluster.trouble[f"{SETS}/hub-5d"] = times(1, UnavailableError("away"))
    with pytest.raises(UnavailableError):
        made(cluster, "hub-5d-x", "mine")
    assert cluster.made == [], "the elector tries again"
    made(cluster, "hub-5d-x", "mine")
    assert metadata(cluster) == ("mine", [OWNER])


@pytest.mark.parametrize("error", [ForbiddenError("no right"), NotFoundError("no pod")])
def test_who_may_not_look_is_told_truly_that_the_lease_has_no_owner(error: MusterError) -> None:
    cluster = Documents()
    cluster.trouble[f"{SETS}/hub-5d"] = times(1, error)
    with capture_logs() as told:
        made(cluster, "hub-5d-x", "mine")
    assert metadata(cluster) == ("mine", None)
    [line] = [line for line in told if line["log_level"] == "warning"]
    assert (line["event"], line["kind"]) == ("what this pod belongs to is not known: what it makes gets no owner", "Lease")


async def test_the_owner_is_the_last_of_the_chain() -> None:
    assert await owner_of(Documents(), "muster", "hub-5d-x") == OWNER
    assert await owner_of(Documents(), "muster", "alone") is None
    with pytest.raises(NotFoundError):
        await owner_of(Documents(), "muster", "gone")
