"""Storages: in memory, and converted to another group."""
