"""How a transaction tells whoever waits for it that it has committed.

On PostgreSQL the database notifies all replicas, and `hub.store.changelog.doorbell` receives it. On SQLite there is only this
process: the code that runs the transaction passes on afterwards what was `rung`.
"""

from collections.abc import Collection
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
_RUNG = "rung"
EVERYBODY = ""
"""As a ringer: whoever listens hears it, the replica whose commit it is too."""


def ring(topic: Topic) -> ColumnElement[str]:
    """Rings when the transaction commits, once however often it is executed; its value `ringer` is whose commit it is."""
    ringer: ColumnElement[str] = bindparam("ringer")
    payload = literal_column(f"'{topic} '").concat(ringer)
    rung: ColumnElement[str] = func.pg_notify(literal_column(f"'{CHANNEL}'"), payload)
    return rung


def ring_for_everybody(connection: Connection, topic: Topic) -> None:
    """Rings when the transaction commits."""
    if connection.dialect.name == "sqlite":
        connection.info.setdefault(_RUNG, set()).add(topic)
    ring_for_others(connection, topic, EVERYBODY)


def ring_for_others(connection: Connection, topic: Topic, ringer: str) -> None:
    """The same, but not for whoever is the `ringer`. On SQLite there is nobody else."""
    if connection.dialect.name == "postgresql":
        connection.execute(select(ring(topic)), {"ringer": ringer})


def rung(connection: Connection) -> Collection[Topic]:
    """What rings here when the transaction has committed; asked once, at its end."""
    topics: Collection[Topic] = connection.info.pop(_RUNG, ())
    return topics
