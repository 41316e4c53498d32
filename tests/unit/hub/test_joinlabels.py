"""Labels at join: what an operator lists and no more."""

import pytest
from pydantic import ValidationError

from hub.domain import joinlabels
from hub.domain.cluster import Joining, adopted, joining_document
from hub.domain.lease import DEFAULT_LEASE_DURATION
from hub.settings import Settings
from machinery.identity import ClusterName

EDGE = ClusterName("edge")
SET = "cluster.open-cluster-management.io/clusterset"


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        ((), set()),
        (("region",), {"region"}),
        (("example.com/*",), {"example.com/tier"}),
        (("example.com/tier", "env"), {"example.com/tier"}),
        (("*", "example.com", SET, "open-cluster-management.io/*", "cluster.open-cluster-management.io/*"), set()),
    ],
)
def test_an_agent_sets_the_labels_that_are_listed_and_none_that_decide(patterns: tuple[str, ...], expected: set[str]) -> None:
    told = {"region": "eu", "regional": "x", "example.com/tier": "1", "example.com.evil/x": "1", SET: "prod", "a b": "c"}
    assert set(joinlabels.kept(told, patterns)) == expected


def test_a_label_that_kubernetes_would_not_take_is_left_out() -> None:
    assert joinlabels.kept({"env": "a b", "example.com/": "x"}, ("env", "example.com/*")) == {}


@pytest.mark.parametrize("pattern", [SET, "kubernetes.io/*", "node.kubernetes.io/x", "k8s.io/a", "*", "a/*/b", "-x", "a b"])
def test_a_pattern_that_can_never_be_meant_is_refused_at_the_start(pattern: str) -> None:
    with pytest.raises(ValidationError, match=r"reserved|neither"):
        Settings.model_validate({"join_labels": (pattern,)})
    assert Settings.model_validate({"join_labels": "region,example.com/*"}).join_labels == ("region", "example.com/*")


def test_labels_are_set_when_the_cluster_first_comes_and_an_operators_stay() -> None:
    joining = Joining(EDGE, "uid-1", labels={"region": "eu", "env": "test"})
    assert joining_document(joining, DEFAULT_LEASE_DURATION)["metadata"]["labels"] == {"region": "eu", "env": "test"}
    entered = {"metadata": {"name": "edge", "labels": {"env": "prod"}}}
    first = adopted(entered, joining)
    assert first["metadata"]["labels"] == {"region": "eu", "env": "prod"}
    later = adopted({**first, "metadata": {**first["metadata"], "labels": {}}}, joining)
    assert later["metadata"]["labels"] == {}
