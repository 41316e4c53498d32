"""Types of options that several commands take."""

from datetime import timedelta
from typing import Any

import click

from machinery.durations import parse_duration


class Duration(click.ParamType[timedelta]):
    """As in 500ms, 60s, 1h30m."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        try:
            return value if isinstance(value, timedelta) else parse_duration(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


DURATION = Duration()
