"""By what versions and quantities among the selectable fields are compared. The start after an upgrade fills it in."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
usable_from = "0006"


def upgrade() -> None:
    key = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    op.add_column("fields", sa.Column("sort", key, nullable=True))
