"""The leader lock and its newest term."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    counter = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "leaders",
        sa.Column("lock", sa.Text(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("incarnation", sa.Text(), nullable=False),
        sa.Column("term", counter, nullable=False),
        sa.Column("transitions", counter, nullable=False),
        sa.Column("lease_ms", counter, nullable=False),
        sa.Column("acquired_at", counter, nullable=False),
        sa.Column("renewed_at", counter, nullable=False),
        sa.Column("version", counter, nullable=False),
        sa.PrimaryKeyConstraint("lock", name="pk_leaders"),
    )
    op.create_table(
        "terms",
        sa.Column("lock", sa.Text(), nullable=False),
        sa.Column("term", counter, nullable=False),
        sa.PrimaryKeyConstraint("lock", name="pk_terms"),
    )
