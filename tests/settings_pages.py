"""The pages of docs/reference that list every setting; `python -m tests.settings_pages` writes them."""

import argparse
import inspect
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from hub.__main__ import NO_FLAGS
from hub.extensions.settings import Settings
from hub.settings import ENVIRONMENT_PREFIX, HubSettings
from hub.settings.fields import SettingsGroup
from machinery.durations import format_duration
from spoke.cli.flags import parser

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
MADE = "<!-- Made by `make reference` from the settings: change them there. -->"
HEAD = "| setting | default | what it does |\n|---|---|---|\n"


def pages() -> Iterator[tuple[Path, str]]:
    """Files, each as it ought to be."""
    yield FOLDER / "settings-of-the-hub.md", _of_the_hub()
    yield FOLDER / "settings-of-the-agent.md", _of_the_agent()


def write() -> None:
    for path, content in pages():
        path.write_text(content)


def _of_the_hub() -> str:
    groups = [
        group
        for group in Settings.__mro__
        if issubclass(group, SettingsGroup) and group not in (SettingsGroup, HubSettings, Settings)
    ]
    tables = "\n".join(
        f"## {(inspect.getdoc(group) or '').splitlines()[0].rstrip('.')}\n\n{HEAD}{''.join(_rows(group))}"
        for group in reversed(groups)
    )
    return (
        f"{MADE}\n\n# Settings of the hub\n\nEach is a flag of `hub serve` (`--grpc-listen`), a variable of the environment "
        f"(`{ENVIRONMENT_PREFIX}GRPC_LISTEN`) and a key of the YAML file\nof `--config` (`grpc_listen`). Flags win over the "
        "environment, the environment over the file. Durations are written 500ms, 60s, 5m, 1h30m, 30d.\n\n"
        f"{tables}"
    )


def _rows(group: type[SettingsGroup]) -> Iterator[str]:
    for name in inspect.get_annotations(group):
        if name in Settings.model_fields:
            field = Settings.model_fields[name]
            written = f"`{ENVIRONMENT_PREFIX}{name.upper()}`" if name in NO_FLAGS else f"`--{name.replace('_', '-')}`"
            default = field.get_default(call_default_factory=True, validated_data={})
            yield f"| {written} | {_shown(default)} | {_cell(' '.join((field.description or '').split()))} |\n"


def _of_the_agent() -> str:
    run = next(action.choices["run"] for action in parser()._actions if isinstance(action, argparse._SubParsersAction))
    rows = "".join(
        f"| `{action.option_strings[0]}` | {_cell(action.help or '')} |\n"
        for action in run._actions
        if action.option_strings and action.dest != "help"
    )
    return (
        f"{MADE}\n\n# Settings of the agent\n\nEach is a flag of `spoke run` (`--cluster-name`), a variable of the environment "
        "(`SPOKE_CLUSTER_NAME`) and a key of the\nYAML file of `--config` (`cluster-name`). Flags win over the environment, "
        "the environment over the file.\n[Options of the agent](agent-options.md) has them beside OCM's.\n\n"
        f"| setting | what it does |\n|---|---|\n{rows}"
    )


def _shown(default: Any) -> str:
    if default is None or default == ():
        return ""
    if isinstance(default, timedelta):
        return f"`{format_duration(default)}`"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    return f"`{str(default).replace(str(Path.home()), '~')}`"


def _cell(text: str) -> str:
    return " ".join(text.replace("%%", "%").split()).replace("|", "\\|")


if __name__ == "__main__":
    write()
