"""Bounds, uses and revocation reasons of bootstrap credentials; the issuer that each cluster's name is bound to."""

import sqlalchemy as sa
from alembic import op

Counter = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

revision = "0012"
down_revision = "0011"
usable_from = "0006"

SPENT = """
INSERT INTO credential_uses (credential, cluster, agent, request, held_at, issued_at, serial)
SELECT credential, cluster, agent, '', MIN(issued_at), MIN(issued_at), MIN(serial)
FROM certificates
WHERE purpose = 'agent' AND cluster IS NOT NULL AND agent IS NOT NULL AND credential IN (SELECT id FROM credentials)
GROUP BY credential, cluster, agent
"""
"""Uses by certificates that were issued before uses were recorded."""


def upgrade() -> None:
    for name in ("bounds", "revoked_by", "revoked_reason"):
        op.add_column("credentials", sa.Column(name, sa.Text(), nullable=True))
    op.create_table(
        "credential_uses",
        sa.Column("credential", sa.Text(), nullable=False),
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("agent", sa.Text(), nullable=False),
        sa.Column("request", sa.Text(), nullable=False),
        sa.Column("held_at", Counter, nullable=False),
        sa.Column("issued_at", Counter, nullable=True),
        sa.Column("serial", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["credential"], ["credentials.id"], op.f("fk_credential_uses_credential"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("credential", "cluster", "agent", name=op.f("pk_credential_uses")),
    )
    op.create_table(
        "attestations",
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("issuer", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("bound_at", Counter, nullable=False),
        sa.PrimaryKeyConstraint("cluster", name=op.f("pk_attestations")),
    )
    op.execute(SPENT)
