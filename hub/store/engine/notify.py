"""Notifications that a transaction has committed, and the callbacks that they wake.

PostgreSQL notifies all replicas; `hub.store.changelog.doorbell` receives the notifications. On SQLite there is only this
process: the code that runs the transaction passes on the topics of `take_notifications` after the commit.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import NewType

from sqlalchemy import ColumnElement, Connection, bindparam, func, literal_column, select

CHANNEL = "muster"

Topic = NewType("Topic", str)
CHANGES = Topic("changes")
"""The change log has grown."""
REVOCATIONS = Topic("revocations")
"""Certificates or credentials were revoked."""
SESSIONS = Topic("sessions")
"""Sessions have opened."""
_NOTIFIED = "notified"
NO_SENDER = ""
"""Used instead of a sender: all replicas are notified, also the replica that commits."""


def notify_expression(topic: Topic) -> ColumnElement[str]:
    """Return the SQL expression that notifies at commit, once per transaction. Its parameter `sender`: this replica."""
    sender: ColumnElement[str] = bindparam("sender")
    payload = literal_column(f"'{topic} '").concat(sender)
    notification: ColumnElement[str] = func.pg_notify(literal_column(f"'{CHANNEL}'"), payload)
    return notification


def notify_all(connection: Connection, topic: Topic) -> None:
    """Notify all replicas at commit."""
    if connection.dialect.name == "sqlite":
        connection.info.setdefault(_NOTIFIED, set()).add(topic)
    notify_others(connection, topic, NO_SENDER)


def notify_others(connection: Connection, topic: Topic, sender: str) -> None:
    """Notify all replicas except `sender` at commit. A no-op on SQLite."""
    if connection.dialect.name == "postgresql":
        connection.execute(select(notify_expression(topic)), {"sender": sender})


def take_notifications(connection: Connection) -> Collection[Topic]:
    """Return and clear the topics of the transaction. Call it before the commit; pass them on in this process after it."""
    topics: Collection[Topic] = connection.info.pop(_NOTIFIED, ())
    return topics


Wake = Callable[[], None]


class WakeCallbacks:
    """Callbacks of one topic. An object of this class belongs to one event loop."""

    def __init__(self) -> None:
        self._wakes: set[Wake] = set()

    @contextmanager
    def registered(self, wake: Wake) -> Iterator[None]:
        self._wakes.add(wake)
        try:
            yield
        finally:
            self._wakes.discard(wake)

    def wake(self) -> None:
        for wake in tuple(self._wakes):
            wake()
