"""What of an answer must be as recorded, and what is chance. Each difference is reported as `<aspect>: <what>`."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import yaml

from hub.api.managed_fields import HUB_WRITER

CHANCE = (
    *("uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "lastTransitionTime", "lastUpdateTime", "continue"),
    *("certificate", "storageVersionHash", "serverAddressByClientCIDRs", "freshness", "description"),
)
UNORDERED = ("resourceRules", "nonResourceRules")  # the original goes through a map
HEADERS = ("Content-Type", "Retry-After", "Warning", "Allow", "Vary", "Cache-Control")
_UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
AGE = re.compile(r"(\d+[smhdy])+")


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request and the answer of the original. `number` keeps names apart that occur twice."""

    number: int
    case: str
    request: Mapping[str, Any]
    response: Mapping[str, Any]

    @property
    def name(self) -> str:
        return f"{self.number:03d} {self.case}"


def differences(recorded: Exchange, status: int, headers: Mapping[str, str], content: Any) -> Iterator[str]:
    """Every aspect in which our answer is not the recorded one."""
    response = recorded.response
    if status != response["status"]:
        yield f"status: {status} in place of {response['status']}, {json.dumps(content)[:300]}"
    yield from _header_differences(response["headers"], headers)
    expected = response.get("body", response.get("lines"))
    if response["headers"].get("content-type") == "application/yaml":
        expected = yaml.safe_load(expected)
    path = recorded.request["path"].partition("?")[0]
    if "lines" in response:
        yield from _watch_differences(expected, content)
    elif path.split("/")[1] in ("healthz", "livez", "readyz") and not isinstance(expected, dict):
        first_and_last = [(lines[0], lines[-1]) for lines in (str(each).strip().splitlines() for each in (expected, content))]
        if first_and_last[0] != first_and_last[1]:
            yield f"body: {content!r:.200} in place of {expected!r:.200}"
    elif isinstance(expected, dict) and isinstance(content, dict):
        yield from _document_differences(path, expected, content)
    elif (expected or "") != (content or ""):
        yield f"body: {content!r:.200} in place of {expected!r:.200}"


def _header_differences(expected: Mapping[str, str], ours: Mapping[str, str]) -> Iterator[str]:
    for name in HEADERS:
        if (wanted := expected.get(name.lower())) != (got := ours.get(name)):
            yield f"{name}: {got} in place of {wanted}"
    if "etag" in expected and "ETag" not in ours:
        yield "ETag: none"


def _watch_differences(expected: list[Any], ours: list[Any]) -> Iterator[str]:
    if expected and "type" not in expected[0]:
        yield from _status_differences(expected[0], ours[0] if ours else {})
        return
    wanted, got = [_told(line) for line in expected], [_told(line) for line in ours]
    if wanted != got:
        yield f"events: {got} in place of {wanted}"
        return
    columns = [expected[0]["object"].get("columnDefinitions"), ours[0]["object"].get("columnDefinitions")] if ours else []
    for line, other in zip(expected, ours, strict=True):
        document, shown = line["object"], other["object"]
        if line["type"] == "ERROR":
            yield from _status_differences(document, shown)
        elif document.get("kind") == "Table":  # the columns stand in the first event only
            tables = ({**document, "columnDefinitions": columns[0]}, {**shown, "columnDefinitions": columns[1]})
            yield from _object_differences("event", _table(tables[0]), _table(tables[1]))
        else:
            yield from _object_differences("event", _plain(document), _plain(shown))


def _told(line: Mapping[str, Any]) -> tuple[str, Any]:
    document = line.get("object", {})
    shown = (document.get("rows") or [{}])[0].get("object") or document
    name = shown.get("metadata", {}).get("name")
    return str(line.get("type")), name if name is None or not name.startswith(("gen-", "g-")) else "generated"


