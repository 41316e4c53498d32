"""Drained replicas, and the load of replicas."""

import sqlalchemy as sa
from alembic import op

Counter = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

revision = "0013"
down_revision = "0012"
usable_from = "0006"


def upgrade() -> None:
    op.add_column("replicas", sa.Column("drained", sa.Boolean(), nullable=True))
    for name in ("watches", "cpu_ms"):
        op.add_column("replicas", sa.Column(name, sa.Integer(), nullable=True))
    for name in ("memory", "ahead_us"):
        op.add_column("replicas", sa.Column(name, Counter, nullable=True))
