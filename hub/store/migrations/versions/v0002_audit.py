"""Audit records, in one hash chain per replica."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

Counter = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("replica", sa.Text(), nullable=False),
        sa.Column("sequence", Counter, autoincrement=False, nullable=False),
        sa.Column("previous", sa.Text(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("at", Counter, nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("verb", sa.Text(), nullable=False),
        sa.Column("resource", sa.Text(), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("document", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("replica", "sequence", name=op.f("pk_audit")),
    )
    op.create_index(op.f("ix_audit_at_replica_sequence"), "audit", ["at", "replica", "sequence"])
    op.create_table(
        "audit_anchors",
        sa.Column("replica", sa.Text(), nullable=False),
        sa.Column("sequence", Counter, nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("replica", name=op.f("pk_audit_anchors")),
    )
