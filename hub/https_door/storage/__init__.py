"""Stored objects as the generic API server reads and writes them."""
