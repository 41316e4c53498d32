"""The table of a chart's values, from values.yaml: every value with its default, and the comment above it as what it means."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

_KEY = re.compile(r"^( *)([A-Za-z][\w.-]*):(.*)$")
_WIDEST = 60


@dataclass(frozen=True, slots=True)
class Value:
    """`default` is None for what only holds others."""

    path: str
    default: str | None
    meaning: str


def values_of(text: str) -> Iterator[Value]:
    """In the order of the file. What stands below an example or a list is part of it."""
    known = yaml.safe_load(text)
    comment: list[str] = []
    above: list[tuple[int, str]] = []
    for line in text.splitlines():
        stripped = line.strip()
        found = _KEY.match(line)
        if stripped.startswith("#"):
            comment.append(stripped.removeprefix("#").removeprefix(" "))
        elif found:
            depth = len(found[1])
            above = [each for each in above if each[0] < depth]
            path = [*(name for _, name in above), found[2]]
            value = _at(known, path)
            if value is not _NOTHING:
                yield Value(".".join(path), _shown(value), _told(comment))
                above.append((depth, found[2]))
            comment = []
        else:
            comment = []


_NOTHING = object()


def _at(known: Any, path: list[str]) -> Any:
    for step in path:
        if not isinstance(known, dict) or step not in known:
            return _NOTHING
        known = known[step]
    return known


def _shown(value: Any) -> str | None:
    return None if isinstance(value, dict) and value else json.dumps(value)


def _told(comment: list[str]) -> str:
    """Sentences in one line; an example, which is indented, as code."""
    told = [f"`{line.strip()}`" if line.startswith("  ") else line for line in comment]
    return " ".join(told).replace("|", "\\|")


def table(text: str) -> str:
    rows = [value for value in values_of(text) if value.default is not None or value.meaning]
    lines = ["| value | default | what it is |", "|---|---|---|"]
    for value in rows:
        default = f"`{value.default}`" if value.default is not None else ""
        if len(default) > _WIDEST:
            default = "see values.yaml"
        lines.append(f"| `{value.path}` | {default} | {value.meaning} |")
    return "\n".join(lines) + "\n"
