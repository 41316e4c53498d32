"""Forms of output: which there are, and how each prints objects."""

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from hub.cli.customcolumns import columns_in, columns_of
from hub.cli.failures import CommandError
from hub.cli.outputs import Form, FormType, argument_of
from hub.cli.printers import InPages, Look, printer_of
from hub.cli.resources import ADDONS, CLUSTERS, Resource
from hub.cli.sheets import sheet

EDGE: dict[str, Any] = {
    "apiVersion": "cluster.open-cluster-management.io/v1",
    "kind": "ManagedCluster",
    "metadata": {"name": "edge1", "labels": {"b/c": "2", "a": "1"}},
    "status": {"version": {"kubernetes": "v1.31"}, "nothing": None},
}
LIST: dict[str, Any] = {"kind": "ManagedClusterList", "items": [EDGE, {**EDGE, "metadata": {"name": "edge2"}}], "metadata": {}}
COLUMNS = [{"name": "Name", "priority": 0}, {"name": "Available", "priority": 0}, {"name": "Nodes", "priority": 1}]
TABLE: dict[str, Any] = {
    "columnDefinitions": COLUMNS,
    "rows": [{"cells": ["edge1", "True", 3], "object": {"metadata": {"namespace": "ns", "labels": {"b/c": "2", "a": "1"}}}}],
}


def shown(capsys: pytest.CaptureFixture[str], form: str, answer: dict[str, Any], kind: Resource = CLUSTERS, **more: Any) -> str:
    printer_of(Look(kind, FormType().convert(form, None, None), **more)).first(answer)
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("form", "answer", "text"),
    [
        ("name", LIST, "managedcluster.cluster.open-cluster-management.io/edge1\n"),
        ("jsonpath={.metadata.name}", EDGE, "edge1"),
        ("jsonpath={.items[*].metadata.name}", LIST, "edge1 edge2"),
        ("jsonpath-as-json={.metadata.name}", EDGE, '[\n    "edge1"\n]\n'),
        ("custom-columns=Name:.metadata.name,No:.x", EDGE, "Name    No\nedge1   <none>\n"),
        ("custom-columns=N:.metadata.name,V:status.version.kubernetes", LIST, "N       V\nedge1   v1.31\nedge2   v1.31\n"),
        ("csv=N:.metadata.name,V:.status.version", EDGE, 'N,V\r\nedge1,"{""kubernetes"":""v1.31""}"\r\n'),
        ("csv", TABLE, "Name,Available,Nodes\r\nedge1,True,3\r\n"),
        ("table", TABLE, "NAME    AVAILABLE\nedge1   True\n"),
        ("wide", TABLE, "NAME    AVAILABLE   NODES\nedge1   True        3\n"),
    ],
)
def test_a_form_prints(capsys: pytest.CaptureFixture[str], form: str, answer: dict[str, Any], text: str) -> None:
    assert shown(capsys, form, answer).startswith(text)


def test_yaml_is_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert yaml.safe_load(shown(capsys, "yaml", EDGE)) == EDGE


def test_tables_take_headers_labels_kinds_and_namespaces(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, "table", TABLE, headers=False) == "edge1   True\n"
    assert shown(capsys, "table", TABLE, labels=("b/c", "none")).splitlines()[0].split() == ["NAME", "AVAILABLE", "C", "NONE"]
    assert shown(capsys, "table", TABLE, all_labels=True).splitlines()[1].split() == ["edge1", "True", "a=1,b/c=2"]
    assert shown(capsys, "table", TABLE, kinds=True).splitlines()[1].startswith(f"{CLUSTERS.singular}/edge1 ")
    assert shown(capsys, "table", TABLE, ADDONS).splitlines()[1].split() == ["ns", "edge1", "True"]


