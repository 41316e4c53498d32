"""The catalogue of OCM's hub tests is kept: every row has tests that exist, or one of the reasons for having none."""

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
CATALOGUE = ROOT / "tests" / "catalogue" / "hub.yaml"
SOURCES = {
    "MC controller",
    "namespaces",
    "CSR",
    "webhooks",
    "lease, clock, taint",
    "sets, default, global, binding",
    "add-on discovery, health",
    "token driver, hub's side",
    "GC",
    "importer",
    "ClusterProfile lifecycle",
    "ClusterProfile status",
    "gRPC hub",
    "AWS hub",
    "taint helpers",
    "gRPC server",
    "integration",
}
"""The areas of OCM's hub tests."""
SCENARIOS = range(1, 26)
"""The numbers of OCM's integration scenarios."""
REASONS = re.compile(
    r"(AWS IRSA|Cluster API import|CloudEvents|ManifestWork): .+"
    r"|waits for .+"
    r"|.+ \(docs/adr/\d{4}\)"
)


def areas() -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = yaml.safe_load(CATALOGUE.read_text("utf-8"))
    return found


def rows() -> Iterator[tuple[str, Mapping[str, Any]]]:
    return ((f"{area['area']}: {row['row']}", row) for area in areas() for row in area["rows"])


@cache
def names_in(path: Path) -> frozenset[str]:
    """The names of the test functions of a module."""
    body = ast.parse(path.read_text("utf-8")).body
    return frozenset(node.name for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_every_area_and_every_scenario_has_its_rows() -> None:
    assert {area["source"] for area in areas()} == SOURCES
    listed = next(area["rows"] for area in areas() if area["source"] == "integration")
    assert sorted({int(row["row"].split()[0]) for row in listed}) == list(SCENARIOS)


def flaw(row: Mapping[str, Any]) -> str:
    """What is wrong with a row; "": nothing."""
    if "reason" in row:
        return "" if "tests" not in row and REASONS.fullmatch(row["reason"]) else f"no such reason: {row['reason']}"
    for each in row["tests"] or ():
        path, _, test = each.partition("::")
        if not (ROOT / path).is_file() or test not in names_in(ROOT / path):
            return f"there is no test {each}"
    return "" if row["tests"] else "it names no test"


def test_every_row_has_tests_that_exist_or_a_reason() -> None:
    assert [f"{name}: {found}" for name, row in rows() if (found := flaw(row))] == []


def test_a_row_without_either_or_with_a_test_that_is_gone_is_noticed() -> None:
    here = "tests/unit/test_catalogue.py"
    assert flaw({"tests": [f"{here}::test_every_area_and_every_scenario_has_its_rows"]}) == ""
    for tests in ([], [f"{here}::test_gone"], ["tests/gone.py::test_x"]):
        assert flaw({"tests": tests})
    assert flaw({"reason": "no time"})
