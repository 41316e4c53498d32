"""How long what the hub makes and keeps is good, and how long it may take to start."""

from datetime import timedelta
from typing import Literal

from pydantic import Field

from hub.settings.fields import Duration, NoDuration
from hub.settings.group import SettingsGroup


class LifetimeSettings(SettingsGroup):
    """Validities, retention, deadlines."""

    agent_lifetime: Duration = Field(timedelta(days=30), description="Validity of an agent's certificate.")
    recovery_lifetime: Duration = Field(timedelta(days=90), description="Validity of the recovery certificate beside it.")
    recovery: Literal["automatic", "manual"] = Field(
        "automatic",
        description="Whether an agent whose certificate expired while it was off comes back with its recovery certificate by "
        "itself, or waits for `hubctl certificate approve`.",
    )
    bootstrap_lifetime: Duration = Field(timedelta(hours=1), description="Validity of a bootstrap credential, unless it says.")
    serving_lifetime: Duration = Field(timedelta(days=365), description="Validity of the doors' certificate.")
    ca_lifetime: Duration = Field(timedelta(days=3650), description="Validity of the hub's CA.")
    watch_window: Duration = Field(timedelta(hours=1), description="A watch can resume from changes as old as this.")
    event_lifetime: Duration = Field(timedelta(hours=1), description="Events are kept this long after they were last seen.")
    finished_requests: Duration = Field(timedelta(hours=1), description="Decided certificate requests are kept this long.")
    ended_credentials: Duration = Field(
        timedelta(days=30),
        description="Bootstrap credentials that expired or were revoked, and the record of their uses, are kept this long.",
    )
    deletion_deadline: Duration = Field(
        timedelta(hours=1),
        description="What belongs to a deleted cluster goes in the order of its priorities; after this long all of it at once, "
        "an operator is told, and its certificates are revoked at the latest. "
        "Nothing is given up but with `hubctl delete cluster NAME --force`.",
    )
    start_timeout: Duration = Field(
        timedelta(seconds=60),
        description="Opening and migrating the database may take this long, and everything until the doors open twice as long.",
    )
    livez_grace: NoDuration = Field(
        timedelta(), description="For this long after a start /livez passes over what has not finished starting."
    )
