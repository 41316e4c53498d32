"""Keeps readers on the writer's server.

After a fail-over the writer notices, because its server stops accepting writes or answering. A reading connection may notice
nothing and show old data from a server that has become a standby or is cut off. So a reading connection that is older than the
writer's is replaced before its next use.
"""

from typing import Any

from sqlalchemy import Engine, event
from sqlalchemy.exc import DisconnectionError

MADE = "muster-made-after"


def follow_writer(reading: Engine, writing: Engine) -> None:
    """Replace connections of `reading` that are older than the newest connection of `writing` when they are checked out."""
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
            raise DisconnectionError("the writer has another connection by now")  # the pool reconnects
