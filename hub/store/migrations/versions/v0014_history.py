"""The oldest readable revision of the history, which is older than the oldest resumable one, and the size of the change log."""

import sqlalchemy as sa
from alembic import op

Counter = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

revision = "0014"
down_revision = "0013"
usable_from = "0006"


def upgrade() -> None:
    op.create_table(
        "history",
        sa.Column("id", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("floor", Counter, nullable=False),
        sa.Column("compacted", Counter, nullable=False),
        sa.Column("measured", Counter, nullable=False),
        sa.Column("bytes", Counter, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_history")),
    )
