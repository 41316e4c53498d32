"""Audit records without the hash chain, and the time that agents have to leave a compromised CA.

The release before writes the columns of the chain and cannot write records without them.
"""

import sqlalchemy as sa
from alembic import op

Counter = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

revision = "0017"
down_revision = "0016"
usable_from = "0017"


def upgrade() -> None:
    op.drop_table("audit_anchors")
    op.drop_column("audit", "previous")
    op.drop_column("audit", "hash")
    op.add_column("authorities", sa.Column("within_us", Counter, nullable=True))
