"""How long a database may let the hub wait, and the hub others."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

BUSY_TIMEOUT_MS = 5000
HELD = timedelta(seconds=5)
"""A third of the leader's lease, where nobody says otherwise."""
SHORTEST = timedelta(seconds=1)
"""However short the lease is: every statement of the hub has so long, and the leader's lock has its own, shorter patience."""
SLACK = timedelta(seconds=2)
"""For the server's own time-out to be told."""


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """What follows from how long a hub that stands still, or is gone, may hold what others wait for.

    That is a third of the leader's lease, from one second to five. PostgreSQL and TCP count some of it in whole seconds, so
    below two seconds a connection that was cut is noticed later than asked for.
    """

    held: timedelta = HELD

    @staticmethod
    def of_lease(lease: timedelta) -> "SessionLimits":
        """The limits for a leader's lease of that duration.

        A long lease makes nobody wait longer than usual, and one of milliseconds ends no statement that needs more.
        """
        return SessionLimits(min(max(lease / 3, SHORTEST), HELD))

    @property
    def patience(self) -> float:
        """Seconds after which a server that has not answered a statement never will."""
        return (self.held + SLACK).total_seconds()

    def options(self) -> str:
        """Command-line options of a session. A wait for a lock ends before its statement does, and is reported as such."""
        held = max(round(self.held.total_seconds() * 1000), 1)
        timeouts = {
            "idle_in_transaction_session_timeout": held,
            "lock_timeout": held * 4 // 5,
            "statement_timeout": held,
            "tcp_user_timeout": held,
        }
        settings = timeouts | {f"tcp_{name}": value for name, value in self._keepalives().items()}
        return " ".join(f"-c {name}={value}" for name, value in settings.items())

    def arguments(self) -> Mapping[str, Any]:
        """Of a connection, the hub's side of it."""
        keepalives = self._keepalives()
        return {
            "application_name": "muster-hub",
            "connect_timeout": max(round(self.held.total_seconds()), 2),
            "keepalives": 1,
            **keepalives,
            "tcp_user_timeout": max(round(self.held.total_seconds() * 1000), 1),
        }

    def _keepalives(self) -> Mapping[str, int]:
        whole = max(int(self.held.total_seconds()), 2)
        idle = max(whole * 2 // 5, 1)
        return {"keepalives_idle": idle, "keepalives_interval": 1, "keepalives_count": max(whole - idle, 1)}


@dataclass(frozen=True, slots=True)
class DatabaseTimeouts:
    """Of both kinds of databases."""

    busy_timeout_ms: int = BUSY_TIMEOUT_MS
    """For the lock of an SQLite file."""
    session: SessionLimits = field(default_factory=SessionLimits)
    """On PostgreSQL."""


DEFAULT = DatabaseTimeouts()
