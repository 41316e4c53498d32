"""Sort keys of selectable fields that are versions or quantities; filled at the next start."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
usable_from = "0006"


def upgrade() -> None:
    key = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    op.add_column("fields", sa.Column("sort", key, nullable=True))
