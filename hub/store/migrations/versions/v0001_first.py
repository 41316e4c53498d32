"""The first schema."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

Counter = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
KeyText = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
Text = sa.Text()

KIND = "managedclusters.cluster"
SET = "cluster.open-cluster-management.io/clusterset"
COLUMNS = (
    ("version", "status.version.kubernetes", "value"),
    ("version_order", "status.version.kubernetes", "sort"),
    ("agent_version", "status.agentVersion", "value"),
    ("agent_order", "status.agentVersion", "sort"),
    ("accepted", "spec.hubAcceptsClient", "value"),
    ("joined", "status.conditions.ManagedClusterJoined", "value"),
    ("available", "status.conditions.ManagedClusterConditionAvailable", "value"),
    ("clock_synced", "status.conditions.ManagedClusterConditionClockSynced", "value"),
    ("cpu", "status.capacity.cpu", "sort"),
    ("memory", "status.capacity.memory", "sort"),
    ("nodes", "status.capacity.nodes", "sort"),
)
"""Column of `inventory`, the field it follows, and the column of `fields` it copies."""
NAMES = ", ".join(f"'{name}'" for name in dict.fromkeys(name for _, name, _ in COLUMNS))


def _columns(kind: Any, *names: str, **options: Any) -> Sequence[sa.Column[Any]]:
    return [sa.Column(name, kind, **options) for name in names]


def _reference(name: str, target: str) -> sa.Column[Any]:
    """A part of the primary key that goes with the row it refers to."""
    return sa.Column(name, Text, sa.ForeignKey(target, ondelete="CASCADE"), primary_key=True)


def upgrade() -> None:
    _objects()
    _change_log()
    _inventory()
    _certificates()
    _credentials()
    _agents()
    _replicas()
    _authorities()
    _records()


def _objects() -> None:
    op.create_table(
        "objects",
        *_columns(KeyText, "kind", "namespace", "name", primary_key=True),
        sa.Column("uid", Text, nullable=False, unique=True),
        *_columns(Counter, "revision", "created_at", nullable=False),
        sa.Column("document", sa.LargeBinary(), nullable=False),
    )
    for table, others in (("labels", ()), ("fields", [sa.Column("sort", KeyText)])):
        op.create_table(
            table,
            _reference("uid", "objects.uid"),
            sa.Column("name", Text, primary_key=True),
            sa.Column("value", Text, nullable=False),
            *others,
            sa.Index(None, "name", "value", "uid"),
        )


def _change_log() -> None:
    op.create_table(
        "revision",
        sa.Column("id", sa.Integer(), primary_key=True, autoincrement=False),
        *_columns(Counter, "value", "compacted", "floor", "measured", "bytes", nullable=False),
    )
    op.execute("INSERT INTO revision (id, value, compacted, floor, measured, bytes) VALUES (1, 0, 0, 0, 0, 0)")
    op.create_table(
        "changes",
        sa.Column("revision", Counter, primary_key=True, autoincrement=False),
        sa.Column("at", Counter, nullable=False, index=True),
        sa.Column("actor", Text, nullable=False),
        *_columns(KeyText, "kind", "namespace", "name", nullable=False),
        sa.Column("type", Text, nullable=False),
        sa.Column("document", sa.LargeBinary(), nullable=False),
        *_columns(Text, "labels_before", "fields_before", nullable=False),
        sa.Index(None, "kind", "namespace", "name", "revision"),
    )


def _followed(row: str, *, gone: bool = False) -> str:
    """Statement that updates a cluster's row of `inventory` after a change of one row of `fields`."""
    changes = ", ".join(
        f"{column} = CASE {row}.name WHEN '{name}' THEN {'NULL' if gone else f'{row}.{of}'} ELSE {column} END"
        for column, name, of in COLUMNS
    )
    return f"UPDATE inventory SET {changes} WHERE uid = {row}.uid"  # noqa: S608 - every part is written here


def _labelled(row: str, *, gone: bool = False) -> str:
    return f"UPDATE inventory SET cluster_set = {'NULL' if gone else f'{row}.value'} WHERE uid = {row}.uid"  # noqa: S608 - likewise


