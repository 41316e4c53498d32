"""Server-side apply of an add-on in the version that is not stored, whose spec has a default that nobody applied."""

from typing import Any

import pytest

from hub.apiserver.kinds.addon import managed_cluster_add_on
from hub.domain.addon_versions import add_on_stored
from machinery.apiserver.ownership import Ownership, with_holdings

GROUP = "addon.open-cluster-management.io"
RESOURCE = managed_cluster_add_on("open-cluster-management.io")
MINE = Ownership(RESOURCE, "ann", f"{GROUP}/v1alpha1", "", "2026-01-01T00:00:00Z")


def stored_after(config: dict[str, Any], old: dict[str, Any] | None) -> dict[str, Any]:
    document, holdings = MINE.applied(config, old, force=False)
    stored = {**add_on_stored(document), "apiVersion": f"{GROUP}/v1beta1"}
    return with_holdings({**stored, "metadata": {**stored["metadata"], "uid": "u", "resourceVersion": "5"}}, holdings)


@pytest.mark.parametrize("spec", [{}, {"installNamespace": "logging"}], ids=str)
def test_what_is_applied_again_stays_as_it_is(spec: dict[str, Any]) -> None:
    config = {
        "apiVersion": f"{GROUP}/v1alpha1",
        "kind": "ManagedClusterAddOn",
        "metadata": {"name": "logs", "namespace": "edge1"},
        "spec": spec,
    }
    first = stored_after(config, None)
    assert stored_after(config, first) == first
    document, _ = MINE.applied(config, first, force=False)
    assert document["spec"]["installNamespace"] == spec.get("installNamespace", "open-cluster-management-agent-addon")
