"""What server-side apply leaves of an object's metadata."""

from typing import Any

import pytest

from machinery.apiserver.kinds.core import NAMESPACE
from machinery.apiserver.ownership import Ownership, with_holdings

MINE = Ownership(NAMESPACE, "ann", "v1", "", "2026-01-01T00:00:00Z")
OF_THE_SERVER = {"uid": "u", "resourceVersion": "5", "creationTimestamp": "2026-01-01T00:00:00Z"}


def manifest(**metadata: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "edge", **metadata}}


@pytest.mark.parametrize("metadata", [{}, {"labels": {}}, {"labels": None}], ids=str)
def test_who_takes_the_last_label_back_leaves_the_metadata(metadata: dict[str, Any]) -> None:
    document, holdings = MINE.applied(manifest(labels={"team": "north"}), None, force=False)
    stored = with_holdings({**document, "metadata": {**document["metadata"], **OF_THE_SERVER}}, holdings)
    after, _ = MINE.applied(manifest(**metadata), stored, force=False)
    kept = {name: value for name, value in after["metadata"].items() if name != "managedFields"}
    assert kept == {"name": "edge", **OF_THE_SERVER}