ENTERED = "INSERT INTO inventory (uid, namespace, name, created_at) VALUES (new.uid, new.namespace, new.name, new.created_at)"
LEFT = "DELETE FROM inventory WHERE uid = old.uid"
TRIGGERS: Sequence[tuple[str, str, str, str]] = (
    ("objects", "INSERT", f"new.kind = '{KIND}'", ENTERED),
    ("objects", "DELETE", f"old.kind = '{KIND}'", LEFT),
    ("fields", "INSERT", f"new.name IN ({NAMES})", _followed("new")),
    ("fields", "UPDATE", f"new.name IN ({NAMES})", _followed("new")),
    ("fields", "DELETE", f"old.name IN ({NAMES})", _followed("old", gone=True)),
    ("labels", "INSERT", f"new.name = '{SET}'", _labelled("new")),
    ("labels", "UPDATE", f"new.name = '{SET}'", _labelled("new")),
    ("labels", "DELETE", f"old.name = '{SET}'", _labelled("old", gone=True)),
)
"""Table, event, condition and action of each trigger."""


def _inventory() -> None:
    """One narrow row per cluster with the most queried values, kept by triggers for writes of any release."""
    op.create_table(
        "inventory",
        sa.Column("uid", Text, primary_key=True),
        *_columns(KeyText, "namespace", "name", nullable=False),
        sa.Column("created_at", Counter, nullable=False),
        *_columns(KeyText, "cluster_set", *(column for column, _, _ in COLUMNS)),
        sqlite_with_rowid=False,
    )
    dialect = op.get_bind().dialect.name
    for table, event, matters, follows in TRIGGERS:
        name = f"inventory_{table}_{event.lower()}"
        if dialect == "sqlite":
            op.execute(f"CREATE TRIGGER {name} AFTER {event} ON {table} WHEN {matters} BEGIN {follows}; END")
            continue
        body = f"AS $$ BEGIN {follows}; RETURN NULL; END $$"
        op.execute(
            f"CREATE OR REPLACE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql {body}"
        )  # a restore drops tables only
        op.execute(f"CREATE TRIGGER {name} AFTER {event} ON {table} FOR EACH ROW WHEN ({matters}) EXECUTE FUNCTION {name}()")


def _certificates() -> None:
    op.create_table(
        "certificates",
        sa.Column("serial", Text, primary_key=True),
        *_columns(Text, "purpose", "user", "groups", nullable=False),
        *_columns(Counter, "not_before", "not_after", nullable=False),
        sa.Column("key_hash", Text, nullable=False, index=True),
        sa.Column("issued_at", Counter, nullable=False),
        sa.Column("cluster", Text, index=True),
        *_columns(Text, "agent", "addon"),
        sa.Column("credential", Text, index=True),
        sa.Column("request_uid", Text),
        sa.Column("revoked_at", Counter, index=True),
        sa.Column("revoked_reason", Text),
        sa.Column("signed_by", Text, nullable=False),
        sa.UniqueConstraint("request_uid", "purpose"),
        sa.Index(None, "purpose", "not_after"),
    )
    op.create_table(
        "trusts",
        *_columns(KeyText, "cluster", "agent", primary_key=True),
        sa.Column("trusted", Text),
        sa.Column("serial", Text, nullable=False),
        *_columns(Counter, "issued_at", "not_after", nullable=False),
        sa.Column("signed_by", Text, nullable=False),
        sa.Column("since", Counter, nullable=False),
    )


def _credentials() -> None:
    op.create_table(
        "credentials",
        sa.Column("id", Text, primary_key=True),
        sa.Column("cluster", Text),
        sa.Column("uses", sa.Integer()),
        *_columns(Counter, "created_at", "expires_at", nullable=False),
        sa.Column("created_by", Text, nullable=False),
        sa.Column("revoked_at", Counter),
        *_columns(Text, "token_hash", "bounds", "revoked_by", "revoked_reason"),
    )
    op.create_table(
        "credential_uses",
        _reference("credential", "credentials.id"),
        *_columns(Text, "cluster", "agent", primary_key=True),
        sa.Column("request", Text, nullable=False),
        sa.Column("held_at", Counter, nullable=False),
        sa.Column("issued_at", Counter),
        sa.Column("serial", Text),
    )
    op.create_table(
        "admissions",
        _reference("credential", "credentials.id"),
        sa.Column("cluster", Text, primary_key=True),
        sa.Column("at", Counter, nullable=False),
    )
    op.create_table(
        "attestations",
        sa.Column("cluster", Text, primary_key=True),
        *_columns(Text, "issuer", "subject", "key", nullable=False),
        sa.Column("bound_at", Counter, nullable=False),
    )


