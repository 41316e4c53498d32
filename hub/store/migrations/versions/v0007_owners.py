"""The highest epoch of each cluster, and the hub that its agent reports to instead."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    counter = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.add_column("heartbeats", sa.Column("epoch", counter, nullable=True))
    op.add_column("heartbeats", sa.Column("owner", sa.Text(), nullable=True))
