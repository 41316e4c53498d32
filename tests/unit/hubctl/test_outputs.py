"""Forms of output, and how each prints objects, tables, descriptions, events and changes."""

import csv
import io
import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import click
import pytest
import yaml

from hubctl.client.errors import document_of
from hubctl.client.resources import ADDONS, CLUSTERS, ResourceKind
from hubctl.commands.objects import history
from hubctl.commands.objects.describe import lines
from hubctl.commands.objects.events import EventDocuments, EventRows
from hubctl.errors import CommandError
from hubctl.options import moment
from hubctl.output.columns import columns_in, columns_of, format_csv
from hubctl.output.formats import FormatType, OutputFormat, argument_of
from hubctl.output.printers import Printer, PrintOptions, printer_of
from hubctl.output.tables import Layout, cell_text, printable, table, wants_color
from hubctl.output.watch import follow
from tests.checks import CASE_FILES, check_refusal, refusal

TABLES = yaml.safe_load((CASE_FILES / "outputs.yaml").read_text())

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


def output(
    capsys: pytest.CaptureFixture[str], form: str, answer: dict[str, Any], kind: ResourceKind = CLUSTERS, **more: Any
) -> str:
    printer_of(PrintOptions(kind, FormatType().convert(form, None, None), **more)).first(answer)
    return capsys.readouterr().out


def test_each_form_prints_objects_and_tables(capsys: pytest.CaptureFixture[str]) -> None:
    printed = [[form, answer, output(capsys, form, answer)[: len(text)]] for form, answer, text in TABLES["forms"]]
    assert (printed, yaml.safe_load(output(capsys, "yaml", EDGE))) == (TABLES["forms"], EDGE)
    assert output(capsys, "table", TABLE, headers=False) == "edge1   True\n"
    assert output(capsys, "table", TABLE, labels=("b/c", "none")).splitlines()[0].split() == ["NAME", "AVAILABLE", "C", "NONE"]
    assert output(capsys, "table", TABLE, all_labels=True).splitlines()[1].split() == ["edge1", "True", "a=1,b/c=2"]
    assert output(capsys, "table", TABLE, kinds=True).splitlines()[1].startswith(f"{CLUSTERS.singular}/edge1 ")
    assert output(capsys, "table", TABLE, ADDONS).splitlines()[1].split() == ["ns", "edge1", "True"]


def printer(form: str, template: str = "", **more: Any) -> Printer:
    return printer_of(PrintOptions(CLUSTERS, OutputFormat(form, template, given=True), **more))


def test_a_watch_prints_the_type_of_each_event(capsys: pytest.CaptureFixture[str]) -> None:
    watching = printer("table", watch=True, events=True)
    watching.first(TABLE)
    watching.event("DELETED", {"rows": TABLE["rows"]})
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["EVENT", "ADDED", "DELETED"]
    printer("json", watch=True, events=True).event("DELETED", EDGE)
    assert '"type": "DELETED"' in capsys.readouterr().out


def test_a_watch_lists_again_after_a_gap_until_a_list_succeeds(capsys: pytest.CaptureFixture[str]) -> None:
    expired, busy = CommandError("too old", reason="Expired"), CommandError("too many requests", reason="TooManyRequests")
    lists = [busy, {**LIST, "metadata": {"resourceVersion": "9"}}]
    hub = Mock(stream=Mock(side_effect=[expired, KeyboardInterrupt]), get=Mock(side_effect=lists))
    with pytest.raises(KeyboardInterrupt):
        follow(hub, printer("name", watch=True), CLUSTERS.path, {}, "7")
    assert [call.args[1]["resourceVersion"] for call in hub.stream.call_args_list] == ["7", "9"]
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) == len(LIST["items"])
    assert [line.split("; ")[1] for line in printed.err.splitlines()] == ["trying again", "all objects are shown again"]


