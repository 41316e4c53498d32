"""The first schema.

It has the tables of `hub.store.schema`, and the triggers that keep the inventory. The release of 0.1.0 freezes it (see
RELEASING.md): from then on it must not depend on the tables of the program.
"""

from collections.abc import Sequence

from alembic import op

from hub.store.query.inventory import inventory

revision = "0001"
down_revision = None

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
"""Column of `inventory`, its field, and the column of `fields` (`value` or `sort`) that the triggers copy into it."""
NAMES = ", ".join(f"'{name}'" for name in dict.fromkeys(name for _, name, _ in COLUMNS))


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


def upgrade() -> None:
    connection = op.get_bind()
    inventory.metadata.create_all(connection, checkfirst=False)
    op.execute("INSERT INTO revision (id, value, compacted, floor, measured, bytes) VALUES (1, 0, 0, 0, 0, 0)")
    for table, event, matters, follows in TRIGGERS:
        name = f"inventory_{table}_{event.lower()}"
        if connection.dialect.name == "sqlite":
            op.execute(f"CREATE TRIGGER {name} AFTER {event} ON {table} WHEN {matters} BEGIN {follows}; END")
            continue
        body = f"AS $$ BEGIN {follows}; RETURN NULL; END $$"
        # OR REPLACE: a restore drops tables only
        op.execute(f"CREATE OR REPLACE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql {body}")
        op.execute(f"CREATE TRIGGER {name} AFTER {event} ON {table} FOR EACH ROW WHEN ({matters}) EXECUTE FUNCTION {name}()")