def _document_differences(path: str, expected: Any, ours: Any) -> Iterator[str]:
    if path == "/version":
        yield from (f"version: no {name}" for name in ("major", "minor", "gitVersion", "platform") if name not in ours)
    elif path == "/":
        yield from (f"paths: {each}" for each in ours["paths"] if each not in expected["paths"])
    elif path.startswith("/openapi/v3"):
        yield from _openapi_differences(expected, ours)
    elif expected.get("kind") == "Status":
        yield from _status_differences(expected, ours)
    elif path.startswith("/api") and expected.get("kind", "").startswith("API"):
        yield from _object_differences("discovery", _discovered(expected, ours), _discovered(ours, ours))
    elif expected.get("kind") == "Table":
        yield from _object_differences("table", _table(expected), _table(ours))
    else:
        yield from _object_differences("object", _plain(expected), _plain(ours))


def _status_differences(expected: Mapping[str, Any], ours: Mapping[str, Any]) -> Iterator[str]:
    for name in ("kind", "apiVersion", "status", "reason", "code", "message"):
        if _without_chance(expected.get(name)) != _without_chance(ours.get(name)):
            yield f"{name}: {ours.get(name)!r} in place of {expected.get(name)!r}"
    if _details(expected) != _details(ours):
        yield f"details: {_details(ours)} in place of {_details(expected)}"


def _without_chance(text: Any) -> Any:
    return re.sub(r"[0-9]+", "#", _UID.sub("<uid>", text)) if isinstance(text, str) else text


def _details(document: Mapping[str, Any]) -> Any:
    details = dict(document.get("details") or {})
    causes = [(cause.get("reason"), cause.get("field")) for cause in details.pop("causes", [])]
    return {**_plain(details), "causes": sorted(set(causes), key=str)}


def _openapi_differences(expected: Mapping[str, Any], ours: Mapping[str, Any]) -> Iterator[str]:
    if "components" not in expected:
        for path, entry in ours["paths"].items():
            shape = re.sub(r"hash=[0-9A-F]+", "hash=", entry["serverRelativeURL"])
            wanted = expected["paths"].get(path, {}).get("serverRelativeURL", "")
            if shape != re.sub(r"hash=[0-9A-F]+", "hash=", wanted):
                yield f"index: {path}"
        return
    if sorted(expected["paths"]) != sorted(ours["paths"]):
        yield f"paths: {sorted(ours['paths'])} in place of {sorted(expected['paths'])}"
    for name, schema in expected["components"]["schemas"].items():
        if name.endswith("ManagedCluster"):
            yield from _object_differences(name, _plain(schema), _plain(ours["components"]["schemas"].get(name, {})))


def _discovered(document: Mapping[str, Any], ours: Mapping[str, Any]) -> Any:
    """A discovery document without the groups, versions and resources that only the other server has."""
    plain = _plain(document)
    for part in {"groups", "resources"} & {*plain}:
        plain[part] = _only(plain[part], ours[part], itemgetter("name"))
    if "items" in plain:
        plain["items"] = _only(plain["items"], ours["items"], lambda group: group["metadata"].get("name", ""))
    served = {group.get("name", group.get("metadata", {}).get("name", "")): group for group in _groups(ours)}
    for group in _groups(plain):
        same = served.get(group.get("name", group.get("metadata", {}).get("name", "")), {})
        group["versions"] = _only(group.get("versions", []), same.get("versions", []), itemgetter("version"))
        for version in group["versions"]:
            others: Mapping[str, Any] = next((each for each in same["versions"] if each["version"] == version["version"]), {})
            if "resources" in version:
                version["resources"] = _only(version["resources"], others["resources"], itemgetter("resource"))
                same_order = sorted(others["resources"], key=itemgetter("resource"))
                for resource, other in zip(version["resources"], same_order, strict=False):
                    parts = other.get("subresources", [])
                    kept = _only(resource.pop("subresources", []), parts, itemgetter("subresource"))
                    resource.update({"subresources": kept} if kept else {})
    return _unordered(plain)


