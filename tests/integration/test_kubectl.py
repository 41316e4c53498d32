"""A real kubectl on the hub's objects: recorded commands, apply and field managers."""

import json
import shlex
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.golden_hub import HubWorld
from tests.fakes.kubectl import Kubectl, Said, shown
from tests.fakes.open_access import EveryoneIsAdmin

pytestmark = pytest.mark.kubectl
GROUP = "cluster.open-cluster-management.io"
APPLY = "apply --server-side -f -"
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


class Commands(Kubectl):
    """Runs kubectl, and reads what it stored."""

    async def __call__(self, *arguments: str, given: Any = "") -> Said:
        return await super().__call__(*arguments, given=given if isinstance(given, str) else json.dumps(given))

    async def done(self, command: str, *more: str, given: Any = "") -> list[str]:
        """The lines of a command that succeeds."""
        said = await self(*command.split(), *more, given=given)
        assert said.exit == 0, said.output
        return said.lines

    async def refused(self, command: str, *more: str, given: Any = "") -> list[str]:
        said = await self(*command.split(), *more, given=given)
        assert said.exit == 1, said.output
        return said.lines

    async def stored(self, name: str) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((await self("get", "mcl", name, "-o", "json", "--show-managed-fields")).output)
        return document

    async def last_applied(self, name: str) -> Any:
        return json.loads((await self("apply", "view-last-applied", "mcl", name, "-o", "json")).output)

    async def holders(self, name: str) -> dict[str, Any]:
        """By manager and operation, the fields."""
        entries = (await self.stored(name))["metadata"]["managedFields"]
        return {f"{entry['manager']} {entry['operation']}": entry["fieldsV1"] for entry in entries}


