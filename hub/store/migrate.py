"""Bringing a database's schema up to date, once, whoever else tries at the same time."""

from importlib.resources import files

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, text

from machinery.errors import InvalidError

ADVISORY_LOCK = 0x6D7573746572
"""PostgreSQL's advisory lock around an upgrade; SQLite's is the write lock of the transaction itself."""


def upgrade(engine: Engine) -> None:
    """Migrates to the newest schema known here. Raises InvalidError when the database's is newer: nothing is touched."""
    scripts = ScriptDirectory.from_config(_config())
    with engine.connect() as connection, connection.begin():
        if _is_current(connection, scripts):
            return
    with engine.connect() as connection, connection.begin():
        if connection.dialect.name == "postgresql":
            connection.execute(text("SET LOCAL lock_timeout = '60s'"))
            connection.execute(text("SET LOCAL statement_timeout = '0'"))
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": ADVISORY_LOCK})
        if not _is_current(connection, scripts):
            config = _config()
            config.attributes["connection"] = connection
            command.upgrade(config, "head")


def _is_current(connection: Connection, scripts: ScriptDirectory) -> bool:
    current = MigrationContext.configure(connection).get_current_revision()
    known = {script.revision for script in scripts.walk_revisions()}
    if current is not None and current not in known:
        newest = scripts.get_current_head()
        raise InvalidError(
            f'the database has schema "{current}", which is newer than "{newest}", the newest this release knows: '
            "run a newer release, or restore a backup that was made before the upgrade"
        )
    return current == scripts.get_current_head()


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(files("hub.store") / "migrations").replace("%", "%%"))
    return config
