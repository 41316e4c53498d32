"""Audit records: added, found, removed."""
