"""Bootstrap credentials: created, revoked, removed."""
