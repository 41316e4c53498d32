"""Selection of objects: field selectors, sortBy and groupBy."""

import re
from pathlib import Path
from typing import Any

import pytest

from hub.api.meta.change import MANAGED_CLUSTERS
from hub.api.query.expressions import MOVING
from hub.api.query.parsing import CLUSTER, groups_of, sort_of, where_of
from hub.api.query.selection import CLUSTER_ALIASES, CLUSTER_FIELDS, CLUSTER_LABELS, fields_of
from hub.registry.managedclusteraddons.resource import MANAGED_CLUSTER_ADD_ON
from hub.registry.managedclusters.resource import MANAGED_CLUSTER
from machinery.apiserver.http.options import list_options, read_continue, selection, write_continue
from machinery.errors import BadRequestError
from machinery.meta.objects import Document, Key
from machinery.meta.selectors import Operator
from machinery.runtime.clock import ManualClock
from tests.checks import check_refusals, check_results

EAST: Document = {
    "metadata": {"name": "east"},
    "spec": {"hubAcceptsClient": True},
    "status": {
        "version": {"kubernetes": "v1.34.2"},
        "conditions": [
            {"type": "ManagedClusterConditionAvailable", "status": "Unknown"},
            {"type": "ManagedClusterJoined", "status": "True"},
        ],
        "clusterClaims": [{"name": "region.example.com", "value": "eu"}, {"name": "empty"}],
    },
}


def test_clusters_are_selected_by_their_status_and_known_fields_alone() -> None:
    rows = (
        ("spec.hubAcceptsClient=true", True),
        ("spec.hubAcceptsClient=false", False),
        ("status.available=Unknown", True),
        ("status.available!=True", True),
        ("status.available=True", False),
        ("status.joined=True,status.available=Unknown", True),
        ("status.accepted=", True),
        ("status.accepted=True", False),
        ("status.conditions.ManagedClusterJoined=True", True),
        ("status.conditions.ManagedClusterConditionAvailable=Unknown", True),
        ("status.version.kubernetes=v1.34.2", True),
        ("status.version.kubernetes!=v1.34.2", False),
        ("status.clusterClaims.region.example.com=eu", True),
        ("status.clusterClaims.region.example.com=us", False),
        ("status.clusterClaims.empty=", True),
        ("metadata.name=east,status.available=Unknown", True),
    )
    known = fields_of(MANAGED_CLUSTERS, EAST)
    check_results(
        lambda selector: selection(MANAGED_CLUSTER.named(), "", {"fieldSelector": selector}).matches(
            Key("", "east"), {}, known
        ),
        rows,
    )
    assert fields_of(MANAGED_CLUSTERS, {"metadata": {"name": "new"}}) == {"spec.hubAcceptsClient": "false"}
    resource, unknown = (
        MANAGED_CLUSTER.named(),
        ("status.conditions=True", "spec.taints=x", "status.capacity.nodes=3", "metadata.uid=x"),
    )
    select = lambda selector: selection(resource, "", {"fieldSelector": selector})  # noqa: E731 - one line
    check_refusals(BadRequestError, select, [(selector, "field label not supported") for selector in unknown])
    assert all(resource.selectable_name(name) == known for name, known in CLUSTER_ALIASES.items())
    assert MANAGED_CLUSTER_ADD_ON.named().selectable_name("status.available") == "status.conditions.Available"


REFERENCE = Path(__file__).parents[3] / "docs" / "reference" / "words-of-questions.md"
RESOURCE = MANAGED_CLUSTER.named()


def test_order_is_a_list_of_words_or_of_kubectls_paths_or_refused() -> None:
    rows = (
        ("version", [("version", False)]),
        ("-memory, name", [("memory", True), ("name", False)]),
        ('labels["a,b"],-claims.region', [('labels["a,b"]', False), ("claims.region", True)]),
        (".metadata.creationTimestamp", [("age", True)]),
        ("-.metadata.creationTimestamp", [("age", False)]),
        ("{.status.capacity.nvidia\\.com/gpu}", [('capacity["nvidia.com/gpu"]', False)]),
        (".metadata.labels.env", [('labels["env"]', False)]),
    )
    check_results(lambda text: [(by.facet.word, by.descending) for by in sort_of(text).keys], rows)
    wrong = (
        ("memry", 'did you mean "memory"'),
        ("labels", 'write labels["x"]'),
        ("version,", "commas between"),
        (",", "commas between"),
        ("version < 1.30", "one field and no more"),
        ("name,name,name,name,name", "at most 4"),
        (".status.nothing", "no word for the path"),
        ("has(version)", "one field"),
    )
    check_refusals(BadRequestError, sort_of, [(text, f"^sortBy: .*{re.escape(why)}") for text, why in wrong])
    with pytest.raises(BadRequestError, match="lastBeat is another for every cluster"):
        groups_of("version,lastBeat")


def test_continue_token_is_valid_for_its_own_order_alone() -> None:
    now = ManualClock().now()
    token = write_continue(Key("", "edge1"), 7, "-memory", ("2511",))
    options = list_options(RESOURCE, "", {"continue": token, "sortBy": "-memory", "limit": "2"}, now)
    assert options.query.after == Key("", "edge1")
    assert options.query.order == sort_of("-memory", ("2511",))
    for other in ({}, {"sortBy": "memory"}):
        with pytest.raises(BadRequestError, match="invalid continue token"):
            list_options(RESOURCE, "", {"continue": token, **other}, now)
    with pytest.raises(BadRequestError, match="invalid continue token"):
        read_continue(write_continue(Key("", "a"), 7, "name", ([1],)), "name")  # type: ignore[arg-type]
    with pytest.raises(BadRequestError, match="another order"):
        sort_of("name,memory", ("a",))
    assert where_of("lastBeat > 1m && connected", now), "only a watch refuses fields that change with time"


def test_sets_and_add_ons_are_selected_as_labels() -> None:
    cluster_set = "cluster.open-cluster-management.io/clusterset"
    search = "feature.open-cluster-management.io/addon-search"

    def selected(asked: str) -> tuple[Any, ...]:
        chosen = selection(RESOURCE, "", {"fieldSelector": asked})
        (term,) = chosen.labels
        assert chosen.fields == ()
        return term.name, term.operator, term.values

    rows = (
        ("spec.clusterSet=blue", (cluster_set, Operator.EQUALS, ("blue",))),
        ("spec.clusterSet=", (cluster_set, Operator.NOT_EXISTS, ())),
        ("status.addons.search!=", (search, Operator.EXISTS, ())),
        ("status.addons.search!=available", (search, Operator.NOT_EQUALS, ("available",))),
    )
    check_results(selected, rows)
    with pytest.raises(BadRequestError, match="field label not supported"):
        selected("status.addons.=available")


def test_reference_lists_every_word_with_its_type_and_every_field() -> None:
    text = REFERENCE.read_text()
    rows = re.findall(r"^\| `(\w+)` \| .* \| ([a-z ]+) \| (yes|no) \|$", text, re.MULTILINE)
    listed = {word: (kind, watched) for word, kind, watched in rows}
    assert listed == {word: (str(source.type), "no" if source.of in MOVING else "yes") for word, source in CLUSTER.items()}
    assert [name for name in (*CLUSTER_FIELDS, *CLUSTER_LABELS) if f"| `{name.removesuffix('*')}" not in text] == []
    assert [each for each in CLUSTER_ALIASES if each not in text and f"`.{each.partition('.')[2]}`" not in text] == []
