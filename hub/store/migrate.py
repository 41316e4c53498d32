"""Bringing a database's schema up to date, once, whoever else tries at the same time.

A database that is up to date is known by its version alone: Alembic, 10 MB of it, is loaded only where something is to do.
"""

from importlib.resources import files

from sqlalchemy import Connection, Engine, inspect, text

from machinery.errors import InvalidError

HEAD = "0005"
"""The newest schema that this release knows."""
ADVISORY_LOCK = 0x6D7573746572
"""PostgreSQL's advisory lock around an upgrade; SQLite's is the write lock of the transaction itself."""
SCRIPTS = files("hub.store") / "migrations"


def upgrade(engine: Engine) -> None:
    """Migrates to the newest schema known here. Raises InvalidError when the database's is newer: nothing is touched."""
    with engine.begin() as connection:
        if current_version(connection) == HEAD:
            return
    with engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SET LOCAL lock_timeout = '60s'"))
            connection.execute(text("SET LOCAL statement_timeout = '0'"))
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": ADVISORY_LOCK})
        version = current_version(connection)
        if version != HEAD:
            _migrate(connection, version)


def current_version(connection: Connection) -> str | None:
    """The schema's version; None: the database is empty."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    version: str | None = connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one_or_none()
    return version


def _migrate(connection: Connection, version: str | None) -> None:
    from alembic import command  # noqa: PLC0415 - see the module
    from alembic.config import Config  # noqa: PLC0415 - see the module
    from alembic.script import ScriptDirectory  # noqa: PLC0415 - see the module

    config = Config()
    config.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if version is not None and version not in known:
        raise InvalidError(
            f'the database has schema "{version}", which is newer than "{HEAD}", the newest this release knows: '
            "run a newer release, or restore a backup that was made before the upgrade"
        )
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
