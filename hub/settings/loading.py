"""From flags, environment and file to settings; what is wrong is told at once and in full, each problem with its place."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from hub.settings.group import ENVIRONMENT_PREFIX
from hub.settings.settings import HubSettings
from machinery.meta import bounded_yaml as boundedyaml
from machinery.meta.bounded_yaml import YamlError
from machinery.setting_errors import sentence, unreadable


class SettingsError(Exception):
    """The settings are wrong: `problems` are sentences, each beginning with its place."""

    def __init__(self, problems: Sequence[str]) -> None:
        count = "one problem" if len(problems) == 1 else f"{len(problems)} problems"
        super().__init__("\n".join([f"the settings have {count}:", *(f"  - {problem}" for problem in problems)]))
        self.problems = tuple(problems)


def load(flags: Mapping[str, Any], file: Path | None = None, environment: Mapping[str, str] | None = None) -> HubSettings:
    """The settings from all three places. Raises SettingsError with every problem.

    `environment` None: the process's own. A flag that is None or empty was not given.
    """
    given = {name: value for name, value in flags.items() if value is not None and value != ()}
    from_environment = _environment(environment)
    from_file, problems = _file(file)
    places = [
        ("file " + str(file), {name.replace("-", "_"): value for name, value in from_file.items()}),
        ("environment", from_environment),
        ("flags", given),
    ]
    merged: dict[str, Any] = {}
    origin: dict[str, str] = {}
    for place, values in places:
        merged |= values
        origin |= dict.fromkeys(values, place)
    if garbled := unreadable(merged):
        raise SettingsError([*problems, *(f"{origin[name]}: {name}: is not text in UTF-8" for name in garbled)])
    try:
        settings = _Merged(**merged)
    except ValidationError as error:
        problems += [_problem(entry, origin) for entry in error.errors(include_url=False, include_input=False)]
    if problems:
        raise SettingsError(problems)
    return settings


class _Merged(HubSettings):
    """The model alone: `load` has read the other places already, and knows which value came from where."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - the base class passes it by name
        init_settings: PydanticBaseSettingsSource,
        *_: Any,
        **__: Any,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)


def _environment(environment: Mapping[str, str] | None) -> dict[str, Any]:
    present = os.environ if environment is None else environment
    names = {ENVIRONMENT_PREFIX + name.upper(): name for name in HubSettings.model_fields}
    return {names[key.upper()]: value for key, value in present.items() if value and key.upper() in names}


def _file(file: Path | None) -> tuple[dict[str, Any], list[str]]:
    if file is None:
        return {}, []
    try:
        content = boundedyaml.load(file.read_bytes())
    except OSError as error:
        return {}, [f"file {file}: cannot be read: {error.strerror or error}"]
    except YamlError as error:
        return {}, [f"file {file}: is not YAML: {error}"]
    if content is None:
        return {}, []
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        return {}, [f"file {file}: must be a mapping of settings to values"]
    return content, []


def _problem(entry: Mapping[str, Any], origin: Mapping[str, str]) -> str:
    name, *rest = [str(part) for part in entry["loc"]] or ["several together"]
    path = "".join([name, *(f"[{part}]" for part in rest)])
    return f"{origin.get(name, 'settings')}: {path}: {sentence(entry)}"
