"""The hub's database: an adapter of `hub.ports.Store` on SQLite and PostgreSQL."""

from hub.store.store import SqlStore

__all__ = ["SqlStore"]
