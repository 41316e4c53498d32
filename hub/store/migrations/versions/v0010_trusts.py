"""The CAs that each agent trusts, and the certificate that it holds."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
usable_from = "0006"


def upgrade() -> None:
    counter = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    key = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    op.create_table(
        "trusts",
        sa.Column("cluster", key, nullable=False),
        sa.Column("agent", key, nullable=False),
        sa.Column("trusted", sa.Text(), nullable=True),
        sa.Column("serial", sa.Text(), nullable=False),
        sa.Column("issued_at", counter, nullable=False),
        sa.Column("not_after", counter, nullable=False),
        sa.Column("signed_by", sa.Text(), nullable=True),
        sa.Column("since", counter, nullable=False),
        sa.PrimaryKeyConstraint("cluster", "agent", name="pk_trusts"),
    )
