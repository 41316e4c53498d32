"""What `sortBy` and `groupBy` may say, and what the reference tells of it."""

import re
from pathlib import Path

import pytest

from hub.apiserver.kinds.managedcluster import managed_cluster
from hub.domain.arranging import groups_of, sort_of
from hub.domain.asking import CLUSTER, where_of
from hub.domain.selectable import CLUSTER_ALIASES, CLUSTER_FIELDS, CLUSTER_LABELS
from hub.domain.where import MOVING
from machinery.apiserver.options import list_options, read_continue, selection, write_continue
from machinery.apiserver.storage import Key
from machinery.clock import ManualClock
from machinery.errors import BadRequestError
from machinery.selectors import Operator

REFERENCE = Path(__file__).parents[3] / "docs" / "reference" / "words-of-questions.md"
RESOURCE = managed_cluster()


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("version", [("version", False)]),
        ("-memory, name", [("memory", True), ("name", False)]),
        ('labels["a,b"],-claims.region', [('labels["a,b"]', False), ("claims.region", True)]),
        (".metadata.creationTimestamp", [("age", True)]),
        ("-.metadata.creationTimestamp", [("age", False)]),
        ("{.status.capacity.nvidia\\.com/gpu}", [('capacity["nvidia.com/gpu"]', False)]),
        (".metadata.labels.env", [('labels["env"]', False)]),
    ],
)
def test_an_order_is_words_with_commas_and_the_paths_that_kubectl_knows(text: str, keys: list[tuple[str, bool]]) -> None:
    assert [(by.facet.word, by.descending) for by in sort_of(text).keys] == keys


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("memry", 'did you mean "memory"'),
        ("labels", 'write labels["x"]'),
        ("version,", "commas between"),
        (",", "commas between"),
        ("version < 1.30", "one field and no more"),
        ("name,name,name,name,name", "at most 4"),
        (".status.nothing", "no word for the path"),
        ("has(version)", "one field"),
    ],
)
def test_an_order_that_is_none_is_refused_with_what_would_be_right(text: str, why: str) -> None:
    with pytest.raises(BadRequestError) as refused:
        sort_of(text)
    assert str(refused.value).startswith("sortBy: ")
    assert why in str(refused.value)


def test_ages_are_no_groups() -> None:
    with pytest.raises(BadRequestError, match="lastBeat is another for every cluster"):
        groups_of("version,lastBeat")


def test_a_token_goes_on_in_its_own_order_alone() -> None:
    now = ManualClock().now()
    token = write_continue(Key("", "edge1"), 7, "-memory", ("2511",))
    options = list_options(RESOURCE, "", {"continue": token, "sortBy": "-memory", "limit": "2"}, now)
    assert options.after == Key("", "edge1")
    assert options.selection.order == sort_of("-memory", ("2511",))
    for other in ({}, {"sortBy": "memory"}):
        with pytest.raises(BadRequestError, match="invalid continue token"):
            list_options(RESOURCE, "", {"continue": token, **other}, now)
    with pytest.raises(BadRequestError, match="invalid continue token"):
        read_continue(write_continue(Key("", "a"), 7, "name", ([1],)), "name")  # type: ignore[arg-type]
    with pytest.raises(BadRequestError, match="another order"):
        sort_of("name,memory", ("a",))


@pytest.mark.parametrize(
    ("asked", "label", "operator", "values"),
    [
        ("spec.clusterSet=blue", "cluster.open-cluster-management.io/clusterset", Operator.EQUALS, ("blue",)),
        ("spec.clusterSet=", "cluster.open-cluster-management.io/clusterset", Operator.NOT_EXISTS, ()),
        ("status.addons.search!=", "feature.open-cluster-management.io/addon-search", Operator.EXISTS, ()),
        (
            "status.addons.search!=available",
            "feature.open-cluster-management.io/addon-search",
            Operator.NOT_EQUALS,
            ("available",),
        ),
    ],
)
def test_sets_and_add_ons_are_selected_as_the_labels_that_they_are(
    asked: str, label: str, operator: Operator, values: tuple[str, ...]
) -> None:
    chosen = selection(RESOURCE, "", {"fieldSelector": asked})
    (term,) = chosen.labels.requirements
    assert (term.name, term.operator, term.values) == (label, operator, values)
    assert chosen.fields.requirements == ()


def test_an_add_on_without_a_name_is_no_field() -> None:
    with pytest.raises(BadRequestError, match="field label not supported"):
        selection(RESOURCE, "", {"fieldSelector": "status.addons.=available"})


def test_the_reference_names_every_word_its_type_and_whether_it_is_watched() -> None:
    rows = re.findall(r"^\| `(\w+)` \| .* \| ([a-z ]+) \| (yes|no) \|$", REFERENCE.read_text(), re.MULTILINE)
    told = {word: (kind, watched) for word, kind, watched in rows}
    assert told == {word: (str(source.type), "no" if source.of in MOVING else "yes") for word, source in CLUSTER.items()}


def test_the_reference_names_every_field_of_selectors() -> None:
    text = REFERENCE.read_text()
    for name in (*CLUSTER_FIELDS, *CLUSTER_LABELS):
        assert f"| `{name.removesuffix('*')}" in text, name
    for alias in CLUSTER_ALIASES:
        assert alias in text or f"`.{alias.partition('.')[2]}`" in text


def test_what_moves_is_refused_of_a_watch_alone() -> None:
    assert where_of("lastBeat > 1m && connected", ManualClock().now())
