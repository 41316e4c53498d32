"""How hubctl lays out what it shows."""

import sys
from io import StringIO

import pytest

from hub.cli.describing import lines
from hub.cli.tables import Layout, printable, shown, table, wants_color


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert table(["Name", "Available"], [["edge1", "True"], ["a-long-name", ""]]) == [
        "NAME          AVAILABLE",
        "edge1         True",
        "a-long-name",
    ]


def test_a_later_row_that_is_wider_moves_only_itself() -> None:
    layout = Layout(["Name", "Age"], [["edge1", "1s"]])
    assert layout.row(["edge-much-longer", "2s"]) == "edge-much-longer   2s"
    assert layout.row(["edge1", "3s"]) == "edge1   3s"


@pytest.mark.parametrize(("cell", "text"), [(None, ""), (True, "true"), (False, "false"), (3, "3"), ("x", "x")])
def test_cells_read_as_kubectl_writes_them(cell: object, text: str) -> None:
    assert shown(cell) == text


def test_what_an_agent_reports_cannot_move_the_cursor() -> None:
    assert printable("ok\x1b[2Jgone\r\nnext") == "ok [2Jgone  next"


def test_colours_are_for_terminals_without_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert wants_color()
    monkeypatch.setenv("NO_COLOR", "1")
    assert not wants_color()
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setattr(sys, "stdout", StringIO())
    assert not wants_color()


def test_only_verdicts_are_coloured_and_the_columns_stay_aligned() -> None:
    layout = Layout(["Available", "Age"], [["True", "1s"], ["Unknown", "2s"]], color=True)
    assert layout.row(["True", "1s"]) == "\x1b[32mTrue     \x1b[0m   1s"


def test_a_description_names_every_part_even_when_it_is_empty() -> None:
    document = {"metadata": {"name": "edge1"}, "spec": {"hubAcceptsClient": False}}
    page = lines(document, {"Agent": "(no session)", "Last Beat": "<none>"}, {"rows": []})
    assert "Last Beat:      none yet" in page
    assert "Session:        none is open" in page
    assert [line for line in page if line.endswith(": <none>")][-5:] == [
        "Taints: <none>",
        "Conditions: <none>",
        "Resources: <none>",
        "Claims: <none>",
        "Certificate Requests: <none>",
    ]


def test_a_description_shows_conditions_claims_and_resources() -> None:
    document = {
        "metadata": {"name": "edge1", "labels": {"b": "2", "a": "1"}},
        "spec": {"hubAcceptsClient": True, "taints": [{"key": "k", "value": "v", "effect": "NoSelect", "timeAdded": "T"}]},
        "status": {
            "conditions": [{"type": "Joined", "status": "True", "lastTransitionTime": "T", "reason": "R", "message": "M"}],
            "capacity": {"cpu": "4"},
            "allocatable": {"cpu": "3"},
            "clusterClaims": [{"name": "id.k8s.io", "value": "x"}],
        },
    }
    page = "\n".join(lines(document, {"Agent": "1.2.3", "Last Beat": "2s"}, {"rows": []}))
    for expected in (
        "a=1, b=2",
        "Session:        open",
        "  k     v       NoSelect   T",
        "  Joined   True     T       R        M",
    ):
        assert expected in page
    assert "  cpu    4          3" in page
    assert "  id.k8s.io   x" in page
