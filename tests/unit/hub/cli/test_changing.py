"""How label, annotate and taint read their words, and what they make of what is there."""

import pytest

from hub.cli.failures import CommandError
from hub.cli.labelling import read_changes, split
from hub.cli.tainting import read_taints, tainted

OLD = [{"key": "a", "value": "1", "effect": "NoSelect", "timeAdded": "T"}, {"key": "a", "effect": "PreferNoSelect"}]


def test_pairs_follow_the_objects() -> None:
    assert split(("clusters", "edge1", "a=1", "b-")) == (("clusters", "edge1"), ("a=1", "b-"))
    with pytest.raises(CommandError, match='"edge2" is neither'):
        split(("clusters", "edge1", "a=1", "edge2"))


def test_a_key_is_set_or_removed_and_has_one_value() -> None:
    changes = read_changes("labels", ["a=1", "b-", "c=x=y"])
    assert changes.patch == {"a": "1", "b": None, "c": "x=y"}
    for pairs in (["a=1", "a-"], ["a=1", "a=2"]):
        with pytest.raises(CommandError) as refused:
            read_changes("labels", pairs)
        assert refused.value.code == 2


def test_another_value_needs_to_be_overwritten_knowingly() -> None:
    changes = read_changes("labels", ["a=1"])
    changes.check({"a": "1"})
    with pytest.raises(CommandError, match="--overwrite"):
        changes.check({"a": "2"})
    assert not changes.changes({"a": "1"})
    assert changes.changes({})
    assert not read_changes("labels", ["b-"]).changes({"a": "1"})


def apply(*specs: str, overwrite: bool = False) -> list[dict[str, str]]:
    return tainted(OLD, *read_taints(specs), overwrite=overwrite)


def test_a_taint_is_added_beside_others_and_taken_off_by_key_or_effect() -> None:
    assert apply("b=2:NoSelect") == [*OLD, {"key": "b", "value": "2", "effect": "NoSelect"}]
    assert apply("b:NoSelectIfNew")[-1] == {"key": "b", "effect": "NoSelectIfNew"}
    assert apply("a:NoSelect-") == OLD[1:]
    assert apply("a-") == []


def test_a_taint_that_is_there_stays_with_its_time() -> None:
    assert apply("a=1:NoSelect") == OLD


def test_another_value_of_a_taint_is_overwritten_knowingly() -> None:
    with pytest.raises(CommandError, match="--overwrite"):
        apply("a=2:NoSelect")
    assert apply("a=2:NoSelect", overwrite=True) == [OLD[1], {"key": "a", "value": "2", "effect": "NoSelect"}]


def test_a_taint_that_is_not_there_cannot_be_taken_off() -> None:
    with pytest.raises(CommandError) as refused:
        apply("z-")
    assert refused.value.code == 3


@pytest.mark.parametrize(
    ("specs", "words"),
    [
        (["a=1"], "is no taint"),
        (["a"], "lacks its effect"),
        (["a:NoSchedule"], 'no effect "NoSchedule"'),
        (["a=1=2:NoSelect"], "is no taint"),
        ([":NoSelect"], "is no taint"),
        (["a:NoSelect", "a=1:NoSelect"], "given twice"),
        (["a:NoSelect", "a-"], "both set and taken off"),
    ],
)
def test_what_is_no_taint_is_wrong_usage(specs: list[str], words: str) -> None:
    with pytest.raises(CommandError, match=words) as refused:
        read_taints(specs)
    assert refused.value.code == 2
