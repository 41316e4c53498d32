"""What SQLite does for the queries behind lists: it searches indexes, and reads documents only of what is answered."""

import sqlite3
from typing import Any

import pytest
from sqlalchemy import Select
from sqlalchemy.dialects import sqlite

from hub.domain.change import ADDONS, MANAGED_CLUSTERS, Key, Query
from hub.store import certificates, past, queries, retention
from machinery.selectors import parse_field_selector, parse_label_selector

REGION = parse_label_selector("region=eu,cloud in (a,b),tier!=test").requirements
NAMED = parse_field_selector("metadata.name=a").requirements


def plan(database: sqlite3.Connection, statement: object) -> list[str]:
    compiled = statement.compile(dialect=sqlite.dialect(), compile_kwargs={"render_postcompile": True})  # type: ignore[attr-defined]
    count = str(compiled).count("?")
    return [row[3] for row in database.execute(f"EXPLAIN QUERY PLAN {compiled}", ("",) * count)]


@pytest.mark.parametrize(
    "query",
    [
        Query(),
        Query(namespace="a"),
        Query(after=Key("", "a")),
        Query(labels=REGION),
        Query(fields=NAMED),
        Query(labels=REGION, namespace="a", after=Key("a", "b")),
    ],
)
def test_a_list_scans_no_table(database: sqlite3.Connection, query: Query) -> None:
    statement, values = queries.many(ADDONS, query, 101, "sqlite")
    steps = plan(database, statement.params(values))
    assert steps
    assert not [step for step in steps if step.startswith("SCAN")], steps


@pytest.mark.parametrize("query", [Query(), Query(after=Key("", "a")), Query(namespace="a", after=Key("a", "b"))])
def test_a_page_comes_in_the_order_of_the_index(database: sqlite3.Connection, query: Query) -> None:
    statement, values = queries.many(MANAGED_CLUSTERS, query, 101, "sqlite")
    assert not [step for step in plan(database, statement.params(values)) if "TEMP B-TREE" in step]


@pytest.mark.parametrize("namespace", [None, "a"])
def test_what_remains_is_counted_on_the_index_alone(database: sqlite3.Connection, namespace: str | None) -> None:
    statement, values = queries.count_after(MANAGED_CLUSTERS, namespace, Key("a", "b"))
    steps = [step for step in plan(database, statement.params(values)) if "objects" in step]
    assert steps
    assert all("USING COVERING INDEX" in step for step in steps), steps


@pytest.mark.parametrize("places", [past._PLACES, past._PLACES_OF])
def test_a_page_of_the_past_finds_its_places_on_the_index_alone(database: sqlite3.Connection, places: object) -> None:
    steps = plan(database, places)
    assert any("USING COVERING INDEX" in step for step in steps), steps
    assert not [step for step in steps if "TEMP B-TREE" in step or step.startswith("SCAN")], steps


@pytest.mark.parametrize(
    "statement", [past._OF_ONE, past._AT_OR_BEFORE, past._FIRST_AFTER, past._MOMENT_OF, past._MOMENT_AFTER]
)
def test_a_look_into_the_past_of_one_object_or_moment_scans_nothing(database: sqlite3.Connection, statement: object) -> None:
    """However long the history is."""
    steps = plan(database, statement)
    assert not [step for step in steps if "TEMP B-TREE" in step or step.startswith("SCAN")], steps


@pytest.mark.parametrize("statement", [retention._NEXT, *retention.UNREMEMBERED_ROWS, *retention.REMEMBERED_ROWS])
def test_a_portion_of_the_log_is_trimmed_without_a_look_at_the_rest(
    database: sqlite3.Connection, statement: Select[Any]
) -> None:
    steps = plan(database, statement.params(bound=1, point=2, limit=3))
    assert not [step for step in steps if "TEMP B-TREE" in step or step.startswith("SCAN")], steps


@pytest.mark.parametrize("statement", certificates.LOOKED_FOR)
def test_what_is_looked_for_among_all_certificates_scans_none(database: sqlite3.Connection, statement: Select[Any]) -> None:
    steps = plan(database, statement)
    assert steps
    assert not [step for step in steps if step.startswith("SCAN")], steps
