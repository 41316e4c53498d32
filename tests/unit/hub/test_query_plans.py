"""Selection of objects: field selectors, sortBy and groupBy, and what SQLite does for lists and questions."""

import re
import sqlite3
from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import permutations
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from sqlalchemy import Select, bindparam, select
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import DBAPIError

from bench.queries import QUESTIONS, Question
from hub.api.meta.change import ADDONS, MANAGED_CLUSTERS
from hub.api.query.parsing import CLUSTER, group_query, groups_of, sort_of, where_of
from hub.api.query.selection import CLUSTER_ALIASES, fields_of
from hub.registry.managedclusteraddons.resource import MANAGED_CLUSTER_ADD_ON
from hub.registry.managedclusters.resource import MANAGED_CLUSTER
from hub.store import schema
from hub.store.changelog import past, retention
from hub.store.engine.engine import parse_url, writing_engine
from hub.store.engine.statements import Statement
from hub.store.migrate import upgrade
from hub.store.query import cluster_queries as questions, queries
from hub.store.tables import certificates
from hubctl.arguments.completion import QUERY_FIELDS
from hubctl.commands.objects.get import get
from machinery.apiserver.http.options import list_options, read_continue, selection, write_continue
from machinery.errors import BadRequestError
from machinery.meta.objects import Document, Key, Query
from machinery.meta.selectors import Operator, parse_field_selector, parse_label_selector
from machinery.runtime.clock import ManualClock
from tests.checks import CASE_FILES, check_each, check_refusal, check_refusals, check_results

TABLES = yaml.safe_load((CASE_FILES / "queries.yaml").read_text())

REGION = parse_label_selector("region=eu,cloud in (a,b),tier!=test").requirements
SCANS = frozenset(("not-available", "outdated", "silent", "largest", "versions"))
"""Questions that may read the inventory whole, one narrow row per cluster; the rest begin at an index."""
PAGE = 4096
FACTS = Statement(select(schema.facts.c.name, schema.facts.c.value).where(schema.facts.c.name != bindparam("but")))
RESOURCE = MANAGED_CLUSTER.named()


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
        Query(fields=parse_field_selector("metadata.name=a")),
        Query(labels=REGION, namespace="a", after=Key("a", "b")),
    )
    many = [(queries.many(ADDONS, query, 101, "sqlite")) for query in lists]
    check_plans(database, [statement.params(values) for statement, values in many], "SCAN")
    pages = (Query(), Query(after=Key("", "a")), Query(namespace="a", after=Key("a", "b")))
    many = [(queries.many(MANAGED_CLUSTERS, query, 101, "sqlite")) for query in pages]
    check_plans(database, [statement.params(values) for statement, values in many], "TEMP B-TREE")
    for namespace in (None, "a"):
        statement, values = queries.count(MANAGED_CLUSTERS, Query(namespace=namespace, after=Key("a", "b")), "sqlite")
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


def statement_of(question: Question, dialect: str = "sqlite") -> Select[Any]:
    query = question.query(datetime(2026, 11, 22, tzinfo=UTC))
    if question.group_by:
        return questions.groups(query, question.facets, dialect)
    return questions.page(query, 101, dialect)


def test_questions_read_the_inventory_alone_where_they_may_and_documents_last_and_by_key(database: sqlite3.Connection) -> None:
    assert ({question.name for question in QUESTIONS} >= SCANS, len(QUESTIONS)) == (True, 10)

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
    agents = [
        Question(each, where=each) for each in ("certificateExpiresIn < 7d", "flaps > 3", 'replica == "a"', 'driver == "csr"')
    ]
    check_plans(database, map(statement_of, agents), "SCAN ends", "SCAN falls", "SCAN sessions", "SCAN heartbeats")
    check_plans(database, [statement_of(Question("rows of a page", where='name in ["a", "b"]'))], "SCAN inventory")


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


EAST: Document = TABLES["cluster"]


