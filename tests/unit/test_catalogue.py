"""The catalogues of OCM's tests, of its hub and of its agent, are kept: every row has tests that exist, or a reason."""

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CATALOGUES = ROOT / "tests" / "catalogue"
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
AGENT_SOURCES = {
    "options, names, start",
    "secret, validity, CSR",
    "MC, lease, status, claims, namespaces",
    "add-ons",
    "integration",
    "marks",
}
"""The areas of OCM's agent tests, and the defects that were found by reading it."""
AGENT_SCENARIOS = {*range(1, 11), 12, 13, 15, 16, 18, 19, 20, 23, 25}
"""The integration scenarios that concern the agent."""
AGENT_ROWS = {
    *(f"O{n}" for n in range(1, 13)),
    *(f"S{n}" for n in range(1, 5)),
    *(f"V{n}" for n in range(1, 12)),
    *(f"C{n}" for n in range(1, 14)),
    *("M1", "L1", "L2", "A1", "A2", "A3", "A4", "J1", "K1", "N1", "H1", "H2", "B1", "G1"),
}
"""OCM's agent tests, as the reference numbers them."""
MARKS = {
    "3.2": 4,
    "3.4": 2,
    "3.5": 2,
    "3.7": 2,
    "3.8": 1,
    "3.9.4": 1,
    "3.9.5": 1,
    "3.11": 2,
    "3.12": 1,
    "4.3": 1,
    "4.4": 1,
    "4.6": 1,
}
"""How many defects each section of the reference tells of."""
CERT_ROWS = {
    "TestAgentController": [f"T{n}" for n in range(1, 35)],
    "merging, cleaning, strategies": ["M1", "M2", "M3", *(f"L{n}" for n in range(1, 6)), *(f"S{n}" for n in range(1, 7)), "X1"],
    "agent binary": [f"B{n}" for n in range(1, 8)],
    "integration": ["I1", "I2", "I3"],
    "dynamic CA": [f"D{n}" for n in range(1, 14)],
    "issuers": [f"C{n}" for n in range(1, 7)],
}
"""Pinniped's tests of its kube-cert-agent, and of what signs with the CA that it brings."""
COUNTS = {
    "agent.yaml": {
        "options, names, start": 12,
        "secret, validity, CSR": 28,
        "MC, lease, status, claims, namespaces": 14,
        "add-ons": 12,
        "integration": 22,
        "marks": 19,
    },
    "hub.yaml": {
        "MC controller": 13,
        "namespaces": 9,
        "CSR": 17,
        "webhooks": 10,
        "lease, clock, taint": 13,
        "sets, default, global, binding": 13,
        "add-on discovery, health": 7,
        "token driver, hub's side": 6,
        "GC": 5,
        "importer": 1,
        "ClusterProfile lifecycle": 11,
        "ClusterProfile status": 5,
        "gRPC hub": 3,
        "AWS hub": 1,
        "taint helpers": 1,
        "gRPC server": 6,
        "integration": 29,
    },
    "kubecert.yaml": {
        "TestAgentController": 34,
        "merging, cleaning, strategies": 15,
        "agent binary": 7,
        "integration": 3,
        "dynamic CA": 13,
        "issuers": 6,
    },
    "leadership.yaml": {
        "leader election": 12,
    },
    "login.yaml": {
        "TokenCredentialRequest": 16,
        "authenticators": 10,
        "integration": 8,
    },
}
"""How many rows each area has: none is taken away without a word here."""
LEFT_OUT = r"(AWS IRSA|Cluster API import|CloudEvents|ManifestWork): .+"
DECIDED = rf"{LEFT_OUT}|.+ \(docs/adr/\d{{4}}\)"
"""Of the agent's, of logins' and of Pinniped's tests: also what a decision of ours leaves nothing to test of."""


def areas(catalogue: str = "hub.yaml") -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = yaml.safe_load((CATALOGUES / catalogue).read_text("utf-8"))
    return found


