"""The token hash of bootstrap credentials that are bearer tokens."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("credentials", sa.Column("token_hash", sa.Text(), nullable=True))
