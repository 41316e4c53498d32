"""Ten questions that operators ask: which tables they read whole on the embedded database, and that no document is among them.

`SCANS` is the list of those that may read the inventory, one narrow row per cluster, from its beginning to its end. Nothing
else is ever read whole, and documents are read by key, of what is answered alone.
"""

import sqlite3
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Select
from sqlalchemy.dialects import sqlite

from bench.asking_questions import QUESTIONS, Question
from hub.store import questions
from tests.checks import check_each

NOW = datetime(2026, 11, 22, tzinfo=UTC)
LIMIT = 100
SCANS = frozenset(("not-available", "outdated", "silent", "largest", "versions"))
"""The rest begins at an index: an equal label, claim or taint."""


def statement_of(question: Question, dialect: str = "sqlite") -> Select[Any]:
    query = question.query(NOW)
    if question.group_by:
        return questions.groups(query, question.facets, dialect)
    return questions.page(query, LIMIT + 1, dialect)


def steps(database: sqlite3.Connection, statement: Select[Any]) -> list[str]:
    compiled = statement.compile(dialect=sqlite.dialect(), compile_kwargs={"render_postcompile": True})
    return [row[3] for row in database.execute(f"EXPLAIN QUERY PLAN {compiled}", ("",) * str(compiled).count("?"))]


def test_questions_read_the_inventory_alone_where_they_may_and_documents_last_and_by_key(database: sqlite3.Connection) -> None:
    assert {question.name for question in QUESTIONS} >= SCANS
    assert len(QUESTIONS) == 10

    def check(question: Question) -> None:
        statement = statement_of(question)
        found = steps(database, statement)
        whole = {step for step in found if step.startswith("SCAN") and step != "SCAN chosen"}
        assert whole <= ({"SCAN inventory"} if question.name in SCANS else set()), found
        if not question.group_by:
            assert "document" not in str(statement.get_final_froms()[0]).partition(" JOIN objects ")[0]
            read = [step for step in found if " objects " in f"{step} "]
            assert read == ["SEARCH objects USING INDEX sqlite_autoindex_objects_1 (kind=? AND namespace=? AND name=?)"], found

    check_each(check, [(question,) for question in QUESTIONS if not question.is_plain])
