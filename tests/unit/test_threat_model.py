"""The threat model is kept: the tests that it names exist, and no RPC, kind or purpose is left out."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from hub.apiserver.credentials import HubAddress
from hub.apiserver.door import build_door
from hub.domain.certificate import CertificateRecord, Purpose
from machinery.apiserver.resource import Resource
from machinery.clock import ManualClock
from machinery.errors import UnauthorizedError
from machinery.identity import HubId
from machinery.wire.registration.v1 import registration_pb2
from machinery.wire.session.v1 import session_pb2
from tests.fakes.issuer import WordIssuer
from tests.fakes.memory_store import MemoryStore

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "explanation" / "threat-model.md").read_text()
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
FEWEST = 60


@cache
def known_in(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text(), path)
    return frozenset(
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    )


def tables() -> dict[str, list[list[str]]]:
    """The rows of all tables by the heading of their first column, headings left out."""
    found: dict[str, list[list[str]]] = {}
    heading = ""
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if not cells:
            heading = ""
        elif not heading:
            heading = cells[0]
            found.setdefault(heading, []).append(cells)
        elif not cells[0].startswith("---"):
            found[heading].append(cells)
    return found


def rows(heading: str) -> set[str]:
    """The words of the first column."""
    return {name.strip() for cells in tables()[heading][1:] for name in cells[0].split(",")}


async def nobody(_certificate: bytes) -> CertificateRecord:
    raise UnauthorizedError("nobody")


def resources() -> list[Resource]:
    """All that the door for operators serves."""
    address = HubAddress(HubId("hub"), "https://hub.example:6443", "hub.example:8443")
    door = build_door(MemoryStore(), WordIssuer(), nobody, address, clock=ManualClock())
    discovery = door.server._site._discovery
    return [resource for group in (*discovery._core, *discovery._named) for resource in group.resources]


def test_every_test_that_is_named_exists() -> None:
    named = NAMED.findall(PAGE)
    assert len(named) > FEWEST
    assert [f"{path}::{name}" for path, name in named if not (ROOT / path).exists() or name not in known_in(path)] == []


@pytest.mark.parametrize("heading", ["rule", "RPC", "kind", "purpose of a certificate"])
def test_every_rule_names_a_test(heading: str) -> None:
    rules = [cells for cells in tables()[heading] if cells[-1] != "held by"]
    assert rules
    assert [cells[0] for cells in rules if not NAMED.search(cells[-1])] == []


def test_every_call_of_the_agents_door_stands_there() -> None:
    files = (registration_pb2.DESCRIPTOR, session_pb2.DESCRIPTOR)
    calls = {
        f"{service.name}.{method.name}"
        for file in files
        for service in file.services_by_name.values()
        for method in service.methods
    }
    assert calls == rows("RPC")


def test_every_kind_of_the_operators_door_stands_there() -> None:
    assert {resource.kind for resource in resources()} == rows("kind")


@pytest.mark.parametrize("purpose", Purpose)
def test_every_purpose_of_a_certificate_stands_there(purpose: Purpose) -> None:
    assert purpose in rows("purpose of a certificate")
