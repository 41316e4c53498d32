"""How the process ends, and what it tells of itself."""

from datetime import timedelta
from pathlib import Path
from typing import Literal

from pydantic import Field

from hub.settings.fields import Duration, NoDuration
from hub.settings.group import SettingsGroup
from machinery.observability.logs import LogFormat


class ProcessSettings(SettingsGroup):
    """Stops, the age of sessions, logs."""

    shutdown_delay: NoDuration = Field(
        timedelta(), description="After SIGTERM everything is served this long while /readyz already fails."
    )
    shutdown_send_retry_after: bool = Field(
        True,  # noqa: FBT003 - a field's default
        description="true: once the delay is over new requests are told to try again (429, UNAVAILABLE) until the others are "
        "done; false: the listeners close at once.",
    )
    connection_age: NoDuration = Field(
        timedelta(hours=1),
        description="An agent whose session is about this old (up to a fifth less) is asked to open the next one, wherever the "
        "load balancer leads it. 0s: never.",
    )
    connection_age_grace: Duration = Field(
        timedelta(minutes=5), description="It has this long to do so; then the session ends."
    )
    shutdown_grace: Duration = Field(
        timedelta(seconds=10), description="Watches and agents' sessions are ended evenly within this time at a stop."
    )
    debug_socket: Path | None = Field(
        None,
        description="Unix socket that tells what the hub does right now (stacks, queues, sessions), to its user alone. "
        "Without it: only SIGUSR1 tells, in the log.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="The least that is logged.")
    log_format: LogFormat = Field(LogFormat.JSON, description="json: a line per event for machines; console: for people.")
