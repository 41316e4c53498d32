"""The first schema."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

Counter = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
KeyText = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    _objects()
    _history()
    _identities()
    _rest()


def _objects() -> None:
    op.create_table(
        "objects",
        sa.Column("kind", KeyText, nullable=False),
        sa.Column("namespace", KeyText, nullable=False),
        sa.Column("name", KeyText, nullable=False),
        sa.Column("uid", sa.Text(), nullable=False),
        sa.Column("revision", Counter, nullable=False),
        sa.Column("created_at", Counter, nullable=False),
        sa.Column("document", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("kind", "namespace", "name", name=op.f("pk_objects")),
        sa.UniqueConstraint("uid", name=op.f("uq_objects_uid")),
    )
    op.create_table(
        "labels",
        sa.Column("uid", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["uid"], ["objects.uid"], name=op.f("fk_labels_uid"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("uid", "name", name=op.f("pk_labels")),
    )
    op.create_index(op.f("ix_labels_name_value_uid"), "labels", ["name", "value", "uid"])
    op.create_table(
        "fields",
        sa.Column("uid", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["uid"], ["objects.uid"], name=op.f("fk_fields_uid"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("uid", "name", name=op.f("pk_fields")),
    )
    op.create_index(op.f("ix_fields_name_value_uid"), "fields", ["name", "value", "uid"])


def _history() -> None:
    op.create_table(
        "revision",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("value", Counter, nullable=False),
        sa.Column("compacted", Counter, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_revision")),
    )
    op.execute(sa.text("INSERT INTO revision (id, value, compacted) VALUES (1, 0, 0)"))
    op.create_table(
        "changes",
        sa.Column("revision", Counter, autoincrement=False, nullable=False),
        sa.Column("at", Counter, nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("kind", KeyText, nullable=False),
        sa.Column("namespace", KeyText, nullable=False),
        sa.Column("name", KeyText, nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("document", sa.LargeBinary(), nullable=False),
        sa.Column("labels_before", sa.Text(), nullable=False),
        sa.Column("fields_before", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("revision", name=op.f("pk_changes")),
    )
    op.create_index(op.f("ix_changes_at"), "changes", ["at"])
    op.create_index(op.f("ix_changes_kind_namespace_name_revision"), "changes", ["kind", "namespace", "name", "revision"])


def _identities() -> None:
    op.create_table(
        "certificates",
        sa.Column("serial", sa.Text(), nullable=False),
        sa.Column("purpose", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("groups", sa.Text(), nullable=False),
        sa.Column("not_before", Counter, nullable=False),
        sa.Column("not_after", Counter, nullable=False),
        sa.Column("key_hash", sa.Text(), nullable=False),
        sa.Column("issued_at", Counter, nullable=False),
        sa.Column("cluster", sa.Text(), nullable=True),
        sa.Column("agent", sa.Text(), nullable=True),
        sa.Column("addon", sa.Text(), nullable=True),
        sa.Column("credential", sa.Text(), nullable=True),
        sa.Column("request_uid", sa.Text(), nullable=True),
        sa.Column("revoked_at", Counter, nullable=True),
        sa.Column("revoked_reason", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("serial", name=op.f("pk_certificates")),
        sa.UniqueConstraint("request_uid", "purpose", name=op.f("uq_certificates_request_uid_purpose")),
    )
    op.create_index(op.f("ix_certificates_cluster"), "certificates", ["cluster"])
    op.create_index(op.f("ix_certificates_credential"), "certificates", ["credential"])
    op.create_index(op.f("ix_certificates_key_hash"), "certificates", ["key_hash"])
    op.create_table(
        "credentials",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("cluster", sa.Text(), nullable=True),
        sa.Column("uses", sa.Integer(), nullable=True),
        sa.Column("created_at", Counter, nullable=False),
        sa.Column("expires_at", Counter, nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("revoked_at", Counter, nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_credentials")),
    )
    op.create_table(
        "admissions",
        sa.Column("credential", sa.Text(), nullable=False),
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("at", Counter, nullable=False),
        sa.ForeignKeyConstraint(["credential"], ["credentials.id"], name=op.f("fk_admissions_credential"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("credential", "cluster", name=op.f("pk_admissions")),
    )


def _rest() -> None:
    op.create_table(
        "heartbeats",
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("at", Counter, nullable=True),
        sa.Column("available", sa.Boolean(), nullable=True),
        sa.Column("session", sa.Text(), nullable=True),
        sa.Column("agent_version", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("cluster", name=op.f("pk_heartbeats")),
    )
    op.create_table(
        "facts",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_facts")),
    )
