"""Plans on PostgreSQL: what the ten questions read whole, where documents come in, and what is found among all certificates."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, text

from bench.queries import QUESTIONS, fill
from hub.store.engine.engine import migrating_engine, parse_url
from hub.store.tables import certificates
from tests.fixtures.postgres import Databases
from tests.unit.hub.test_query_plans import statement_of

pytestmark = pytest.mark.postgres

CLUSTERS = 300
NARROW = frozenset(("inventory", "heartbeats", "labels"))
"""Tables with few narrow rows per cluster: reading them whole may cost less than an index, and at this size does. The `fields`
and documents are never read whole to choose."""


@pytest.fixture(scope="module")
def database(postgres_databases: Databases) -> Iterator[Connection]:
    with postgres_databases.migrated() as url:
        asyncio.run(fill(url, CLUSTERS))
        engine = migrating_engine(parse_url(url))
        with engine.connect() as connection:
            connection.execute(text("ANALYZE"))
            yield connection
        engine.dispose()


def nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for inner in node.get("Plans", ()):
        yield from nodes(inner)


def plan(database: Connection, question: Any) -> dict[str, Any]:
    statement = statement_of(question, "postgresql")
    compiled = statement.compile(database.engine, compile_kwargs={"literal_binds": True})
    found = database.exec_driver_sql(f"EXPLAIN (VERBOSE, FORMAT JSON) {str(compiled).replace('%', '%%')}").scalar_one()
    whole: dict[str, Any] = (json.loads(found) if isinstance(found, str) else found)[0]["Plan"]
    return whole


def test_only_narrow_tables_are_read_whole_and_no_document_is_read_to_choose(database: Connection) -> None:
    for question in (each for each in QUESTIONS if not each.is_plain):
        found = plan(database, question)
        whole = {node["Relation Name"] for node in nodes(found) if node["Node Type"] == "Seq Scan"}
        assert whole - {"objects"} <= NARROW, (question.name, found)
        choosing = [found] if question.group_by else [node for node in nodes(found) if node["Node Type"] == "Limit"]
        assert choosing, question.name
        for node in nodes(choosing[-1]):
            assert node.get("Relation Name") != "objects", (question.name, node)
            assert not any("document" in column for column in node.get("Output", ())), (question.name, node)


def test_what_is_looked_for_among_all_certificates_scans_none(database: Connection) -> None:
    """A table without rows is scanned whatever indexes it has, unless that is made dear: then only where none fits."""
    values = {"value": "a", "moment": 1, "ended_before": 1, "purpose": "agent", "limit": 9}
    for statement in certificates.LOOKED_FOR:
        names = statement.compile(dialect=database.dialect).params
        chosen = statement.params({name: values[name] for name in names})
        compiled = chosen.compile(database.engine, compile_kwargs={"literal_binds": True})
        with database.begin_nested():
            database.execute(text("SET LOCAL enable_seqscan = off"))
            found = database.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {compiled}").scalar_one()
        whole = (json.loads(found) if isinstance(found, str) else found)[0]["Plan"]
        assert not [node for node in nodes(whole) if node["Node Type"] == "Seq Scan"], (str(statement), whole)
