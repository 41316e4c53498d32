"""A real kubectl runs the recorded commands against our servers, and says what it said to the original.

The servers: the generic API server in memory, and the hub's own objects on SQLite.
"""

import json
import shlex
from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from machinery.apiserver.access import EveryoneIsAdmin
from tests.fakes.golden_hub import HubWorld
from tests.fakes.golden_world import MemoryWorld
from tests.fakes.kubectl import Kubectl, Said, shown

pytestmark = pytest.mark.kubectl
RECORDING = Path(__file__).parents[1] / "golden" / "kubectl.jsonl"
FILES = {"c1.yaml": 5, "c1b.yaml": 12, "bad.yaml": 10}
OTHER_KINDS = "kinds that this server does not have"
OTHER_WORLD = "what a controller of the recorded world does"

LEFT_OUT = {
    0: "the original has no version that kubectl can parse",
    12: "the recorded conflict is with a controller of the other world",
    15: OTHER_WORLD,
    17: "wide columns are ours",
    **dict.fromkeys((19, 18, 35, 53, 54, 56, 57, 59, 60, 61, 62, 63), "checked by the HTTP replay"),
    9: OTHER_WORLD,
    28: "clusters can be selected by more fields than the original's custom resources",
    76: OTHER_WORLD,
    77: OTHER_WORLD,
    78: OTHER_WORLD,
    81: OTHER_WORLD,
    82: OTHER_KINDS,
    **dict.fromkeys((85, 86, 87, 88), "watches have their own test"),
}
"""Recorded commands that are not run, by their place in the file."""

WAITED_IN_VAIN = frozenset((46, 47))
"""What these wait for never comes, however long: a second is enough."""
EXPLAINED = frozenset((50, 51, 52))
"""Of these the fields and their types are compared: the words are ours."""
LISTED = frozenset((1, 2))
"""Of these the lines about what both servers have."""
TABLES = {"STATUS", "AVAILABLE", "CONDITION"}


@cache
def recording() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RECORDING.read_text().splitlines()]


def document_sent_by(number: int) -> str:
    """The object in the first write of a recorded command."""
    for exchange in recording()[number]["exchanges"]:
        if exchange["request"]["method"] in ("POST", "PATCH"):
            return json.dumps(exchange["request"]["body"])
    raise AssertionError(number)


def typed(number: int) -> list[str]:
    """The arguments of a recorded command."""
    arguments = shlex.split(recording()[number]["command"])[1:]
    if number in WAITED_IN_VAIN:
        assert arguments[-1].startswith("--timeout=")
        arguments[-1] = "--timeout=1s"
    return arguments


@pytest.fixture(scope="module", params=["memory", "hub"])
async def said(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[dict[int, Said]]:
    """What kubectl says to the commands that are run, in order."""
    directory = tmp_path_factory.mktemp("kubectl")
    for name, number in FILES.items():
        (directory / name).write_text(document_sent_by(number))
    everyone = EveryoneIsAdmin()
    world = MemoryWorld(everyone) if request.param == "memory" else HubWorld(directory, everyone)
    await world.start()
    kubectl = Kubectl(directory, world.url)
    yield {number: await kubectl(*typed(number)) for number in range(len(recording())) if number not in LEFT_OUT}
    await world.close()


def _is_table(lines: list[str]) -> bool:
    return bool(lines) and bool(TABLES & set(lines[0].split()))


def _fields(lines: list[str]) -> list[str]:
    """What explain says without descriptions: the kind, and each field with its type."""
    heads = ("GROUP:", "KIND:", "VERSION:", "FIELD:")
    return [line for line in lines if ("<" in line and ">" in line) or line.startswith(heads)]


def _group(line: str) -> str:
    """The group and version of a line of api-versions or api-resources."""
    columns = line.split()
    return columns[0] if len(columns) == 1 else columns[-3]


@pytest.mark.parametrize(
    "number", [number for number in range(97) if number not in LEFT_OUT], ids=lambda number: recording()[number]["command"]
)
def test_kubectl_says_what_it_said_to_the_original(number: int, said: dict[int, Said]) -> None:
    recorded, ours = recording()[number], said[number]
    expected, lines = shown(recorded["output"]).splitlines(), ours.lines

    assert ours.exit == recorded["exit"], ours.output
    if number in EXPLAINED:
        assert _fields(lines) == _fields(expected)
        return
    if number in LISTED:
        groups = {_group(line) for line in expected}
        assert [line for line in lines if line not in expected and _group(line) in groups] == []
        assert set(lines) & set(expected)
        return
    if _is_table(expected):
        assert lines[0] == expected[0]
    if _is_table(expected) or "--no-headers" in recorded["command"]:
        assert [line.split()[0] for line in lines] == [line.split()[0] for line in expected]
    elif recorded["command"].endswith("/spec/nope\"}]'"):
        assert lines[0].startswith(expected[0])
    else:
        assert [line.split(" ")[0] if "Warning" in line else line for line in lines] == [
            line.split(" ")[0] if "Warning" in line else line for line in expected
        ]
