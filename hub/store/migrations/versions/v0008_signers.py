"""The issuer and CA that signed each certificate."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
usable_from = "0006"


def upgrade() -> None:
    op.add_column("certificates", sa.Column("signed_by", sa.Text(), nullable=True))
