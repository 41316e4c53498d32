"""Audit records and queries for them."""
