"""The hub's database: the adapter of `hub.ports.Store` for SQLite and PostgreSQL."""

from hub.store.store import SqlStore

__all__ = ["SqlStore"]
