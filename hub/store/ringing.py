"""How a transaction tells other replicas that it has committed: see `hub.store.doorbell`, which hears it."""

from typing import NewType

from sqlalchemy import ColumnElement, bindparam, func, literal_column

CHANNEL = "muster"

Topic = NewType("Topic", str)
CHANGES = Topic("changes")
"""The change log has grown."""
REVOCATIONS = Topic("revocations")
"""Certificates or credentials were revoked."""


def ring(topic: Topic) -> ColumnElement[str]:
    """Rings when the transaction commits, once however often it is executed; its value `ringer` is whose commit it is."""
    ringer: ColumnElement[str] = bindparam("ringer")
    payload = literal_column(f"'{topic} '").concat(ringer)
    rung: ColumnElement[str] = func.pg_notify(literal_column(f"'{CHANNEL}'"), payload)
    return rung
