"""What SQLite does for the queries behind lists: it searches indexes, and reads documents only of what is answered."""

import sqlite3
from collections.abc import Iterable
from typing import Any

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


def check_plans(database: sqlite3.Connection, statements: Iterable[Any], *avoided: str) -> None:
    """Each plan has steps, and none that begins with, or contains, one of these."""
    plans = [plan(database, statement) for statement in statements]
    assert [steps for steps in plans if not steps or any(word in step for step in steps for word in avoided)] == []


def test_lists_search_indexes_and_pages_come_in_their_order(database: sqlite3.Connection) -> None:
    lists = (
        Query(),
        Query(namespace="a"),
        Query(after=Key("", "a")),
        Query(labels=REGION),
        Query(fields=NAMED),
        Query(labels=REGION, namespace="a", after=Key("a", "b")),
    )
    many = [(queries.many(ADDONS, query, 101, "sqlite")) for query in lists]
    check_plans(database, [statement.params(values) for statement, values in many], "SCAN")
    pages = (Query(), Query(after=Key("", "a")), Query(namespace="a", after=Key("a", "b")))
    many = [(queries.many(MANAGED_CLUSTERS, query, 101, "sqlite")) for query in pages]
    check_plans(database, [statement.params(values) for statement, values in many], "TEMP B-TREE")
    for namespace in (None, "a"):
        statement, values = queries.count_after(MANAGED_CLUSTERS, namespace, Key("a", "b"))
        steps = [step for step in plan(database, statement.params(values)) if "objects" in step]
        assert steps
        assert all("USING COVERING INDEX" in step for step in steps), steps


def test_looks_into_the_past_and_trims_scan_nothing_however_long_the_history_is(database: sqlite3.Connection) -> None:
    places = (past._PLACES, past._PLACES_OF)
    assert all(any("USING COVERING INDEX" in step for step in plan(database, statement)) for statement in places)
    moments = (past._OF_ONE, past._AT_OR_BEFORE, past._FIRST_AFTER, past._MOMENT_OF, past._MOMENT_AFTER)
    trims = (retention._NEXT, *retention.UNREMEMBERED_ROWS, *retention.REMEMBERED_ROWS)
    bound = [statement.params(bound=1, point=2, limit=3) for statement in trims]
    check_plans(database, [*places, *moments, *bound], "TEMP B-TREE", "SCAN")


def test_searches_among_all_certificates_scan_none(database: sqlite3.Connection) -> None:
    check_plans(database, certificates.LOOKED_FOR, "SCAN")
