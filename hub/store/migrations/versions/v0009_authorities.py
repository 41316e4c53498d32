"""The hub's CAs, and the state of each CA at each replica."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
usable_from = "0006"


def upgrade() -> None:
    counter = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "authorities",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("certificate", sa.LargeBinary(), nullable=False),
        sa.Column("phase", sa.Text(), nullable=False),
        sa.Column("created_at", counter, nullable=False),
        sa.Column("since", counter, nullable=False),
        sa.Column("cross_signed", sa.LargeBinary(), nullable=True),
        sa.Column("ends_at", counter, nullable=True),
        sa.Column("wish", sa.Text(), nullable=True),
        sa.Column("wished_by", sa.Text(), nullable=True),
        sa.Column("compromised", sa.Boolean(), nullable=False),
        sa.Column("sealed_key", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_authorities"),
    )
    op.create_table(
        "authority_followers",
        sa.Column("replica", sa.Text(), nullable=False),
        sa.Column("authority", sa.Text(), nullable=False),
        sa.Column("phase", sa.Text(), nullable=False),
        sa.Column("has_key", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("replica", "authority", name="pk_authority_followers"),
    )
