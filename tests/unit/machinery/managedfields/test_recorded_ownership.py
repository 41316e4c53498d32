"""Field owners after every recorded write to a ManagedCluster on a real kube-apiserver."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

from hub.apiserver.kinds.managedcluster import SCHEMA
from machinery.managedfields import holdings as held
from machinery.managedfields.applying import Application
from machinery.managedfields.holdings import applier, updater
from machinery.managedfields.structure import structure
from machinery.managedfields.updating import Comparisons, OneVersion, updated
from tests.golden.replay import RECORDING

VERSION = "cluster.open-cluster-management.io/v1"
VERSIONS = OneVersion(structure(SCHEMA))
WRITES = {"POST": "application/json", "PUT": "application/json", "PATCH": "patch"}


@dataclass(frozen=True, slots=True)
class Write:
    """A recorded write of one object: as it was, what was sent, as it became."""

    title: str
    old: dict[str, Any]
    request: dict[str, Any]
    new: dict[str, Any]

    @property
    def applies(self) -> bool:
        return any("apply-patch" in value for value in self.request["headers"].values())

    @property
    def subresource(self) -> str:
        return "status" if self.request["path"].partition("?")[0].endswith("/status") else ""

    @property
    def manager(self) -> str:
        """In whose name: kubectl's commands have names of their own (the recording has no queries), others are Python."""
        command = self.title.split()
        if command[0] != "kubectl":
            return "me" if self.applies else "Python"
        if command[1] not in ("apply", "diff"):
            return f"kubectl-{command[1]}"
        if not self.applies:
            return "kubectl-client-side-apply"
        return "kubectl" if "spec" in self.request["body"] else "kubectl-last-applied"


@cache
def recorded() -> tuple[Write, ...]:
    return tuple(_writes())


def _writes() -> Iterator[Write]:
    """Each answer that is a ManagedCluster is the one before the next write to it."""
    known: dict[str, dict[str, Any]] = {}
    for name in ("kubectl.jsonl", "http.jsonl"):
        for line in RECORDING.with_name(name).read_text().splitlines():
            record = json.loads(line)
            for exchange in record.get("exchanges", [record]):
                body, request = exchange["response"].get("body"), exchange["request"]
                if not isinstance(body, dict) or body.get("kind") != "ManagedCluster":
                    continue
                old = known.get(body["metadata"]["name"], {})
                dry = "dryRun" in request["path"]
                if request["method"] in WRITES and (old or request["method"] == "POST") and _is_plain(request):
                    write = Write(
                        str(record.get("command") or record["case"]), {} if request["method"] == "POST" else old, request, body
                    )
                    if _visits(write.old) == _visits(body):
                        yield write
                if not dry:
                    known[body["metadata"]["name"]] = body


def _visits(document: dict[str, Any]) -> list[Any]:
    """When the controller of the recorded world wrote: it may do so between an answer and the next request."""
    entries = document.get("metadata", {}).get("managedFields", [])
    return [entry["time"] for entry in entries if entry["manager"] == "registration"]


def _is_plain(request: dict[str, Any]) -> bool:
    """Whether the writer leaves it to the server to say who holds what."""
    return "managedFields" not in json.dumps(request["body"])


def timeless(entries: list[Any]) -> list[Any]:
    kept = [{name: part for name, part in entry.items() if name != "time"} for entry in entries]
    return sorted(kept, key=lambda entry: (entry["operation"], entry["manager"], entry.get("subresource", "")))


def test_owners_after_a_write_are_as_recorded(subtests: pytest.Subtests) -> None:
    assert len(recorded()) >= 30
    assert sum(write.applies for write in recorded()) == 2

    for write in recorded():
        with subtests.test(write=write):
            before, expected = held.of_object(write.old), write.new["metadata"]["managedFields"]
            if write.applies:
                body = write.request["body"]
                config = json.loads(body) if isinstance(body, str) else body
                result = Application(VERSIONS, write.old, config, before, applier(write.manager), "now").result()
                ours = held.written(result.holdings)
            else:
                writer = updater(write.manager, VERSION, write.subresource)
                ours = held.written(updated(Comparisons(VERSIONS, write.old, write.new), before, writer, "now"))
            assert timeless(ours) == timeless(expected)
            assert held.written(held.read(expected)) == expected
