"""Sessions with the owner."""