def _agents() -> None:
    op.create_table(
        "heartbeats",
        sa.Column("cluster", Text, primary_key=True),
        sa.Column("at", Counter),
        sa.Column("available", sa.Boolean()),
        *_columns(Text, "session", "agent_version"),
        sa.Column("epoch", Counter),
        sa.Column("owner", Text),
    )
    op.create_table(
        "sessions",
        *_columns(Text, "cluster", "agent", primary_key=True),
        sa.Column("session", Text, nullable=False),
        sa.Column("replica", Text, nullable=False, index=True),
        sa.Column("opened_at", Counter, nullable=False, index=True),
    )
    op.create_table(
        "transitions",
        sa.Column("id", Counter, primary_key=True, autoincrement=True),
        *_columns(Text, "cluster", "uid", nullable=False),
        sa.Column("at", Counter, nullable=False, index=True),
        *_columns(Text, "before", "status", "reason", "actor", nullable=False),
        sa.Index(None, "cluster", "id"),
    )


def _replicas() -> None:
    op.create_table(
        "replicas",
        sa.Column("name", KeyText, primary_key=True),
        *_columns(Text, "home", "instance", "version", "grpc", "https", nullable=False),
        *_columns(Counter, "started_at", "seen_at", nullable=False),
        sa.Column("sessions", sa.Integer(), nullable=False),
        *_columns(sa.Boolean(), "ready", "draining", "drained", nullable=False),
        *_columns(sa.Integer(), "watches", "cpu_ms", nullable=False),
        *_columns(Counter, "memory", "ahead_us", nullable=False),
    )
    op.create_table("hearing", sa.Column("replica", Text, primary_key=True), *_columns(Counter, "since", "at", nullable=False))
    op.create_table(
        "leaders",
        sa.Column("lock", Text, primary_key=True),
        *_columns(Text, "holder", "incarnation", nullable=False),
        *_columns(Counter, "term", "transitions", "lease_ms", "acquired_at", "renewed_at", "version", nullable=False),
    )
    op.create_table("terms", sa.Column("lock", Text, primary_key=True), sa.Column("term", Counter, nullable=False))


def _authorities() -> None:
    op.create_table(
        "authorities",
        sa.Column("id", Text, primary_key=True),
        sa.Column("certificate", sa.LargeBinary(), nullable=False),
        sa.Column("phase", Text, nullable=False),
        *_columns(Counter, "created_at", "since", nullable=False),
        sa.Column("cross_signed", sa.LargeBinary()),
        sa.Column("ends_at", Counter),
        *_columns(Text, "order", "ordered_by"),
        sa.Column("compromised", sa.Boolean(), nullable=False),
        sa.Column("sealed_key", sa.LargeBinary()),
        sa.Column("within_us", Counter),
    )
    op.create_table(
        "authority_followers",
        *_columns(Text, "replica", "authority", primary_key=True),
        sa.Column("phase", Text, nullable=False),
        sa.Column("has_key", sa.Boolean(), nullable=False),
    )


def _records() -> None:
    op.create_table(
        "audit",
        sa.Column("replica", Text, primary_key=True),
        sa.Column("sequence", Counter, primary_key=True, autoincrement=False),
        sa.Column("at", Counter, nullable=False),
        *_columns(Text, "user", "verb", "resource", "namespace", "name", nullable=False),
        sa.Column("document", sa.LargeBinary(), nullable=False),
        sa.Index(None, "at", "replica", "sequence"),
    )
    op.create_table("facts", sa.Column("name", Text, primary_key=True), sa.Column("value", Text, nullable=False))
