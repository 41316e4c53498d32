"""Path elements in Kubernetes' notation (`f:spec`, `k:{"type":"Ready"}`, `v:"a"`, `i:0`), their order and display."""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

FIELD, KEY, VALUE, INDEX = "f:", "k:", "v:", "i:"
_RANKS = {FIELD: 0, KEY: 1, VALUE: 2, INDEX: 3}


def field(name: str) -> str:
    return FIELD + name


def key(entry: Mapping[str, Any]) -> str:
    """Element of a list map's entry, by its key fields."""
    if len(entry) == 1:
        ((name, content),) = entry.items()
        if isinstance(content, str):
            return _text_key(name, content)
    return KEY + _dumped({name: _plain(entry[name]) for name in sorted(entry)})


@lru_cache(maxsize=4096)
def _text_key(name: str, content: str) -> str:
    return KEY + _dumped({name: content})


def value(scalar: Any) -> str:
    """Element of a set's entry."""
    return VALUE + _dumped(_plain(scalar))


def canonical(text: str) -> str | None:
    """The element in canonical form; None for an unknown kind, which a later version may have. Raises ValueError."""
    kind, rest = text[:2], text[2:]
    if kind == FIELD:
        return text
    if len(text) < len(FIELD) or kind[1] != ":":
        msg = f"not a path element: {text[:80]}"
        raise ValueError(msg)
    if kind == KEY:
        fields = json.loads(rest)
        if not isinstance(fields, dict):
            msg = f"a key is an object: {text[:80]}"
            raise ValueError(msg)
        return key(fields)
    if kind == VALUE:
        return value(json.loads(rest))
    return f"{INDEX}{int(rest)}" if kind == INDEX else None


@lru_cache(maxsize=4096)
def order(element: str) -> tuple[Any, ...]:
    """Sort key: fields, then keys, values and indexes, each by content."""
    kind, rest = element[:2], element[2:]
    if kind == FIELD:
        return (0, rest)
    if kind == KEY:
        fields = json.loads(rest)
        return (1, tuple((name, _value_order(fields[name])) for name in sorted(fields)))
    return (_RANKS[kind], _value_order(json.loads(rest)))


def shown(path: Sequence[str]) -> str:
    """A path for messages: `.status.conditions[type="Ready"].status`."""
    return "".join(_shown(element) for element in path)


def _shown(element: str) -> str:
    kind, rest = element[:2], element[2:]
    if kind == FIELD:
        return f".{rest}"
    if kind == KEY:
        fields = json.loads(rest)
        return "[" + ",".join(f"{name}={_dumped(fields[name])}" for name in sorted(fields)) + "]"
    return f"[={rest}]" if kind == VALUE else f"[{rest}]"


def _plain(scalar: Any) -> Any:
    """Convert integral floats to int: 80.0 is 80."""
    return int(scalar) if isinstance(scalar, float) and scalar.is_integer() else scalar


def _dumped(content: Any) -> str:
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"))


def _value_order(scalar: Any) -> tuple[int, Any]:
    if isinstance(scalar, bool):
        return (2, scalar)
    if isinstance(scalar, int | float):
        return (0, scalar)
    return (1, scalar) if isinstance(scalar, str) else (3, _dumped(scalar))
