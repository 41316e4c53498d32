"""Time-outs of PostgreSQL sessions."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

HELD = timedelta(seconds=5)
"""Default of `SessionLimits.held`: a third of the leader's default lease."""
SHORTEST = timedelta(seconds=1)
"""Lower bound for short leases: every statement has at least this time. The leader's lock has its own, shorter time-out."""
SLACK = timedelta(seconds=2)
"""Time for the server to report its own time-out."""


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """Session limits. `held`: time for which a suspended or lost hub may hold locks that other hubs wait for.

    PostgreSQL and TCP count some limits in whole seconds, so below two seconds a cut connection is detected later.
    """

    held: timedelta = HELD

    @staticmethod
    def of_lease(lease: timedelta) -> "SessionLimits":
        """Return the limits for a leader's lease of this duration. `held` is a third of `lease`, between SHORTEST and HELD."""
        return SessionLimits(min(max(lease / 3, SHORTEST), HELD))

    @property
    def patience(self) -> float:
        """Seconds without an answer after which the hub gives up a connection."""
        return (self.held + SLACK).total_seconds()

    def options(self) -> str:
        """Return session options. The lock time-out is the shortest, so that the server reports a wait for a lock as such."""
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
        """Return the driver's arguments with the limits on the hub's side of the connection."""
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


DEFAULT = SessionLimits()