def rows(catalogue: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    return ((f"{area['area']}: {row['row']}", row) for area in areas(catalogue) for row in area["rows"])


def of_source(source: str, catalogue: str = "hub.yaml") -> list[str]:
    """What the rows of a source begin with."""
    found = (area["rows"] for area in areas(catalogue) if area["source"] == source)
    return [row["row"].split()[0] for listed in found for row in listed]


@cache
def names_in(path: Path) -> frozenset[str]:
    """The names of the test functions of a module."""
    body = ast.parse(path.read_text("utf-8")).body
    return frozenset(node.name for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_every_area_and_every_scenario_has_its_rows() -> None:
    assert {area["source"] for area in areas()} == SOURCES
    listed = next(area["rows"] for area in areas() if area["source"] == "integration")
    assert sorted({int(row["row"].split()[0]) for row in listed}) == list(SCENARIOS)


def flaw(row: Mapping[str, Any], reasons: str = LEFT_OUT) -> str:
    """What is wrong with a row; "": nothing."""
    if "reason" in row:
        return "" if "tests" not in row and re.fullmatch(reasons, row["reason"]) else f"no such reason: {row['reason']}"
    for each in row["tests"] or ():
        path, _, test = each.partition("::")
        if not (ROOT / path).is_file() or test not in names_in(ROOT / path):
            return f"there is no test {each}"
    return "" if row["tests"] else "it names no test"


@pytest.mark.parametrize("catalogue", sorted(path.name for path in CATALOGUES.glob("*.yaml")))
def test_every_row_has_tests_that_exist_or_a_reason(catalogue: str) -> None:
    reasons = LEFT_OUT if catalogue == "hub.yaml" else DECIDED
    assert [f"{name}: {found}" for name, row in rows(catalogue) if (found := flaw(row, reasons))] == []


@pytest.mark.parametrize("catalogue", sorted(path.name for path in CATALOGUES.glob("*.yaml")))
def test_no_row_is_taken_away_unnoticed(catalogue: str) -> None:
    counted: Counter[str] = Counter()
    for area in areas(catalogue):
        counted[area["source"]] += len(area["rows"])
        assert len({row["row"] for row in area["rows"]}) == len(area["rows"]), f"a row stands twice in {area['area']}"
    assert dict(counted) == COUNTS[catalogue]


def test_every_test_of_the_agent_and_every_defect_has_its_row() -> None:
    assert {area["source"] for area in areas("agent.yaml")} == AGENT_SOURCES
    assert {int(number) for number in of_source("integration", "agent.yaml")} == AGENT_SCENARIOS
    numbered = ("options, names, start", "secret, validity, CSR", "MC, lease, status, claims, namespaces")
    listed = [each for source in numbered for each in of_source(source, "agent.yaml")]
    assert sorted(listed) == sorted(AGENT_ROWS)
    assert Counter(of_source("marks", "agent.yaml")) == MARKS


def test_every_test_of_logins_has_its_row() -> None:
    assert {area["source"] for area in areas("login.yaml")} == {"TokenCredentialRequest", "authenticators", "integration"}
    assert of_source("TokenCredentialRequest", "login.yaml") == [f"T{number}" for number in range(1, 17)]


def test_every_promise_of_the_election_has_its_row() -> None:
    assert of_source("leader election", "leadership.yaml") == [f"L-{number}" for number in range(1, 13)]


def test_every_test_of_the_cert_agent_of_dynamic_cas_and_of_issuers_has_its_row() -> None:
    assert {area["source"]: [row["row"].split()[0] for row in area["rows"]] for area in areas("kubecert.yaml")} == CERT_ROWS


def test_a_row_without_either_or_with_a_test_that_is_gone_is_noticed() -> None:
    here = "tests/unit/test_catalogue.py"
    assert flaw({"tests": [f"{here}::test_every_area_and_every_scenario_has_its_rows"]}) == ""
    for tests in ([], [f"{here}::test_gone"], ["tests/gone.py::test_x"]):
        assert flaw({"tests": tests})
    for reason in ("no time", "waits for its turn", "decided so (docs/adr/0013)"):
        assert flaw({"reason": reason})
    assert flaw({"reason": "decided so (docs/adr/0013)"}, DECIDED) == ""