def test_wrong_forms_columns_and_answers_are_refused_with_the_reason() -> None:
    forms = {
        "jsn": 'did you mean "json"?',
        "xml-is-better": "use one of table",
        "jsonpath": "needs an argument",
        "custom-columns=": "needs an argument",
        "yaml=x": "has no argument",
    }
    refused = {form: str(refusal(click.BadParameter, FormatType().convert, form, None, None)) for form in forms}
    assert [form for form, words in forms.items() if words not in refused[form]] == []
    columns = ("NAME", "NAME:", ":.x", "A:.a,B", "A:{.a}{.b}")
    assert [getattr(refusal(CommandError, columns_of, spec), "code", 0) for spec in columns] == [2] * len(columns)
    answers = (b"", b"<html>", b"[]", b"\xff", b"[" * 100_000)
    assert [each[:9] for each in answers if "not from a hub" not in str(refusal(CommandError, document_of, each))] == []


def test_columns_and_templates_come_from_files_and_a_csv_reads_back(tmp_path: Path) -> None:
    file = tmp_path / "columns"
    file.write_text("NAME     VERSION\nmetadata.name  {.status.version.kubernetes}\n")
    columns = columns_in(argument_of(OutputFormat("custom-columns-file", str(file))))
    assert [(column.title, column.cell(EDGE)) for column in columns] == [("NAME", "edge1"), ("VERSION", "v1.31")]
    assert columns_of("X:.status.nothing")[0].cell(EDGE) == "<none>", "null reads as what is missing"
    check_refusal(CommandError, columns_in, "NAME VERSION\nmetadata.name\n", match="a line of titles")
    check_refusal(CommandError, argument_of, OutputFormat("jsonpath-file", str(tmp_path / "absent")), match="cannot be read")
    rows = [["a,b", 'say "x"', "two\nlines"], ["-5", "-x", "=1+1"], ["@x", "+1", "plain"]]
    safe = [rows[0], ["-5", "'-x", "'=1+1"], ["'@x", "'+1", "plain"]]
    assert list(csv.reader(io.StringIO(format_csv(rows)))) == safe, "it runs no formula of an agent"
    formulas = ("-1+cmd|' /C calc'!A0", " =1+1", "\n=1", "\uff1d1+1", "-1.5.2", "--1")
    assert format_csv([[each] for each in formulas]).count("'") == len(formulas) + 2
    assert format_csv([["-1.5", "-.5", "-7.", "a-1", "x=1"]]) == "-1.5,-.5,-7.,a-1,x=1\r\n"


def test_a_template_moves_no_cursor_of_a_terminal_and_leaves_a_pipe_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream, expected in ((Terminal(), "a [2Jb 1m\tc\n d"), (io.StringIO(), "ab\x9b1m\tc\n\u202ed")):
        monkeypatch.setattr(sys, "stdout", stream)
        printer("jsonpath", "{.metadata.name}").first({"metadata": {"name": "a\x1b[2Jb\x9b1m\tc\n\u202ed"}})
        assert stream.getvalue() == expected


def test_a_list_in_pages_is_printed_page_by_page_as_a_whole_one(capsys: pytest.CaptureFixture[str]) -> None:
    for form in ("json", "name", "csv"):
        part, many = ("rows", TABLE) if form == "csv" else ("items", LIST)
        halves = [{**many, part: [entry], "metadata": {"resourceVersion": "7", "continue": "x"}} for entry in many[part]]
        printer(form).pages(iter([*halves, {**many, part: []}]))
        by_page = capsys.readouterr().out
        printer(form).first({**many, "metadata": {"resourceVersion": "7"}})
        at_once = capsys.readouterr().out
        assert (json.loads(by_page) == json.loads(at_once)) if form == "json" else (by_page == at_once), form
    printer("json").pages(iter([{"kind": "List", "items": [], "metadata": {"continue": ""}}]))
    assert json.loads(capsys.readouterr().out) == {"kind": "List", "items": [], "metadata": {}}
    printed = []

    def answers() -> Iterator[dict[str, Any]]:
        for entry in LIST["items"]:
            printed.append("edge" in capsys.readouterr().out)
            yield {**LIST, "items": [entry]}

    printer("json").pages(answers())
    assert printed == [False, True], "each before the next is requested: an export needs no more memory than a page"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_columns_are_aligned_and_cells_are_harmless(monkeypatch: pytest.MonkeyPatch) -> None:
    assert table(["Name", "Available"], [["edge1", "True"], ["a-long-name", ""]]) == [
        "NAME          AVAILABLE",
        "edge1         True",
        "a-long-name",
    ]
    layout = Layout(["Name", "Age"], [["edge1", "1s"]])
    assert layout.row(["edge-much-longer", "2s"]) == "edge-much-longer   2s", "a later row that is wider moves only itself"
    assert layout.row(["edge1", "3s"]) == "edge1   3s"
    assert [cell_text(cell) for cell in (None, True, False, 3, "x")] == ["", "true", "false", "3", "x"]
    assert printable("ok\x1b[2Jgone\r\nnext") == "ok [2Jgone  next", "the cursor cannot be moved"
    with monkeypatch.context() as terminal:
        terminal.setattr(sys, "stdout", Terminal())
        terminal.delenv("NO_COLOR", raising=False)
        colored = Layout(["Available", "Age"], [["True", "1s"], ["Unknown", "2s"]])
    assert colored.row(["True", "1s"]) == "\x1b[32mTrue     \x1b[0m   1s"
    wanted = []
    for stream, no_color in ((Terminal(), ""), (Terminal(), "1"), (io.StringIO(), "")):
        monkeypatch.setattr(sys, "stdout", stream)
        monkeypatch.delenv("NO_COLOR", raising=False)
        if no_color:
            monkeypatch.setenv("NO_COLOR", no_color)
        wanted.append(wants_color())
    assert wanted == [True, False, False]


