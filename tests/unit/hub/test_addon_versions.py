"""What is stored in v1beta1 reads in v1alpha1 and comes back whole, and the other way round."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from hub.api.managedclusteraddons import versions
from hub.registry.managedclusteraddons import resource
from machinery.apiserver.write.schema import pruned, violations
from tests.checks import check_results

Document = dict[str, Any]
SIGNER = "kubernetes.io/kube-apiserver-client"
CONDITION = {
    "type": "Available",
    "status": "True",
    "reason": "Fine",
    "message": "",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}
HASH = {"name": "settings", "namespace": "default", "specHash": "abc"}


def maybe(chance: random.Random, **choices: Sequence[Any]) -> Document:
    """Each field with one of its values, or without."""
    return {name: chance.choice(values) for name, values in choices.items() if chance.random() < 0.6}


def some(chance: random.Random, make: Callable[[], Document]) -> list[Document]:
    return [make() for _ in range(chance.randrange(3))]


def metadata(chance: random.Random) -> Document:
    notes = maybe(chance, note=["x"], **{versions.INSTALL_NAMESPACE: ["tools", "agents"]})
    return {"name": "metrics", "namespace": "east", **({"annotations": notes} if notes else {})}


def subject(chance: random.Random) -> Document:
    return maybe(chance, user=["agent"], groups=[["a", "b"], []], organizationUnits=[["ou"]])


def stored_registration(chance: random.Random, driver: str | None) -> Document:
    told = {"subject": found} if (found := subject(chance)) else {}
    if chance.random() < 0.5:
        return {"type": "customSigner", "customSigner": {"signerName": "example.com/signer", **told}}
    kube = {**told, **({"driver": driver} if driver else {})}
    return {"type": "kubeClient", **({"kubeClient": kube} if kube else {})}


def reference(chance: random.Random) -> Document:
    hashes = maybe(chance, desiredConfig=[HASH], lastAppliedConfig=[HASH], lastObservedGeneration=[0, 7], group=["", "g"])
    return {"resource": "configs", **hashes}


def stored_add_on(chance: random.Random) -> Document:
    driver = chance.choice(["csr", "token", None])
    status = {
        **maybe(chance, namespace=["agents"], conditions=[[CONDITION], []], healthCheck=[{"mode": "Lease"}]),
        **maybe(chance, registrations=[some(chance, lambda: stored_registration(chance, driver))]),
        **maybe(chance, configReferences=[some(chance, lambda: reference(chance))]),
        **maybe(chance, addOnConfiguration=[{"crdName": "c"}], supportedConfigs=[[{"group": "", "resource": "r"}]]),
    }
    if not any(each["type"] == "kubeClient" for each in status.get("registrations", [])):
        status |= maybe(chance, kubeClientDriver=["csr"])
    spec = maybe(chance, configs=[[{"group": "g", "resource": "r", "name": "n"}]])
    return {"kind": "ManagedClusterAddOn", "metadata": metadata(chance), "spec": spec, **maybe(chance, status=[status])}


def stored_definition(chance: random.Random) -> Document:
    names = [chance.choice(["n", versions.NO_DEFAULT]) for _ in range(chance.randrange(3))]
    configs = [{"group": "g", "resource": f"r{index}", "name": name} for index, name in enumerate(names)]
    spec = {
        **maybe(chance, defaultConfigs=[configs], addOnMeta=[{"displayName": "Metrics"}]),
        **maybe(chance, addOnConfiguration=[{"crdName": "c"}], installStrategy=[{"type": "Manual"}]),
    }
    references = [{"resource": "r", "desiredConfig": HASH}]
    status = maybe(chance, defaultConfigReferences=[references], installProgressions=[[]])
    return {"kind": "ClusterManagementAddOn", "metadata": {"name": "metrics"}, "spec": spec, **maybe(chance, status=[status])}


CASES = [
    (stored_add_on, versions.add_on_shown, versions.add_on_stored, (resource.ADDON_SCHEMA, resource.ADDON_V1ALPHA1)),
    (
        stored_definition,
        versions.definition_shown,
        versions.definition_stored,
        (resource.DEFINITION_SCHEMA, resource.DEFINITION_V1ALPHA1),
    ),
]


@pytest.mark.parametrize(("make", "shown", "stored", "schemas"), CASES, ids=["add-on", "definition"])
def test_nothing_is_lost_there_and_back(make: Any, shown: Any, stored: Any, schemas: Any) -> None:
    for seed in range(500):
        document = make(random.Random(seed))
        old = shown(document)
        assert stored(old) == document, seed
        assert shown(stored(old)) == old, seed
        for schema, each in zip(schemas, (document, old), strict=True):
            assert (violations(schema, each), pruned(schema, each)[1]) == ([], []), seed


def test_older_versions_read_as_ocm_converts_them() -> None:
    old = {
        "metadata": {"name": "metrics"},
        "spec": {"installNamespace": "tools"},
        "status": {
            "kubeClientDriver": "token",
            "registrations": [
                {"signerName": SIGNER, "subject": {"user": "u", "groups": ["g"]}},
                {"signerName": "example.com/s", "subject": {"user": "v", "organizationUnit": ["ou"]}},
            ],
        },
    }
    stored = versions.add_on_stored(old)
    assert stored["metadata"]["annotations"] == {versions.INSTALL_NAMESPACE: "tools"}
    assert stored["spec"] == {}
    assert stored["status"] == {
        "registrations": [
            {"type": "kubeClient", "kubeClient": {"subject": {"user": "u", "groups": ["g"]}, "driver": "token"}},
            {
                "type": "customSigner",
                "customSigner": {"signerName": "example.com/s", "subject": {"user": "v", "organizationUnits": ["ou"]}},
            },
        ]
    }
    assert versions.add_on_shown(stored) == old

    def shown(spec: Document, annotations: Document) -> str:
        document = {"metadata": {"name": "metrics", "annotations": annotations}, "spec": spec}
        return str(versions.add_on_shown(versions.add_on_stored(document))["spec"]["installNamespace"])

    annotated = {versions.INSTALL_NAMESPACE: "agents"}
    rows: tuple[tuple[Document, Document, str], ...] = (
        ({}, {}, "open-cluster-management-agent-addon"),
        ({"installNamespace": "tools"}, {}, "tools"),
        ({"installNamespace": "tools"}, annotated, "tools"),
        ({"installNamespace": versions.DEFAULT_NAMESPACE}, annotated, versions.DEFAULT_NAMESPACE),
        ({}, annotated, "agents"),
    )
    check_results(shown, rows)
    old = {"metadata": {"name": "m"}, "spec": {"supportedConfigs": [{"group": "g", "resource": "r"}]}}
    stored = versions.definition_stored(old)
    assert stored["spec"] == {"defaultConfigs": [{"group": "g", "resource": "r", "name": "__reserved_no_default__"}]}
    assert versions.definition_shown(stored) == old
