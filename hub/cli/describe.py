"""`hubctl describe cluster NAME`: one cluster on one page."""

from collections.abc import Iterator, Mapping
from typing import Any

from hub.cli.connection import TABLE, Door
from hub.cli.resources import CLUSTERS

INDENT = "  "


def cluster_page(door: Door, name: str) -> Iterator[str]:
    """The lines. Raises CliError when there is no such cluster."""
    cluster = door.get(CLUSTERS.object_path(name))
    table = door.get(CLUSTERS.object_path(name), accept=TABLE)
    cells = _cells(table)
    metadata, spec, status = cluster["metadata"], cluster.get("spec") or {}, cluster.get("status") or {}
    yield from _section(
        {
            "Name": metadata["name"],
            "Accepted": "yes" if spec.get("hubAcceptsClient") else f"no (accept it with `hubctl accept {name}`)",
            "Available": cells.get("Available") or "never reported",
            "Joined": cells.get("Joined") or "no",
            "Last beat": cells.get("Last Beat") or "never",
            "Agent": cells.get("Agent") or "none yet",
            "Version": cells.get("Version") or "",
            "Nodes": cells.get("Nodes") or "",
            "Lease duration": f"{spec.get('leaseDurationSeconds', 60)}s (silence of five makes it Unknown)",
            "Created": metadata.get("creationTimestamp", ""),
            "UID": metadata.get("uid", ""),
        }
    )
    yield from _mapping("Labels", metadata.get("labels"))
    yield from _mapping("Annotations", metadata.get("annotations"))
    yield from _rows("Taints", [f"{t['key']}={t.get('value', '')}:{t['effect']}" for t in spec.get("taints") or ()])
    yield from _rows("API servers", [config["url"] for config in spec.get("managedClusterClientConfigs") or ()])
    yield from _rows("Conditions", [_condition(entry) for entry in status.get("conditions") or ()])
    yield from _mapping("Capacity", status.get("capacity"))
    yield from _mapping("Allocatable", status.get("allocatable"))
    yield from _mapping("Claims", {claim["name"]: claim["value"] for claim in status.get("clusterClaims") or ()})


def _cells(table: Mapping[str, Any]) -> dict[str, str]:
    names = [column["name"] for column in table["columnDefinitions"]]
    return {name: "" if cell is None else str(cell) for name, cell in zip(names, table["rows"][0]["cells"], strict=False)}


def _condition(entry: Mapping[str, Any]) -> str:
    return (
        f"{entry['type']}: {entry['status']} since {entry.get('lastTransitionTime', '?')} "
        f"({entry.get('reason', '')}: {entry.get('message', '')})"
    )


def _section(values: Mapping[str, Any]) -> Iterator[str]:
    width = max(len(name) for name in values) + 2
    for name, value in values.items():
        yield f"{name + ':':<{width}}{value}".rstrip()


def _mapping(title: str, values: Mapping[str, Any] | None) -> Iterator[str]:
    yield from _rows(title, [f"{name}={value}" for name, value in sorted((values or {}).items())])


def _rows(title: str, rows: list[str]) -> Iterator[str]:
    if rows:
        yield f"{title}:"
        yield from (f"{INDENT}{row}" for row in rows)
