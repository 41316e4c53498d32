"""Feature gates of the agent."""

import pytest

from machinery.errors import InvalidError
from spoke.gates import KNOWN, FeatureGates, gates_of


def test_the_defaults_are_ocms() -> None:
    assert gates_of({}) == FeatureGates(cluster_claim=True, cluster_property=False, addon_management=True)


def test_each_gate_is_switched_by_its_name() -> None:
    told = {"ClusterClaim": "false", "ClusterProperty": "TRUE", "AddonManagement": "0", "MultipleHubs": "true"}
    assert gates_of(told) == FeatureGates(cluster_claim=False, cluster_property=True, addon_management=False)


def test_an_unknown_gate_is_refused_with_the_list_of_those_there_are() -> None:
    with pytest.raises(InvalidError) as refused:
        gates_of({"ClusterImporter": "true"})
    assert all(name in refused.value.message for name in KNOWN)


@pytest.mark.parametrize(("name", "text"), [("ClusterClaim", "maybe"), ("V1beta1CSRAPICompatibility", "true")])
def test_what_cannot_be_is_refused(name: str, text: str) -> None:
    with pytest.raises(InvalidError, match=name):
        gates_of({name: text})


def test_a_gate_that_is_gone_may_stay_off() -> None:
    assert gates_of({"V1beta1CSRAPICompatibility": "false"}) == FeatureGates()