def test_clusters_are_selected_by_their_status_and_known_fields_alone() -> None:
    known = fields_of(MANAGED_CLUSTERS, EAST)
    check_results(
        lambda each: selection(RESOURCE, "", {"fieldSelector": each}).matches(Key("", "east"), {}, known), TABLES["selected"]
    )
    assert fields_of(MANAGED_CLUSTERS, {"metadata": {"name": "new"}}) == {"spec.hubAcceptsClient": "false"}
    for effects in permutations(("NoSelect", "PreferNoSelect", "NoSelectIfNew")):
        taints = [{"key": "a", "effect": effect} for effect in effects]
        assert fields_of(MANAGED_CLUSTERS, {"metadata": {}, "spec": {"taints": taints}})["spec.taints.a"] == "NoSelect"
    unknown = ("status.conditions=True", "spec.taints=x", "status.capacity.nodes=3", "metadata.uid=x")
    select = lambda selector: selection(RESOURCE, "", {"fieldSelector": selector})  # noqa: E731 - one line
    check_refusals(BadRequestError, select, [(selector, "field label not supported") for selector in unknown])
    assert all(RESOURCE.selectable_name(name) == known for name, known in CLUSTER_ALIASES.items())
    assert MANAGED_CLUSTER_ADD_ON.named().selectable_name("status.available") == "status.conditions.Available"


def test_order_is_a_list_of_words_or_of_kubectls_paths_or_refused() -> None:
    check_results(lambda text: [[by.facet.word, by.descending] for by in sort_of(text).keys], TABLES["orders"])
    check_refusals(BadRequestError, sort_of, [(text, f"^sortBy: .*{re.escape(why)}") for text, why in TABLES["wrong orders"]])
    check_refusal(BadRequestError, groups_of, "version,lastBeat", match="lastBeat differs for every cluster")
    check_refusals(BadRequestError, lambda row: group_query(*row), [(row[:3], f"^{row[3]}") for row in TABLES["wrong groups"]])


def test_groups_are_sorted_by_their_words_counts_and_sums() -> None:
    rows = [("1.9", "a", "25011", 3), (None, "b", None, 3), ("1.10", "a", "25015", 1), ("1.10", "c", "250015", 1)]

    def sorted_by(order: str) -> list[str]:
        grouping = group_query("version.minor,name", "memory", order)
        return [",".join(map(str, grouping.answer(each))) for each in grouping.groups(rows)]

    first, second, third, last = "1.9,a,3,30", "None,b,3,None", "1.10,a,1,50", "1.10,c,1,1500m"
    orders = (
        *(("", [second, first, third, last]), ("version.minor,-name", [first, last, third, second])),
        *(("-version.minor", [third, last, first, second]), ("-memory", [third, first, last, second])),
        *(("memory", [last, first, third, second]), ("count,-memory", [third, last, first, second])),
    )
    check_results(sorted_by, orders)


def test_continue_token_is_valid_for_its_own_order_alone() -> None:
    now, token = ManualClock().now(), write_continue(Key("", "edge1"), 7, "-memory", ("2511",))
    options = list_options(RESOURCE, "", {"continue": token, "sortBy": "-memory", "limit": "2"}, now)
    assert (options.query.after, options.query.order) == (Key("", "edge1"), sort_of("-memory", ("2511",)))
    for other in ({}, {"sortBy": "memory"}):
        with pytest.raises(BadRequestError, match="invalid continue token"):
            list_options(RESOURCE, "", {"continue": token, **other}, now)
    with pytest.raises(BadRequestError, match="invalid continue token"):
        read_continue(write_continue(Key("", "a"), 7, "name", ([1],)), "name")  # type: ignore[arg-type]
    check_refusal(BadRequestError, sort_of, "name,memory", ("a",), match="another order")
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
    check_refusal(BadRequestError, selected, "status.addons.=available", match="field label not supported")


def test_hubctl_and_its_help_list_every_field_of_conditions() -> None:
    assert sorted(CLUSTER) == sorted(QUERY_FIELDS)
    assert [word for word in CLUSTER if not re.search(rf"\b{word}\b", cast("str", get.help))] == []