def test_empty_columns_are_hidden_and_a_terminal_gets_only_those_that_fit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = [{"name": name} for name in ("Name", "Session", "Version", "Flaps")]
    rows = [{"cells": [name, "<none>", "v1.34.2", 0]} for name in ("edge1", "edge2")]

    def header(width: int, **more: Any) -> list[str]:
        monkeypatch.setattr("hubctl.output.printers.terminal_width", lambda: width)
        printer_of(PrintOptions(CLUSTERS, **more)).first({"columnDefinitions": columns, "rows": rows})
        return capsys.readouterr().out.splitlines()[0].split()

    assert (header(80), header(16), header(3)) == (["NAME", "VERSION", "FLAPS"], ["NAME", "VERSION"], ["NAME"])
    everything = ["NAME", "SESSION", "VERSION", "FLAPS"]
    assert [header(0), header(80, watch=True), header(16, form=OutputFormat("wide", given=True))] == [everything] * 3


def test_a_description_names_every_part_also_when_it_is_empty() -> None:
    document: dict[str, Any] = {"metadata": {"name": "edge1"}, "spec": {"hubAcceptsClient": False}}
    page = lines(document, {"Agent": "(no session)", "Last Beat": "<none>"}, {"rows": []})
    assert "Last Beat:      none yet" in page
    assert "Session:        none is open" in page
    parts = ("Taints", "Conditions", "Resources", "Claims", "Certificate Requests")
    assert [line for line in page if line.endswith(": <none>")][-5:] == [f"{part}: <none>" for part in parts]

    text = "\n".join(lines(TABLES["described"], {"Agent": "1.2.3", "Last Beat": "2s"}, {"rows": []}))
    expected = ("a=1, b=2", "Session:        open", "  k     v       NoSelect   T", "  Joined   True     T       R        M")
    assert [part for part in (*expected, "  cpu    4          3", "  id.k8s.io   x") if part not in text] == []


EVENT = {
    "metadata": {"name": "a"},
    "type": "Warning",
    "reason": "Because",
    "message": "it\nhappened",
    "involvedObject": {"kind": "ManagedCluster", "name": "edge1"},
    "lastTimestamp": "2026-01-01T00:00:01Z",
}
AGAIN = {**EVENT, "count": 3, "series": {"lastObservedTime": "2026-01-01T00:00:09.123456Z"}}


