"""The first schema.

It creates the tables, and the triggers that fill the inventory. Release 0.1.0 froze it: it does not depend on the tables of
the program, and nobody edits it. Alembic rendered `_create_tables` from `hub.store.schema` of that release.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

TEXT = sa.Text()
KEY = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
"""Text that every database compares byte by byte."""
NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

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
    _create_tables()
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


def _create_tables() -> None:
    op.create_table(
        "attestations",
        sa.Column("cluster", TEXT, nullable=False),
        sa.Column("issuer", TEXT, nullable=False),
        sa.Column("subject", TEXT, nullable=False),
        sa.Column("key", TEXT, nullable=False),
        sa.Column("bound_at", NUMBER, nullable=False),
        sa.PrimaryKeyConstraint("cluster", name=op.f("pk_attestations")),
    )
    op.create_table(
        "audit",
        sa.Column("replica", TEXT, nullable=False),
        sa.Column("sequence", NUMBER, autoincrement=False, nullable=False),
        sa.Column("at", NUMBER, nullable=False),
        sa.Column("user", TEXT, nullable=False),
        sa.Column("verb", TEXT, nullable=False),
        sa.Column("resource", TEXT, nullable=False),
        sa.Column("namespace", TEXT, nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("document", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("replica", "sequence", name=op.f("pk_audit")),
    )
    op.create_index(op.f("ix_audit_at_replica_sequence"), "audit", ["at", "replica", "sequence"], unique=False)
    op.create_table(
        "authorities",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("certificate", sa.LargeBinary(), nullable=False),
        sa.Column("phase", TEXT, nullable=False),
        sa.Column("created_at", NUMBER, nullable=False),
        sa.Column("since", NUMBER, nullable=False),
        sa.Column("cross_signed", sa.LargeBinary(), nullable=True),
        sa.Column("ends_at", NUMBER, nullable=True),
        sa.Column("order", TEXT, nullable=True),
        sa.Column("ordered_by", TEXT, nullable=True),
        sa.Column("compromised", sa.Boolean(), nullable=False),
        sa.Column("sealed_key", sa.LargeBinary(), nullable=True),
        sa.Column("within_us", NUMBER, nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_authorities")),
    )
    op.create_table(
        "authority_followers",
        sa.Column("replica", TEXT, nullable=False),
        sa.Column("authority", TEXT, nullable=False),
        sa.Column("phase", TEXT, nullable=False),
        sa.Column("has_key", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("replica", "authority", name=op.f("pk_authority_followers")),
    )
    op.create_table(
        "certificates",
        sa.Column("serial", TEXT, nullable=False),
        sa.Column("purpose", TEXT, nullable=False),
        sa.Column("user", TEXT, nullable=False),
        sa.Column("groups", TEXT, nullable=False),
        sa.Column("not_before", NUMBER, nullable=False),
        sa.Column("not_after", NUMBER, nullable=False),
        sa.Column("key_hash", TEXT, nullable=False),
        sa.Column("issued_at", NUMBER, nullable=False),
        sa.Column("cluster", TEXT, nullable=True),
        sa.Column("agent", TEXT, nullable=True),
        sa.Column("addon", TEXT, nullable=True),
        sa.Column("credential", TEXT, nullable=True),
        sa.Column("request_uid", TEXT, nullable=True),
        sa.Column("revoked_at", NUMBER, nullable=True),
        sa.Column("revoked_reason", TEXT, nullable=True),
        sa.Column("signed_by", TEXT, nullable=False),
        sa.PrimaryKeyConstraint("serial", name=op.f("pk_certificates")),
        sa.UniqueConstraint("request_uid", "purpose", name=op.f("uq_certificates_request_uid_purpose")),
    )
    op.create_index(op.f("ix_certificates_cluster"), "certificates", ["cluster"], unique=False)
    op.create_index(op.f("ix_certificates_credential"), "certificates", ["credential"], unique=False)
    op.create_index(op.f("ix_certificates_key_hash"), "certificates", ["key_hash"], unique=False)
    op.create_index(op.f("ix_certificates_purpose_not_after"), "certificates", ["purpose", "not_after"], unique=False)
    op.create_index(op.f("ix_certificates_revoked_at"), "certificates", ["revoked_at"], unique=False)
    op.create_table(
        "changes",
        sa.Column("revision", NUMBER, autoincrement=False, nullable=False),
        sa.Column("at", NUMBER, nullable=False),
        sa.Column("actor", TEXT, nullable=False),
        sa.Column("kind", KEY, nullable=False),
        sa.Column("namespace", KEY, nullable=False),
        sa.Column("name", KEY, nullable=False),
        sa.Column("type", TEXT, nullable=False),
        sa.Column("document", sa.LargeBinary(), nullable=False),
        sa.Column("labels_before", TEXT, nullable=False),
        sa.Column("fields_before", TEXT, nullable=False),
        sa.PrimaryKeyConstraint("revision", name=op.f("pk_changes")),
    )
    op.create_index(op.f("ix_changes_at"), "changes", ["at"], unique=False)
    op.create_index(
        op.f("ix_changes_kind_namespace_name_revision"), "changes", ["kind", "namespace", "name", "revision"], unique=False
    )
    op.create_table(
        "credentials",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("cluster", TEXT, nullable=True),
        sa.Column("uses", sa.Integer(), nullable=True),
        sa.Column("created_at", NUMBER, nullable=False),
        sa.Column("expires_at", NUMBER, nullable=False),
        sa.Column("created_by", TEXT, nullable=False),
        sa.Column("revoked_at", NUMBER, nullable=True),
        sa.Column("token_hash", TEXT, nullable=True),
        sa.Column("bounds", TEXT, nullable=True),
        sa.Column("revoked_by", TEXT, nullable=True),
        sa.Column("revoked_reason", TEXT, nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_credentials")),
    )
    op.create_table(
        "facts",
        sa.Column("name", TEXT, nullable=False),
        sa.Column("value", TEXT, nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_facts")),
    )
    op.create_table(
        "hearing",
        sa.Column("replica", TEXT, nullable=False),
        sa.Column("since", NUMBER, nullable=False),
        sa.Column("at", NUMBER, nullable=False),
        sa.PrimaryKeyConstraint("replica", name=op.f("pk_hearing")),
    )
    op.create_table(
        "heartbeats",
        sa.Column("cluster", TEXT, nullable=False),
        sa.Column("at", NUMBER, nullable=True),
        sa.Column("available", sa.Boolean(), nullable=True),
        sa.Column("session", TEXT, nullable=True),
        sa.Column("agent_version", TEXT, nullable=True),
        sa.Column("epoch", NUMBER, nullable=True),
        sa.Column("owner", TEXT, nullable=True),
        sa.PrimaryKeyConstraint("cluster", name=op.f("pk_heartbeats")),
    )
    op.create_table(
        "inventory",
        sa.Column("uid", TEXT, nullable=False),
        sa.Column("namespace", KEY, nullable=False),
        sa.Column("name", KEY, nullable=False),
        sa.Column("created_at", NUMBER, nullable=False),
        sa.Column("cluster_set", KEY, nullable=True),
        sa.Column("version", KEY, nullable=True),
        sa.Column("version_order", KEY, nullable=True),
        sa.Column("agent_version", KEY, nullable=True),
        sa.Column("agent_order", KEY, nullable=True),
        sa.Column("accepted", KEY, nullable=True),
        sa.Column("joined", KEY, nullable=True),
        sa.Column("available", KEY, nullable=True),
        sa.Column("clock_synced", KEY, nullable=True),
        sa.Column("cpu", KEY, nullable=True),
        sa.Column("memory", KEY, nullable=True),
        sa.Column("nodes", KEY, nullable=True),
        sa.PrimaryKeyConstraint("uid", name=op.f("pk_inventory")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "leaders",
        sa.Column("lock", TEXT, nullable=False),
        sa.Column("holder", TEXT, nullable=False),
        sa.Column("incarnation", TEXT, nullable=False),
        sa.Column("term", NUMBER, nullable=False),
        sa.Column("transitions", NUMBER, nullable=False),
        sa.Column("lease_ms", NUMBER, nullable=False),
        sa.Column("acquired_at", NUMBER, nullable=False),
        sa.Column("renewed_at", NUMBER, nullable=False),
        sa.Column("version", NUMBER, nullable=False),
        sa.PrimaryKeyConstraint("lock", name=op.f("pk_leaders")),
    )
    op.create_table(
        "objects",
        sa.Column("kind", KEY, nullable=False),
        sa.Column("namespace", KEY, nullable=False),
        sa.Column("name", KEY, nullable=False),
        sa.Column("uid", TEXT, nullable=False),
        sa.Column("revision", NUMBER, nullable=False),
        sa.Column("created_at", NUMBER, nullable=False),
        sa.Column("document", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("kind", "namespace", "name", name=op.f("pk_objects")),
        sa.UniqueConstraint("uid", name=op.f("uq_objects_uid")),
    )
    op.create_table(
        "replicas",
        sa.Column("name", KEY, nullable=False),
        sa.Column("home", TEXT, nullable=False),
        sa.Column("instance", TEXT, nullable=False),
        sa.Column("version", TEXT, nullable=False),
        sa.Column("grpc", TEXT, nullable=False),
        sa.Column("https", TEXT, nullable=False),
        sa.Column("started_at", NUMBER, nullable=False),
        sa.Column("seen_at", NUMBER, nullable=False),
        sa.Column("sessions", sa.Integer(), nullable=False),
        sa.Column("ready", sa.Boolean(), nullable=False),
        sa.Column("draining", sa.Boolean(), nullable=False),
        sa.Column("drained", sa.Boolean(), nullable=False),
        sa.Column("watches", sa.Integer(), nullable=False),
        sa.Column("cpu_ms", sa.Integer(), nullable=False),
        sa.Column("memory", NUMBER, nullable=False),
        sa.Column("ahead_us", NUMBER, nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_replicas")),
    )
    op.create_table(
        "revision",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("value", NUMBER, nullable=False),
        sa.Column("compacted", NUMBER, nullable=False),
        sa.Column("floor", NUMBER, nullable=False),
        sa.Column("measured", NUMBER, nullable=False),
        sa.Column("bytes", NUMBER, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_revision")),
    )
    op.create_table(
        "sessions",
        sa.Column("cluster", TEXT, nullable=False),
        sa.Column("agent", TEXT, nullable=False),
        sa.Column("session", TEXT, nullable=False),
        sa.Column("replica", TEXT, nullable=False),
        sa.Column("opened_at", NUMBER, nullable=False),
        sa.PrimaryKeyConstraint("cluster", "agent", name=op.f("pk_sessions")),
    )
    op.create_index(op.f("ix_sessions_opened_at"), "sessions", ["opened_at"], unique=False)
    op.create_index(op.f("ix_sessions_replica"), "sessions", ["replica"], unique=False)
    op.create_table(
        "terms",
        sa.Column("lock", TEXT, nullable=False),
        sa.Column("term", NUMBER, nullable=False),
        sa.PrimaryKeyConstraint("lock", name=op.f("pk_terms")),
    )
    op.create_table(
        "transitions",
        sa.Column("id", NUMBER, autoincrement=True, nullable=False),
        sa.Column("cluster", TEXT, nullable=False),
        sa.Column("uid", TEXT, nullable=False),
        sa.Column("at", NUMBER, nullable=False),
        sa.Column("before", TEXT, nullable=False),
        sa.Column("status", TEXT, nullable=False),
        sa.Column("reason", TEXT, nullable=False),
        sa.Column("actor", TEXT, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_transitions")),
    )
    op.create_index(op.f("ix_transitions_at"), "transitions", ["at"], unique=False)
    op.create_index(op.f("ix_transitions_cluster_id"), "transitions", ["cluster", "id"], unique=False)
    op.create_table(
        "trusts",
        sa.Column("cluster", KEY, nullable=False),
        sa.Column("agent", KEY, nullable=False),
        sa.Column("trusted", TEXT, nullable=True),
        sa.Column("serial", TEXT, nullable=False),
        sa.Column("issued_at", NUMBER, nullable=False),
        sa.Column("not_after", NUMBER, nullable=False),
        sa.Column("signed_by", TEXT, nullable=False),
        sa.Column("since", NUMBER, nullable=False),
        sa.PrimaryKeyConstraint("cluster", "agent", name=op.f("pk_trusts")),
    )
    op.create_table(
        "admissions",
        sa.Column("credential", TEXT, nullable=False),
        sa.Column("cluster", TEXT, nullable=False),
        sa.Column("at", NUMBER, nullable=False),
        sa.ForeignKeyConstraint(["credential"], ["credentials.id"], name=op.f("fk_admissions_credential"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("credential", "cluster", name=op.f("pk_admissions")),
    )
    op.create_table(
        "credential_uses",
        sa.Column("credential", TEXT, nullable=False),
        sa.Column("cluster", TEXT, nullable=False),
        sa.Column("agent", TEXT, nullable=False),
        sa.Column("request", TEXT, nullable=False),
        sa.Column("held_at", NUMBER, nullable=False),
        sa.Column("issued_at", NUMBER, nullable=True),
        sa.Column("serial", TEXT, nullable=True),
        sa.ForeignKeyConstraint(
            ["credential"], ["credentials.id"], name=op.f("fk_credential_uses_credential"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("credential", "cluster", "agent", name=op.f("pk_credential_uses")),
    )
    op.create_table(
        "fields",
        sa.Column("uid", TEXT, nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("value", TEXT, nullable=False),
        sa.Column("sort", KEY, nullable=True),
        sa.ForeignKeyConstraint(["uid"], ["objects.uid"], name=op.f("fk_fields_uid"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("uid", "name", name=op.f("pk_fields")),
    )
    op.create_index(op.f("ix_fields_name_value_uid"), "fields", ["name", "value", "uid"], unique=False)
    op.create_table(
        "labels",
        sa.Column("uid", TEXT, nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("value", TEXT, nullable=False),
        sa.ForeignKeyConstraint(["uid"], ["objects.uid"], name=op.f("fk_labels_uid"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("uid", "name", name=op.f("pk_labels")),
    )
    op.create_index(op.f("ix_labels_name_value_uid"), "labels", ["name", "value", "uid"], unique=False)
