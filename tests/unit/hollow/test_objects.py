from datetime import UTC, datetime

import pytest

from hollow import objects
from hollow.objects import Shape

NOW = datetime(2026, 11, 21, tzinfo=UTC)


def test_a_cluster_keeps_its_identity_over_restarts_and_shares_it_with_no_other() -> None:
    first, again, other = Shape("a"), Shape("a", nodes=9), Shape("b")
    assert first.cluster_uid == again.cluster_uid
    assert first.cluster_uid != other.cluster_uid
    assert first.uid("namespaces", "kube-system") != first.uid("namespaces", "default")


@pytest.mark.parametrize("count", [0, 1, 4, 7])
def test_a_cluster_has_as_many_nodes_and_claims_as_asked_for(count: int) -> None:
    shape = Shape("a", nodes=count, claims=count)
    assert len({node["metadata"]["name"] for node in objects.nodes(shape, NOW)}) == count
    assert len({claim["metadata"]["name"] for claim in objects.claims(shape)}) == count


def test_the_id_claim_is_the_uid_of_kube_system() -> None:
    claims = {claim["metadata"]["name"]: claim["spec"]["value"] for claim in objects.claims(Shape("a"))}
    assert claims["id.k8s.io"] == Shape("a").cluster_uid


def test_the_version_document_agrees_with_the_nodes() -> None:
    shape = Shape("a", nodes=1, version="v1.31.0")
    document = objects.version(shape)
    assert (document["major"], document["minor"], document["gitVersion"]) == ("1", "31", "v1.31.0")
    assert next(objects.nodes(shape, NOW))["status"]["nodeInfo"]["kubeletVersion"] == "v1.31.0"
