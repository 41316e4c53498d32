"""How far back the past of objects can be read, which is further than a watch can resume from, and how much room it takes."""

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
