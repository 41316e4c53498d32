"""The documents of discovery: order, versions, names that cannot be served."""

import json

import pytest

from machinery.apiserver.discovery import Discovery, aggregated_version
from machinery.apiserver.negotiation import etag_matches, takes_gzip
from machinery.apiserver.resource import Group, Resource, Version, version_order


def resource(group: str, name: str, *, version: str = "v1", others: tuple[str, ...] = (), custom: bool = True) -> Resource:
    versions = tuple(Version(other, {}, lambda document: document, lambda document: document) for other in others)
    return Resource(group=group, version=version, name=name, kind=name.capitalize(), versions=versions, custom=custom)


def test_groups_stand_by_priority_and_then_by_name() -> None:
    groups = [
        Group("b.example.com", (resource("b.example.com", "bees"),)),
        Group("z.k8s.io", (resource("z.k8s.io", "zebras", custom=False),)),
        Group("a.example.com", (resource("a.example.com", "ants"),)),
    ]
    discovery = Discovery(groups)
    aggregated = json.loads(discovery.aggregated("v2", core=False)[0])
    expected = ["z.k8s.io", "a.example.com", "b.example.com"]

    assert [group["name"] for group in discovery.group_list()["groups"]] == expected
    assert [group["metadata"]["name"] for group in aggregated["items"]] == expected


def test_the_stored_version_is_preferred_and_the_others_follow_by_maturity() -> None:
    group = Group("a.example.com", (resource("a.example.com", "ants", version="v1beta1", others=("v1alpha1", "v2", "v1")),))

    assert group.versions == ("v1beta1", "v2", "v1", "v1alpha1")
    assert Discovery([group]).api_group(group)["preferredVersion"]["version"] == "v1beta1"


def test_versions_sort_as_kubernetes_sorts_them() -> None:
    ordered = ["v10", "v2", "v1", "v11beta2", "v10beta3", "v3beta1", "v12alpha1", "v11alpha2", "foo1", "foo10"]
    assert sorted(sorted(ordered), key=version_order) == ordered


@pytest.mark.parametrize(
    "groups",
    [
        [Group("a", (resource("a", "ants"),)), Group("a", (resource("a", "bees"),))],
        [Group("a", ())],
        [Group("a", (resource("a", "Ants"),))],
        [Group("a", (resource("b", "ants"),))],
        [Group("a", (resource("a", "ants", version=""),))],
    ],
)
def test_what_no_client_could_use_is_refused_when_the_server_is_built(groups: list[Group]) -> None:
    with pytest.raises(ValueError, match="group"):
        Discovery(groups)


@pytest.mark.parametrize(
    ("accept", "version"),
    [
        ("application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json", "v2"),
        ("application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList", "v2beta1"),
        ("application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList;q=0.3,application/json", None),
        ("application/json;g=apidiscovery.k8s.io;v=v3;as=APIGroupDiscoveryList,application/json", None),
        ("application/json", None),
        ("", None),
    ],
)
def test_the_aggregated_form_is_chosen_by_accept(accept: str, version: str | None) -> None:
    assert aggregated_version(accept) == version


@pytest.mark.parametrize(
    ("header", "wanted"),
    [
        ("gzip", True),
        ("gzip, deflate, br", True),
        ("*", True),
        ("identity", False),
        ("", False),
        ("gzip;q=0", False),
        ("*, gzip;q=0", False),
    ],
)
def test_gzip_is_for_whom_takes_it(header: str, wanted: bool) -> None:  # noqa: FBT001 - a table
    assert takes_gzip(header) is wanted


@pytest.mark.parametrize(
    ("header", "matches"), [('"a"', True), ('W/"a"', True), ('"b", "a"', True), ("*", True), ('"b"', False), ("", False)]
)
def test_an_etag_is_known_in_any_of_its_spellings(header: str, matches: bool) -> None:  # noqa: FBT001 - a table
    assert etag_matches(header, '"a"') is matches