def test_changes_are_told_with_what_they_were(capsys: pytest.CaptureFixture[str]) -> None:
    printer = printer_of(Look(CLUSTERS, Form(given=True), watch=True, events=True))
    printer.first(TABLE)
    printer.event("DELETED", {"rows": TABLE["rows"]})
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["EVENT", "ADDED", "DELETED"]
    printer = printer_of(Look(CLUSTERS, Form("json", given=True), watch=True, events=True))
    printer.event("DELETED", EDGE)
    assert '"type": "DELETED"' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ("jsn", 'did you mean "json"?'),
        ("xml-is-better", "use one of table"),
        ("jsonpath", "needs what to show"),
        ("custom-columns=", "needs what to show"),
        ("yaml=x", "takes nothing after"),
    ],
)
def test_what_is_no_form_is_told_with_what_is(form: str, words: str) -> None:
    with pytest.raises(click.BadParameter, match=words.replace("?", r"\?")):
        FormType().convert(form, None, None)


@pytest.mark.parametrize("spec", ["NAME", "NAME:", ":.x", "A:.a,B", "A:{.a}{.b}"])
def test_what_is_no_column_is_wrong_usage(spec: str) -> None:
    with pytest.raises(CommandError) as refused:
        columns_of(spec)
    assert refused.value.code == 2


def test_columns_and_templates_come_from_files(tmp_path: Path) -> None:
    file = tmp_path / "columns"
    file.write_text("NAME     VERSION\nmetadata.name  {.status.version.kubernetes}\n")
    columns = columns_in(argument_of(Form("custom-columns-file", str(file))))
    assert [(column.title, column.cell(EDGE)) for column in columns] == [("NAME", "edge1"), ("VERSION", "v1.31")]
    with pytest.raises(CommandError, match="a line of titles"):
        columns_in("NAME VERSION\nmetadata.name\n")
    with pytest.raises(CommandError, match="cannot be read"):
        argument_of(Form("jsonpath-file", str(tmp_path / "absent")))


def test_a_sheet_reads_back_and_runs_no_formula_of_an_agents() -> None:
    rows = [["a,b", 'say "x"', "two\nlines"], ["-5", "-x", "=1+1"], ["@x", "+1", "plain"]]
    assert list(csv.reader(io.StringIO(sheet(rows)))) == [
        ["a,b", 'say "x"', "two\nlines"],
        ["-5", "'-x", "'=1+1"],
        ["'@x", "'+1", "plain"],
    ]


def test_what_is_missing_and_what_is_null_read_alike() -> None:
    (column,) = columns_of("X:.status.nothing")
    assert column.cell(EDGE) == "<none>"


@pytest.mark.parametrize("form", ["json", "name", "csv"])
def test_a_long_list_is_shown_page_by_page_as_it_would_be_whole(capsys: pytest.CaptureFixture[str], form: str) -> None:
    look = Look(CLUSTERS, Form(form, given=True))
    part, many = ("rows", TABLE) if form == "csv" else ("items", LIST)
    halves = [{**many, part: [entry], "metadata": {"resourceVersion": "7", "continue": "x"}} for entry in many[part]]
    paged = printer_of(look)
    assert isinstance(paged, InPages)
    paged.pages(iter([*halves, {**many, part: []}]))
    by_page = capsys.readouterr().out
    printer_of(look).first({**many, "metadata": {"resourceVersion": "7"}})
    at_once = capsys.readouterr().out
    assert (json.loads(by_page) == json.loads(at_once)) if form == "json" else (by_page == at_once)


def test_a_list_of_nothing_is_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    printer = printer_of(Look(CLUSTERS, Form("json", given=True)))
    assert isinstance(printer, InPages)
    printer.pages(iter([{"kind": "List", "items": [], "metadata": {"continue": ""}}]))
    assert json.loads(capsys.readouterr().out) == {"kind": "List", "items": [], "metadata": {}}


def test_a_page_is_printed_before_the_next_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    """So that an export needs no more memory than a page."""
    printer, printed = printer_of(Look(CLUSTERS, Form("json", given=True))), []

    def answers() -> Iterator[dict[str, Any]]:
        for entry in LIST["items"]:
            printed.append("edge" in capsys.readouterr().out)
            yield {**LIST, "items": [entry]}

    assert isinstance(printer, InPages)
    printer.pages(answers())
    assert printed == [False, True]