def test_events_are_aligned_lines_or_whole_documents_and_deletions_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    rows = EventRows()
    rows.first({"items": [EVENT]})
    rows.event("MODIFIED", AGAIN)
    rows.event("DELETED", EVENT)
    header, first, again = capsys.readouterr().out.splitlines()
    assert header.split() == ["LAST", "SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"]
    assert first.split()[:4] == ["2026-01-01T00:00:01Z", "Warning", "Because", "managedcluster/edge1"]
    assert first.endswith("it happened"), "one line, whatever a message holds"
    assert (again.split()[0], again.endswith("it happened (x3)")) == ("2026-01-01T00:00:09Z", True)
    assert header.index("MESSAGE") == first.index("it happened") == again.index("it happened")
    documents = EventDocuments("json")
    documents.first({"items": [EVENT]})
    documents.event("ADDED", AGAIN)
    documents.event("DELETED", AGAIN)
    assert capsys.readouterr().out.count('"reason": "Because"') == 2


CONDITION = "status.conditions[ManagedClusterConditionAvailable]"
CHANGE = TABLES["change"]


def test_a_change_is_a_line_per_field_and_the_first_has_author_and_time() -> None:
    rows = list(history.lines(CHANGE, wide=False))
    assert [row[:3] for row in rows] == [("2026-11-01T12:00:00Z", "7", "system:hub:lease"), ("", "", ""), ("", "", "")]
    assert [row[3] for row in rows] == [
        f"{CONDITION}.status: True -> Unknown",
        'spec.taints[gone]: - {"key": "gone"}',
        "metadata.labels.x: +  [31m" + "y" * 52 + "...",
    ]
    assert [row[3].partition(":")[0] for row in history.lines(CHANGE, wide=True)][1] == f"{CONDITION}.lastTransitionTime"
    for kind, fields, expected in (
        ("ADDED", [{"path": "spec", "after": {}}], ["added"]),
        ("DELETED", [], ["deleted"]),
        ("MODIFIED", [], ["(written again)"]),
        ("MODIFIED", [{"path": "a.message", "before": "x", "after": "y"}], ["(messages)"]),
    ):
        assert [row[3] for row in history.lines({**CHANGE, "type": kind, "fields": fields}, wide=False)] == expected
    shortened = {**CHANGE, "fields": [{"path": "a", "after": 1}], "more": 3}
    assert [row[3] for row in history.lines(shortened, wide=False)] == ["a: + 1", "... and 3 more fields"]
    hubs = {"path": 'metadata.annotations["hub.open-cluster-management.io/hubs"]', "before": "[]", "after": "[1]"}
    change = {**CHANGE, "fields": [hubs]}
    assert [len(list(history.lines(change, wide=wide))) for wide in (False, True)] == [0, 1], "an internal field"


def test_pages_of_a_history_have_the_revision_of_the_first_so_that_a_watch_misses_nothing() -> None:
    first = {"metadata": {"resourceVersion": "700", "continue": "200"}, "changes": [CHANGE]}
    client = Mock(get=Mock(side_effect=[first, {"metadata": {"resourceVersion": "701"}, "changes": [CHANGE]}]))
    answer = history._changes(client, "/history", {"limit": "1000"})
    assert (answer["metadata"], len(answer["changes"])) == ({"resourceVersion": "700"}, 2)


def test_a_watched_history_prints_every_later_change_whatever_the_limit(capsys: pytest.CaptureFixture[str]) -> None:
    def get(_path: str, **query: str) -> dict[str, Any]:
        newer = [{**CHANGE, "revision": number} for number in ("9", "8")][: int(query["limit"])]
        return {"metadata": {"resourceVersion": "9", **({"continue": "9"} if len(newer) == 1 else {})}, "changes": newer}

    printer = history.HistoryPrinter(Mock(get=get), "/history", {}, {"limit": 1, "output": None})
    printer.show({"metadata": {"resourceVersion": "7"}, "changes": [CHANGE]})
    printer.first({})
    shown = capsys.readouterr().out
    assert [shown.count(f"   {number}   ") for number in ("7", "8", "9")] == [1, 1, 1], shown


def test_moments_are_read_as_people_write_them() -> None:
    assert [moment(text) for text in ("", "now", "17", "2h", "-2h", "1d12h")] == ["", "", "17", "-2h", "-2h", "-1d12h"]
    assert moment("2026-11-01T12:00+02:00") == "2026-11-01T10:00:00.000000Z"
    assert moment("2026-11-01 12:00") == datetime(2026, 11, 1, 12).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    check_refusal(CommandError, moment, "last tuesday", match="write a time such as")
