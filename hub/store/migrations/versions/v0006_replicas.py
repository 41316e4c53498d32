"""The replicas of a hub, and the replica with the newest session of each agent."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    counter = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    key = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    op.create_table(
        "replicas",
        sa.Column("name", key, nullable=False),
        sa.Column("home", sa.Text(), nullable=False),
        sa.Column("instance", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("grpc", sa.Text(), nullable=False),
        sa.Column("https", sa.Text(), nullable=False),
        sa.Column("started_at", counter, nullable=False),
        sa.Column("seen_at", counter, nullable=False),
        sa.Column("sessions", sa.Integer(), nullable=False),
        sa.Column("ready", sa.Boolean(), nullable=False),
        sa.Column("draining", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_replicas"),
    )
    op.create_table(
        "sessions",
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("agent", sa.Text(), nullable=False),
        sa.Column("session", sa.Text(), nullable=False),
        sa.Column("replica", sa.Text(), nullable=False),
        sa.Column("opened_at", counter, nullable=False),
        sa.PrimaryKeyConstraint("cluster", "agent", name="pk_sessions"),
    )
    op.create_index("ix_sessions_replica", "sessions", ["replica"])
    op.create_index("ix_sessions_opened_at", "sessions", ["opened_at"])
