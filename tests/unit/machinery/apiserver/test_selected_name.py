"""The one name that a field selector leaves, as authorizers see it."""

import pytest

from machinery.apiserver.paths import attributes

PATH = "/apis/cluster.open-cluster-management.io/v1/managedclusters"


@pytest.mark.parametrize(
    ("selector", "name"),
    [
        ("metadata.name=edge1", "edge1"),
        ("metadata.name==edge1", "edge1"),
        ("spec.x=1,metadata.name=edge1", "edge1"),
        ("metadata.name!=edge1", ""),
        ("metadata.namespace=edge1", ""),
        ("xmetadata.name=edge1", ""),
        (r"metadata.namespace!=\,metadata.name=edge1", ""),
        ("metadata.name=edge1,nonsense", ""),
        ("", ""),
    ],
)
def test_a_list_by_name_names_its_object(selector: str, name: str) -> None:
    asked = attributes("GET", PATH, {"fieldSelector": selector})
    assert (asked.verb, asked.name, asked.selected_name) == ("list", "", name)


def test_a_named_object_is_not_renamed_by_a_selector() -> None:
    asked = attributes("GET", f"{PATH}/edge1", {"fieldSelector": "metadata.name=edge2"})
    assert (asked.name, asked.selected_name) == ("edge1", "")
