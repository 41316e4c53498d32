"""Indexes of certificates by revocation and by expiry."""

from alembic import op

revision = "0016"
down_revision = "0015"
usable_from = "0006"


def upgrade() -> None:
    op.create_index(op.f("ix_certificates_revoked_at"), "certificates", ["revoked_at"])
    op.create_index(op.f("ix_certificates_purpose_not_after"), "certificates", ["purpose", "not_after"])
