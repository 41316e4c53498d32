"""Counts of objects by field values, as a Table."""

from collections.abc import Sequence
from typing import Any

from machinery.apiserver.resource import Groups

GROUP_BY = "groupBy"


def counts_table(words: Sequence[str], groups: Groups, revision: int) -> dict[str, Any]:
    """One row per group: its values (null: no value), then the count. The rows have no objects."""
    columns = [{"name": word, "type": "string", "format": "", "description": word, "priority": 0} for word in words]
    count = {"name": "Count", "type": "integer", "format": "", "description": "How many there are.", "priority": 0}
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": str(revision)},
        "columnDefinitions": [*columns, count],
        "rows": [{"cells": [*values, number], "object": None} for values, number in groups],
    }
