"""What SQLite does for lists and questions: it searches indexes, and reads documents only of what is answered, by key."""

import sqlite3
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Select, bindparam, select
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import DBAPIError

from bench.queries import QUESTIONS, Question
from hub.api.meta.change import ADDONS, MANAGED_CLUSTERS
from hub.store import schema
from hub.store.changelog import past, retention
from hub.store.engine.engine import parse_url, writing_engine
from hub.store.engine.statements import Statement
from hub.store.migrate import upgrade
from hub.store.query import cluster_queries as questions
from hub.store.query import queries
from hub.store.tables import certificates
from machinery.meta.objects import Key, Query
from machinery.meta.selectors import parse_field_selector, parse_label_selector
from tests.checks import check_each

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


NOW = datetime(2026, 11, 22, tzinfo=UTC)
LIMIT = 100
SCANS = frozenset(("not-available", "outdated", "silent", "largest", "versions"))
"""Questions that may read the inventory whole, one narrow row per cluster; the rest begin at an index."""


def statement_of(question: Question, dialect: str = "sqlite") -> Select[Any]:
    query = question.query(NOW)
    if question.group_by:
        return questions.groups(query, question.facets, dialect)
    return questions.page(query, LIMIT + 1, dialect)


def test_questions_read_the_inventory_alone_where_they_may_and_documents_last_and_by_key(database: sqlite3.Connection) -> None:
    assert {question.name for question in QUESTIONS} >= SCANS
    assert len(QUESTIONS) == 10

    def check(question: Question) -> None:
        statement = statement_of(question)
        found = plan(database, statement)
        whole = {step for step in found if step.startswith("SCAN") and step != "SCAN chosen"}
        assert whole <= ({"SCAN inventory"} if question.name in SCANS else set()), found
        if not question.group_by:
            assert "document" not in str(statement.get_final_froms()[0]).partition(" JOIN objects ")[0]
            read = [step for step in found if " objects " in f"{step} "]
            assert read == ["SEARCH objects USING INDEX sqlite_autoindex_objects_1 (kind=? AND namespace=? AND name=?)"], found

    check_each(check, [(question,) for question in QUESTIONS if not question.is_plain])


PAGE = 4096
FACTS = Statement(select(schema.facts.c.name, schema.facts.c.value).where(schema.facts.c.name != bindparam("but")))


def test_a_disk_that_fails_between_two_rows_is_the_databases_error(tmp_path: Path) -> None:
    file = tmp_path / "hub.db"
    engine = writing_engine(parse_url(f"sqlite:///{file}"))
    upgrade(engine)
    with engine.begin() as connection:
        connection.execute(schema.facts.insert(), [{"name": f"f{number:04}", "value": "x" * 900} for number in range(400)])
    engine.dispose()
    content = bytearray(file.read_bytes())
    place = content.rindex(b"x" * 900) // PAGE * PAGE
    content[place : place + PAGE] = bytes(PAGE)
    file.write_bytes(content)
    with engine.connect() as connection, pytest.raises(DBAPIError):
        FACTS.rows(connection, {"but": ""})
    engine.dispose()
