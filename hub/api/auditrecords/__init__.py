"""Audit records, and the questions about them."""
