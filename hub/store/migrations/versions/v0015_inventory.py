"""One narrow row per cluster with the most queried values, kept by triggers for writes of any release."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

Counter = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

revision = "0015"
down_revision = "0014"
usable_from = "0006"

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

# ruff: noqa: S608 - every part is written here
FILL = f"""
INSERT INTO inventory (uid, namespace, name, created_at, cluster_set, {", ".join(column for column, _, _ in COLUMNS)})
SELECT o.uid, o.namespace, o.name, o.created_at,
  (SELECT value FROM labels l WHERE l.uid = o.uid AND l.name = '{SET}'),
  {", ".join(f"(SELECT {of} FROM fields f WHERE f.uid = o.uid AND f.name = '{name}')" for _, name, of in COLUMNS)}
FROM objects o WHERE o.kind = '{KIND}'
"""


def followed(row: str, *, gone: bool = False) -> str:
    """Statement that updates a cluster's row after a change of one row of `fields`."""
    changes = ", ".join(
        f"{column} = CASE {row}.name WHEN '{name}' THEN {'NULL' if gone else f'{row}.{of}'} ELSE {column} END"
        for column, name, of in COLUMNS
    )
    return f"UPDATE inventory SET {changes} WHERE uid = {row}.uid"


def labelled(row: str, *, gone: bool = False) -> str:
    return f"UPDATE inventory SET cluster_set = {'NULL' if gone else f'{row}.value'} WHERE uid = {row}.uid"


ENTERED = "INSERT INTO inventory (uid, namespace, name, created_at) VALUES (new.uid, new.namespace, new.name, new.created_at)"
LEFT = "DELETE FROM inventory WHERE uid = old.uid"
TRIGGERS: Sequence[tuple[str, str, str, str]] = (
    ("objects", "INSERT", f"new.kind = '{KIND}'", ENTERED),
    ("objects", "DELETE", f"old.kind = '{KIND}'", LEFT),
    ("fields", "INSERT", f"new.name IN ({NAMES})", followed("new")),
    ("fields", "UPDATE", f"new.name IN ({NAMES})", followed("new")),
    ("fields", "DELETE", f"old.name IN ({NAMES})", followed("old", gone=True)),
    ("labels", "INSERT", f"new.name = '{SET}'", labelled("new")),
    ("labels", "UPDATE", f"new.name = '{SET}'", labelled("new")),
    ("labels", "DELETE", f"old.name = '{SET}'", labelled("old", gone=True)),
)
"""Table, event, condition and action of each trigger."""


def upgrade() -> None:
    key = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    op.create_table(
        "inventory",
        sa.Column("uid", sa.Text(), nullable=False),
        sa.Column("namespace", key, nullable=False),
        sa.Column("name", key, nullable=False),
        sa.Column("created_at", Counter, nullable=False),
        sa.Column("cluster_set", key, nullable=True),
        *(sa.Column(column, key, nullable=True) for column, _, _ in COLUMNS),
        sa.PrimaryKeyConstraint("uid", name=op.f("pk_inventory")),
        sqlite_with_rowid=False,
    )
    op.execute(FILL)
    dialect = op.get_bind().dialect.name
    for table, event, matters, follows in TRIGGERS:
        for command in _trigger(dialect, table, event, matters, follows):
            op.execute(command)


def _trigger(dialect: str, table: str, event: str, matters: str, follows: str) -> Sequence[str]:
    name = f"inventory_{table}_{event.lower()}"
    if dialect == "sqlite":
        return (f"CREATE TRIGGER {name} AFTER {event} ON {table} WHEN {matters} BEGIN {follows}; END",)
    return (
        f"CREATE OR REPLACE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {follows}; RETURN NULL; END $$",
        f"CREATE TRIGGER {name} AFTER {event} ON {table} FOR EACH ROW WHEN ({matters}) EXECUTE FUNCTION {name}()",
    )
