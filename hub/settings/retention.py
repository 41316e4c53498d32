"""How long the past is kept, and how much room it may take."""

from datetime import timedelta

from pydantic import Field

from hub.settings.fields import Duration, NoDuration, Size
from hub.settings.group import SettingsGroup


class RetentionSettings(SettingsGroup):
    """History, and what is removed because it waited too long."""

    history_retention: NoDuration = Field(
        timedelta(days=30),
        description="The past of objects can be read this far back (`hubctl get clusters --at`, `hubctl history`). 0s: as far "
        "as --watch-window. Secrets, Events and Leases have no history.",
    )
    history_size: Size = Field(
        2**30,
        description="The change log, which the past is read from, takes this much at most: above it the oldest goes before its "
        "time, but nothing younger than --watch-window. A size such as 1Gi.",
    )
    disk_reserve: Size = Field(
        256 * 2**20,
        description="When less than this is free for an embedded database, the oldest history goes before its time; at twice "
        "as much operators are warned. A size such as 256Mi; 0: neither.",
    )
    pending_requests: Duration = Field(
        timedelta(hours=24),
        description="Certificate requests that nobody decides, and approved ones that nobody signs, are kept this long.",
    )
