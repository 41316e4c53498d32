"""Loads settings: flags override the environment, which overrides a YAML file. All problems are reported at once."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from machinery.errors import InvalidError
from machinery.meta import bounded_yaml
from machinery.meta.bounded_yaml import YamlError

S = TypeVar("S", bound=BaseModel)

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


def load_settings(
    model: type[S],
    prefix: str,
    flags: Mapping[str, Any],
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    *,
    aliases: Mapping[str, str] | None = None,
    separator: str = "_",
) -> S:
    """Merge and validate the settings. Raises InvalidError with all problems.

    A flag that is None or an empty tuple counts as not set, and so does an empty variable. `prefix`: prefix of environment
    variables. `environment` None: the variables of this process. `aliases`: other names of settings in environment and file.
    `separator`: the text between the words of a setting's name in messages.
    """
    other_names = aliases or {}
    variables = {key.upper(): value for key, value in (os.environ if environment is None else environment).items()}
    names = {prefix + name.upper(): other_names.get(name, name) for name in (*other_names, *model.model_fields)}
    from_file, problems = _read(file)
    sources: tuple[tuple[str, Mapping[str, Any]], ...] = (
        (f"file {file}", {other_names.get(name, name): value for name, value in from_file.items()}),
        ("environment", {name: variables[key] for key, name in names.items() if variables.get(key)}),
        ("flags", {name: value for name, value in flags.items() if value is not None and value != ()}),
    )
    merged: dict[str, Any] = {}
    source_of: dict[str, str] = {}
    for source, values in sources:
        merged |= values
        source_of |= dict.fromkeys(values, source)

    def message(text: str, name: str = "", *path: object) -> str:
        where = name.replace("_", separator) + "".join(f"[{part}]" for part in path) if name else "several together"
        return f"{source_of.get(name, 'settings')}: {where}: {text}"

    garbled = [name for name, value in merged.items() if not _is_utf8(value)]  # pydantic cannot quote such a value
    problems += [message("is not text in UTF-8", name) for name in garbled]
    if not garbled:
        try:
            settings = model(**merged)
        except ValidationError as error:
            entries = error.errors(include_url=False, include_input=False)
            problems += [message(problem_of(entry), *map(str, entry["loc"])) for entry in entries]
    if problems:
        count = "one problem" if len(problems) == 1 else f"{len(problems)} problems"
        raise InvalidError("\n".join([f"the settings have {count}:", *(f"  - {each}" for each in problems)]))
    return settings


def _read(file: Path | None) -> tuple[dict[str, Any], list[str]]:
    if file is None:
        return {}, []
    try:
        content = bounded_yaml.load(file.read_bytes())
    except OSError as error:
        return {}, [f"file {file}: cannot be read: {error.strerror or error}"]
    except YamlError as error:
        return {}, [f"file {file}: is not YAML: {error}"]
    if content is not None and not isinstance(content, dict):
        return {}, [f"file {file}: must be a mapping of settings to values"]
    return {str(name).replace("-", "_"): value for name, value in (content or {}).items()}, []


def problem_of(entry: Mapping[str, Any]) -> str:
    """Return the message for an entry of `ValidationError.errors()`. Messages of this project's validators stay unchanged."""
    kind, context = str(entry["type"]), entry.get("ctx") or {}
    if kind == "value_error":
        return str(entry["msg"]).removeprefix("Value error, ")
    if kind in _BOUNDS:
        name, words = _BOUNDS[kind]
        return f"{words} {context[name]}"
    if kind in ("literal_error", "enum"):
        return f"must be {context['expected']}"
    return _SENTENCES.get(kind, "has a value that cannot be used")


def _is_utf8(value: Any) -> bool:
    try:
        json.dumps(value, default=str, ensure_ascii=False).encode()
    except (UnicodeEncodeError, TypeError):
        return False
    return True
