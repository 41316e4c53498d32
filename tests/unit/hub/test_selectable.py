"""By which fields clusters and add-ons can be selected."""

import pytest

from hub.apiserver.kinds.addon import managed_cluster_add_on
from hub.apiserver.kinds.managedcluster import managed_cluster
from hub.domain.change import MANAGED_CLUSTERS, Document
from hub.domain.selectable import CLUSTER_ALIASES
from hub.domain.selection import fields_of
from machinery.apiserver.options import selection
from machinery.errors import BadRequestError
from machinery.product import GROUP_SUFFIX

CLUSTER: Document = {
    "metadata": {"name": "east"},
    "spec": {"hubAcceptsClient": True},
    "status": {
        "version": {"kubernetes": "v1.34.2"},
        "conditions": [
            {"type": "ManagedClusterConditionAvailable", "status": "Unknown"},
            {"type": "ManagedClusterJoined", "status": "True"},
        ],
        "clusterClaims": [{"name": "region.example.com", "value": "eu"}, {"name": "empty"}],
    },
}


@pytest.mark.parametrize(
    ("selector", "chosen"),
    [
        ("spec.hubAcceptsClient=true", True),
        ("spec.hubAcceptsClient=false", False),
        ("status.available=Unknown", True),
        ("status.available!=True", True),
        ("status.available=True", False),
        ("status.joined=True,status.available=Unknown", True),
        ("status.accepted=", True),
        ("status.accepted=True", False),
        ("status.conditions.ManagedClusterJoined=True", True),
        ("status.conditions.ManagedClusterConditionAvailable=Unknown", True),
        ("status.version.kubernetes=v1.34.2", True),
        ("status.version.kubernetes!=v1.34.2", False),
        ("status.clusterClaims.region.example.com=eu", True),
        ("status.clusterClaims.region.example.com=us", False),
        ("status.clusterClaims.empty=", True),
        ("metadata.name=east,status.available=Unknown", True),
    ],
)
def test_clusters_are_selected_by_their_status(selector: str, chosen: bool) -> None:  # noqa: FBT001 - a table
    fields = selection(managed_cluster(), "", {"fieldSelector": selector}).fields
    known = {**fields_of(MANAGED_CLUSTERS, CLUSTER), "metadata.name": "east"}

    assert fields.matches(known) is chosen


def test_a_cluster_that_was_never_heard_of_has_no_condition() -> None:
    assert fields_of(MANAGED_CLUSTERS, {"metadata": {"name": "new"}}) == {"spec.hubAcceptsClient": "false"}


@pytest.mark.parametrize("selector", ["status.conditions=True", "spec.taints=x", "status.capacity.nodes=3", "metadata.uid=x"])
def test_other_fields_are_refused_by_name(selector: str) -> None:
    with pytest.raises(BadRequestError, match="field label not supported"):
        selection(managed_cluster(), "", {"fieldSelector": selector})


def test_aliases_stand_for_fields_that_exist() -> None:
    resource = managed_cluster()
    assert all(resource.selectable_name(name) == known for name, known in CLUSTER_ALIASES.items())
    assert managed_cluster_add_on(GROUP_SUFFIX).selectable_name("status.available") == "status.conditions.Available"
