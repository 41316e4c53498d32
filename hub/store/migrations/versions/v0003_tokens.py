"""Bootstrap credentials that are bearer tokens: the token's hash."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("credentials", sa.Column("token_hash", sa.Text(), nullable=True))