def cluster(name: str, *, labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    metadata = {"name": name} if labels is None else {"name": name, "labels": labels}
    return {"apiVersion": f"{GROUP}/v1", "kind": "ManagedCluster", "metadata": metadata, "spec": spec}


@pytest.fixture
def kubectl(world: HubWorld, tmp_path: Path) -> Commands:
    return Commands(tmp_path, world.url)


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


def comparable(number: int, lines: list[str], expected: list[str]) -> Any:
    """What of an output has to be as in the recorded output: of tables the columns and the first cell of each row."""
    command = RECORDED[number]["command"]
    if number in EXPLAINED:
        return _fields(lines)
    if _is_table(expected):
        return [*lines[:1], *(line.split()[0] for line in lines[1:])]
    if "--no-headers" in command:
        return [line.split()[0] for line in lines]
    if command.endswith("/spec/nope\"}]'"):
        return [line[: len(expected[0])] for line in lines[:1]]
    return [line.split(" ")[0] if "Warning" in line else line for line in lines]


def differences(number: int, said: Said) -> Iterator[str]:
    """How the output of a command differs from the recorded output."""
    lines, expected = said.lines, shown(RECORDED[number]["output"]).splitlines()
    if said.exit != RECORDED[number]["exit"]:
        yield f"exit {said.exit} in place of {RECORDED[number]['exit']}: {said.output}"
    elif number in LISTED:
        groups = {_group(line) for line in expected}
        yield from (line for line in lines if line not in expected and _group(line) in groups)
        if not set(lines) & set(expected):
            yield "nothing of what the original lists"
    elif comparable(number, lines, expected) != comparable(number, expected, expected):
        yield f"{lines} in place of {expected}"


async def test_recorded_commands_print_what_the_original_printed(kubectl: Commands, tmp_path: Path) -> None:
    for name, number in FILES.items():
        (tmp_path / name).write_text(document_sent_by(number))
    wrong = []
    for number, recorded in enumerate(RECORDED):
        if number not in LEFT_OUT:
            said = await kubectl(*typed(number))
            wrong += [f"{number} {recorded['command']}: {each}" for each in differences(number, said)]
    assert not wrong, "\n".join(wrong)


async def test_conflicts_are_reported_field_by_field_and_can_be_forced(kubectl: Commands) -> None:
    old = cluster("a", labels={"region": "eu"}, hubAcceptsClient=False, leaseDurationSeconds=30)
    new = cluster("a", labels={"region": "us"}, hubAcceptsClient=False, leaseDurationSeconds=40)
    await kubectl.done("apply --server-side --field-manager=ci -f -", given=old)
    assert (await kubectl.refused(APPLY, given=new))[:3] == [
        'error: Apply failed with 2 conflicts: conflicts with "ci":',
        "- .metadata.labels.region",
        "- .spec.leaseDurationSeconds",
    ]
    assert (await kubectl.stored("a"))["spec"]["leaseDurationSeconds"] == 30

    forced = await kubectl.done("apply --server-side --force-conflicts -f -", given=new)
    assert forced == [f"managedcluster.{GROUP}/a serverside-applied"]
    assert (await kubectl.stored("a"))["metadata"]["labels"] == {"region": "us"}
    assert await kubectl.holders("a") == {
        "ci Apply": {"f:spec": {"f:hubAcceptsClient": {}}},
        "kubectl Apply": {
            "f:metadata": {"f:labels": {"f:region": {}}},
            "f:spec": {"f:hubAcceptsClient": {}, "f:leaseDurationSeconds": {}},
        },
    }

    await kubectl.done("create -f -", given=cluster("b", hubAcceptsClient=False, leaseDurationSeconds=30))
    refused = await kubectl.refused(APPLY, given=cluster("b", hubAcceptsClient=True))
    why = f'error: Apply failed with 1 conflict: conflict with "kubectl-create" using {GROUP}/v1: .spec.hubAcceptsClient'
    assert refused[0] == why


async def test_every_command_writes_in_its_own_name(kubectl: Commands) -> None:
    await kubectl.done(
        "create -f -", given=cluster("a", labels={"region": "eu"}, hubAcceptsClient=False, leaseDurationSeconds=30)
    )
    await kubectl.done("label mcl a tier=gold")
    await kubectl.done("annotate mcl a note=hello")
    await kubectl.done("patch mcl a --type=merge -p", '{"spec":{"hubAcceptsClient":true}}')
    await kubectl.done("edit mcl a")
    assert await kubectl.holders("a") == {
        "kubectl-create Update": {"f:metadata": {"f:labels": {".": {}, "f:region": {}}}, "f:spec": {}},
        "kubectl-label Update": {"f:metadata": {"f:labels": {"f:tier": {}}}},
        "kubectl-annotate Update": {"f:metadata": {"f:annotations": {".": {}, "f:note": {}}}},
        "kubectl-patch Update": {"f:spec": {"f:hubAcceptsClient": {}}},
        "kubectl-edit Update": {"f:spec": {"f:leaseDurationSeconds": {}}},
    }

    await kubectl.done(
        "replace -f -", given=cluster("a", labels={"region": "de"}, hubAcceptsClient=True, leaseDurationSeconds=31)
    )
    holders = await kubectl.holders("a")
    assert holders["kubectl-replace Update"] == {"f:metadata": {"f:labels": {"f:region": {}}}}
    assert "kubectl-annotate Update" not in holders

    await kubectl.done("create -f -", given=cluster("b", hubAcceptsClient=False))
    for kind, more in (("One", {"version": {"kubernetes": "v1.31.0"}}), ("Other", {})):
        condition = {
            "type": kind,
            "status": "True",
            "reason": "Test",
            "message": "",
            "lastTransitionTime": "2026-11-21T00:00:00Z",
        }
        document = {**cluster("b"), "status": {"conditions": [condition], **more}}
        command = f"apply --server-side --subresource=status --field-manager={kind.lower()} -f -"
        assert await kubectl.done(command, given=document) == [f"managedcluster.{GROUP}/b serverside-applied"]
    stored = await kubectl.stored("b")
    assert [condition["type"] for condition in stored["status"]["conditions"]] == ["One", "Other"]
    entries = {entry["manager"]: entry for entry in stored["metadata"]["managedFields"]}
    assert (entries["one"]["subresource"], list(entries["other"]["fieldsV1"]["f:status"])) == ("status", ["f:conditions"])
    assert list(entries["other"]["fieldsV1"]["f:status"]["f:conditions"]) == ['k:{"type":"Other"}']


async def test_client_side_apply_diff_and_edit(kubectl: Commands) -> None:
    def wanted(region: str, seconds: int = 30) -> dict[str, Any]:
        return cluster("a", labels={"region": region}, hubAcceptsClient=False, leaseDurationSeconds=seconds)

    assert "+ hubAcceptsClient: false" in await kubectl.refused("diff --server-side -f -", given=wanted("eu"))
    await kubectl.refused("get mcl a")
    assert await kubectl.done("apply -f -", given=wanted("eu")) == [f"managedcluster.{GROUP}/a created"]
    assert await kubectl.done("apply -f -", given=wanted("eu")) == [f"managedcluster.{GROUP}/a unchanged"]
    assert (await kubectl.last_applied("a"))["spec"]["leaseDurationSeconds"] == 30

    before = await kubectl.stored("a")
    await kubectl.done("diff -f -", given=wanted("eu"))
    for command in ("diff -f -", "diff --server-side --force-conflicts -f -"):
        assert {"- region: eu", "+ region: us"} <= set(await kubectl.refused(command, given=wanted("us")))
    await kubectl.done("apply --server-side --dry-run=server --force-conflicts -f -", given=wanted("us"))
    assert await kubectl.stored("a") == before

    await kubectl.done(APPLY, given=wanted("us", 45))
    stored = await kubectl.stored("a")
    assert (stored["metadata"]["labels"], stored["spec"]["leaseDurationSeconds"]) == ({"region": "us"}, 45)
    assert (await kubectl.last_applied("a"))["spec"]["leaseDurationSeconds"] == 45
    assert "kubectl-client-side-apply Update" not in await kubectl.holders("a")

    await kubectl.done("create --save-config -f -", given=cluster("b", hubAcceptsClient=False, leaseDurationSeconds=30))
    await kubectl.done("edit mcl b --save-config")
    assert (await kubectl.last_applied("b"))["spec"]["leaseDurationSeconds"] == 31
