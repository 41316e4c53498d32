"""Readers stay on the writer's server.

When a database fails over, who writes notices: its server takes no more writes, or does not answer. A reading connection may
notice nothing and go on to show what was, on a server that has become somebody's standby, or that was cut off from the rest. So
a reading connection that is older than the writer's is made anew before it is used again.
"""

from typing import Any

from sqlalchemy import Engine, event
from sqlalchemy.exc import DisconnectionError

MADE = "muster-made-after"


def follow_writer(reading: Engine, writing: Engine) -> None:
    """From now on no connection of `reading` is used that was made before the newest one of `writing`."""
    newest = 0

    @event.listens_for(writing, "connect")
    def written(_connection: Any, _record: Any) -> None:
        nonlocal newest
        newest += 1

    @event.listens_for(reading, "connect")
    def made(_connection: Any, record: Any) -> None:
        record.info[MADE] = newest

    @event.listens_for(reading, "checkout")
    def used(_connection: Any, record: Any, _proxy: Any) -> None:
        if record.info[MADE] != newest:
            raise DisconnectionError("the writer has another connection by now")  # the pool makes this one anew
