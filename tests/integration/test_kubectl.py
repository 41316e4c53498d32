"""A real kubectl on the hub's objects: recorded commands print what they printed when they were recorded."""

import json
import shlex
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.golden_hub import HubWorld
from tests.fakes.identity import EveryoneIsAdmin
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
}  # recorded commands that are not run, by their place in the file

WAITED_IN_VAIN = frozenset((46, 47))  # what these wait for never comes, however long: a second is enough
EXPLAINED = frozenset((50, 51, 52))  # of these the fields and their types are compared: the words are ours
LISTED = frozenset((1, 2))  # of these the lines about what both servers have
TABLES = {"STATUS", "AVAILABLE", "CONDITION"}
RECORDED: list[dict[str, Any]] = [json.loads(line) for line in RECORDING.read_text().splitlines()]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[HubWorld]:
    world = HubWorld(tmp_path, EveryoneIsAdmin())
    await world.start()
    yield world
    await world.close()


@pytest.fixture
def kubectl(world: HubWorld, tmp_path: Path) -> Kubectl:
    return Kubectl(tmp_path, world.url)


def document_sent_by(number: int) -> str:
    """The object in the first write of a recorded command."""
    requests = [exchange["request"] for exchange in RECORDED[number]["exchanges"]]
    return json.dumps(next(request["body"] for request in requests if request["method"] in ("POST", "PATCH")))


def typed(number: int) -> list[str]:
    """The arguments of a recorded command."""
    arguments = shlex.split(RECORDED[number]["command"])[1:]
    if number in WAITED_IN_VAIN:
        assert arguments[-1].startswith("--timeout=")
        arguments[-1] = "--timeout=1s"
    return arguments


def _fields(lines: list[str]) -> list[str]:
    """What explain says without descriptions: the kind, and each field with its type."""
    heads = ("GROUP:", "KIND:", "VERSION:", "FIELD:")
    return [line for line in lines if ("<" in line and ">" in line) or line.startswith(heads)]


def _group(line: str) -> str:
    """The group and version of a line of api-versions or api-resources."""
    columns = line.split()
    return columns[0] if len(columns) == 1 else columns[-3]


def comparable(number: int, lines: list[str], expected: list[str]) -> Any:
    """What of an output has to be as in the recorded output: of tables the columns and the first cell of each row."""
    command = RECORDED[number]["command"]
    if number in EXPLAINED:
        return _fields(lines)
    if expected and TABLES & set(expected[0].split()):
        return [*lines[:1], *(line.split()[0] for line in lines[1:])]
    if "--no-headers" in command:
        return [line.split()[0] for line in lines]
    if command.endswith("/spec/nope\"}]'"):
        return [line[: len(expected[0])] for line in lines[:1]]
    return [line.split(" ")[0] if "Warning" in line else line for line in lines]


def differences(number: int, answer: Said) -> Iterator[str]:
    """How the output of a command differs from the recorded output."""
    lines, expected = answer.lines, shown(RECORDED[number]["output"]).splitlines()
    if answer.exit != RECORDED[number]["exit"]:
        yield f"exit {answer.exit} in place of {RECORDED[number]['exit']}: {answer.output}"
    elif number in LISTED:
        groups = {_group(line) for line in expected}
        yield from (line for line in lines if line not in expected and _group(line) in groups)
        if not set(lines) & set(expected):
            yield "nothing of what the original lists"
    elif comparable(number, lines, expected) != comparable(number, expected, expected):
        yield f"{lines} in place of {expected}"


async def test_recorded_commands_print_what_the_original_printed(kubectl: Kubectl, tmp_path: Path) -> None:
    for name, number in FILES.items():
        (tmp_path / name).write_text(document_sent_by(number))
    wrong = []
    for number, recorded in enumerate(RECORDED):
        if number not in LEFT_OUT:
            answer = await kubectl(*typed(number))
            wrong += [f"{number} {recorded['command']}: {each}" for each in differences(number, answer)]
    assert not wrong, "\n".join(wrong)
