"""Differences between two states of an object: readable paths, list entries known by their names."""

from typing import Any

from machinery.differences import differences, readable


def found(before: Any, after: Any) -> list[tuple[str, Any, Any]]:
    return [(each.path, each.before, each.after) for each in differences(before, after)]


def test_differences_are_named_by_their_fields() -> None:
    rows: list[tuple[Any, Any, Any]] = [
        ({"a": {"b": 1}}, {"a": {"b": 2}}, [("a.b", 1, 2)]),
        ({"a": {"b": 1}}, {"a": {"b": 1}}, []),
        ({}, {"a": {"b": 1}}, [("a", None, {"b": 1})]),
        ({"a": {"b": 1}}, {}, [("a", {"b": 1}, None)]),
        ({"a": 0}, {"a": False}, []),
        ({"a": [1, 2]}, {"a": [2, 1]}, [("a", [1, 2], [2, 1])]),
        (
            {"metadata": {"labels": {"x.io/y": "1", "env": "prod"}}},
            {"metadata": {"labels": {"x.io/y": "2", "env": "test"}}},
            [('metadata.labels["x.io/y"]', "1", "2"), ("metadata.labels.env", "prod", "test")],
        ),
        (
            {"c": [{"type": "A", "status": "True"}, {"type": "B", "status": "True"}]},
            {"c": [{"type": "B", "status": "False"}, {"type": "A", "status": "True"}]},
            [("c[B].status", "True", "False")],
        ),
        (
            {"taints": [{"key": "k", "effect": "NoSelect", "value": "1"}, {"key": "k", "effect": "Prefer"}]},
            {"taints": [{"key": "k", "effect": "NoSelect", "value": "2"}]},
            [("taints[k:NoSelect].value", "1", "2"), ("taints[k:Prefer]", {"key": "k", "effect": "Prefer"}, None)],
        ),
        ({"l": [{"name": "a"}, {"name": "a"}]}, {"l": []}, [("l", [{"name": "a"}, {"name": "a"}], [])]),
        ({"l": [{"name": "a"}, 5]}, {"l": [5]}, [("l", [{"name": "a"}, 5], [5])]),
    ]
    assert [(before, after, expected) for before, after, expected in rows if found(before, after) != expected] == []

    before = {"metadata": {"name": "a", "resourceVersion": "1", "generation": 1, "managedFields": [1]}}
    after = {"metadata": {"name": "a", "resourceVersion": "2", "generation": 2, "managedFields": [2], "labels": {"a": "b"}}}
    assert found(before, after) == [("metadata.labels", None, {"a": "b"})]
    assert readable(before) == {"metadata": {"name": "a"}}

    assert found(None, {"kind": "K", "spec": {"a": 1}}) == [("kind", None, "K"), ("spec", None, {"a": 1})]
    assert list(differences(None, None)) == []
