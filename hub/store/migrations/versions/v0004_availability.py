"""Transitions of availability, and the marks of replicas that can store beats."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

Counter = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "transitions",
        sa.Column("id", Counter, autoincrement=True, nullable=False),
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("uid", sa.Text(), nullable=False),
        sa.Column("at", Counter, nullable=False),
        sa.Column("before", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_transitions")),
    )
    op.create_index(op.f("ix_transitions_at"), "transitions", ["at"])
    op.create_index(op.f("ix_transitions_cluster_id"), "transitions", ["cluster", "id"])
    op.create_table(
        "hearing",
        sa.Column("replica", sa.Text(), nullable=False),
        sa.Column("since", Counter, nullable=False),
        sa.Column("at", Counter, nullable=False),
        sa.PrimaryKeyConstraint("replica", name=op.f("pk_hearing")),
    )
