"""Messages for settings that pydantic rejects, in the terms of flags and YAML instead of Python's."""

import json
from collections.abc import Mapping
from typing import Any

_NUMBER, _WHOLE, _TEXT = "must be a number", "must be a whole number", "must be text"
_SENTENCES = {
    "missing": "is required",
    "extra_forbidden": "there is no such setting",
    "int_parsing": _WHOLE,
    "int_type": _WHOLE,
    "int_from_float": _WHOLE,
    "int_parsing_size": "has more digits than any number that can be used",
    "float_parsing": _NUMBER,
    "float_type": _NUMBER,
    "finite_number": _NUMBER,
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "string_type": _TEXT,
    "path_type": "must be a path",
    "tuple_type": "must be a list",
    "dict_type": "must be a mapping",
    "time_delta_type": "must be a duration, such as 60s",
    "time_delta_parsing": "must be a duration, such as 60s",
}
_BOUNDS = {
    "greater_than_equal": ("ge", "must be at least"),
    "greater_than": ("gt", "must be more than"),
    "less_than_equal": ("le", "must be at most"),
    "less_than": ("lt", "must be less than"),
}


def sentence(entry: Mapping[str, Any]) -> str:
    """Message for an entry of `ValidationError.errors()`. The message of an own validator is used unchanged."""
    kind, context = str(entry["type"]), entry.get("ctx") or {}
    if kind == "value_error":
        return str(entry["msg"]).removeprefix("Value error, ")
    if kind in _BOUNDS:
        name, words = _BOUNDS[kind]
        return f"{words} {context[name]}"
    if kind == "literal_error":
        return f"must be {context['expected']}"
    return _SENTENCES.get(kind, "has a value that cannot be used")


def unreadable(values: Mapping[str, Any]) -> list[str]:
    """Names of values with text that is not UTF-8. The environment may contain such text, and messages cannot include it."""
    return [name for name, value in values.items() if not _is_utf8(value)]


def _is_utf8(value: Any) -> bool:
    try:
        json.dumps(value, default=str, ensure_ascii=False).encode()
    except (UnicodeEncodeError, TypeError):
        return False
    return True