def _groups(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    if document.get("kind") == "APIGroup":
        return [document]  # type: ignore[list-item]
    return list(document.get("groups", document.get("items", [])))


def _only(entries: list[Any], others: list[Any], key: Any) -> list[Any]:
    names = {key(other) for other in others}
    return sorted((entry for entry in entries if key(entry) in names), key=key)


def _unordered(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {name: _unordered(part) for name, part in value.items() if name != "responseKind"}
        return {**kept, **({"verbs": sorted(kept["verbs"])} if "verbs" in kept else {})}
    return [_unordered(part) for part in value] if isinstance(value, list) else value


def _table(document: Mapping[str, Any]) -> Any:
    """The columns that are not wide, their cells, and the objects."""
    columns = document.get("columnDefinitions") or []
    narrow = [index for index, column in enumerate(columns) if column["priority"] == 0]
    rows = document.get("rows", [])
    if columns:
        rows = [{**row, "cells": [row["cells"][index] for index in narrow]} for row in rows]
    return _plain({**document, "columnDefinitions": [columns[index] for index in narrow], "rows": rows})


def _plain(value: Any) -> Any:
    """The value without chance: names that were generated, ages, times, uids."""
    if isinstance(value, dict):
        kept = {name: _plain(part) for name, part in value.items() if name not in CHANCE}
        if "managedFields" in value:
            kept["managedFields"] = {_holder(entry): entry["fieldsV1"] for entry in value["managedFields"]}
        kept |= {name: sorted(kept[name], key=json.dumps) for name in UNORDERED if name in kept}
        if "generateName" in kept:
            kept["name"] = "generated"
        return kept
    if isinstance(value, list):
        return [_plain(part) for part in value]
    if isinstance(value, str) and AGE.fullmatch(value):
        return "<age>"
    if isinstance(value, str) and re.fullmatch(r"g(en)?-[a-z0-9]{5}", value):
        return "generated"
    return value


OWN_WRITERS = {"kube-apiserver": "the server itself", HUB_WRITER: "the server itself"}


def _holder(entry: Mapping[str, str]) -> str:
    """Who holds fields. Times are chance, and with them the order of the entries."""
    manager = OWN_WRITERS.get(entry["manager"], entry["manager"])
    return " ".join((entry["operation"], manager, entry["apiVersion"], entry.get("subresource", "")))


def _object_differences(aspect: str, expected: Any, ours: Any, path: str = "") -> Iterator[str]:
    if isinstance(expected, dict) and isinstance(ours, dict):
        for name in sorted({*expected, *ours}):
            if name in ("kind", "apiVersion") and ".items[" in path and name not in expected:
                continue
            if name not in expected or name not in ours:
                yield f"{aspect}: {path}.{name} {'is missing' if name in expected else 'is not recorded'}"
            else:
                yield from _object_differences(aspect, expected[name], ours[name], f"{path}.{name}")
    elif isinstance(expected, list) and isinstance(ours, list) and len(expected) == len(ours):
        for index, (each, other) in enumerate(zip(expected, ours, strict=True)):
            yield from _object_differences(aspect, each, other, f"{path}[{index}]")
    elif expected != ours:
        yield f"{aspect}: {path} is {ours!r:.200} in place of {expected!r:.200}"


STAMPED = ".spec.taints[0].timeAdded is not recorded"
"""The hub gives every taint its time, as OCM's webhook does; the recorded server had no webhooks."""
DELIBERATE: list[dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("deliberate.yaml").read_text())


def unexpected(case: str, found: list[str]) -> list[str]:
    """The differences that no one wanted, and the wanted ones that are gone."""
    listed = [difference for difference in DELIBERATE if difference["case"] == case]
    allowed = {aspect for difference in listed for aspect in difference["aspects"]}
    certain = {aspect for difference in listed if difference.get("certain", True) for aspect in difference["aspects"]}
    aspects = {difference.partition(":")[0] for difference in found}
    unwanted = [difference for difference in found if difference.partition(":")[0] not in allowed]
    return [*unwanted, *(f"{aspect}: listed as different, but it is as recorded" for aspect in sorted(certain - aspects))]
