"""The suffix of our API groups."""

import pytest

from machinery.product import GROUP_SUFFIX, suffixed


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (f"cluster.{GROUP_SUFFIX}/v1", "cluster.example.org/v1"),
        (f"addon.{GROUP_SUFFIX}", "addon.example.org"),
        (f"work.{GROUP_SUFFIX}/v1", f"work.{GROUP_SUFFIX}/v1"),
        ("cluster.example.org/v1", "cluster.example.org/v1"),
        ("coordination.k8s.io/v1", "coordination.k8s.io/v1"),
        ("v1", "v1"),
        ("", ""),
    ],
)
def test_only_groups_of_ours_change(given: str, expected: str) -> None:
    assert suffixed(given, "example.org") == expected
