"""The release after this one: two migrations on top of this release's schema, which replace a column by a table."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hub.store import migrate
from hub.store.migrate import HEAD

# ruff: noqa: S608 - every part is written here
EXPANDED, CONTRACTED = (f"{int(HEAD) + step:04}" for step in (1, 2))
EXPAND = f'''"""The names of objects in a table of their own, and a column."""

import sqlalchemy as sa
from alembic import op

revision = "{EXPANDED}"
down_revision = "{HEAD}"
usable_from = "{HEAD}"

COPY = "INSERT INTO object_names (uid, name) SELECT uid, name FROM objects"
FOLLOW = "INSERT INTO object_names (uid, name) VALUES (new.uid, new.name)"


def upgrade() -> None:
    op.add_column("heartbeats", sa.Column("to_come", sa.Text(), nullable=True))
    op.create_table("object_names", sa.Column("uid", sa.Text(), primary_key=True), sa.Column("name", sa.Text(), nullable=False))
    op.execute(COPY)
    if op.get_bind().dialect.name == "sqlite":
        op.execute(f"CREATE TRIGGER object_names AFTER INSERT ON objects BEGIN {{FOLLOW}}; END")
        return
    body = f"AS $$ BEGIN {{FOLLOW}}; RETURN NULL; END $$"
    op.execute(f"CREATE OR REPLACE FUNCTION object_names() RETURNS trigger LANGUAGE plpgsql {{body}}")
    op.execute("CREATE TRIGGER object_names AFTER INSERT ON objects FOR EACH ROW EXECUTE FUNCTION object_names()")
'''
CONTRACT = f'''"""Without the column; no release before can run on it."""

from alembic import op

revision = "{CONTRACTED}"
down_revision = "{EXPANDED}"
usable_from = "{CONTRACTED}"


def upgrade() -> None:
    op.drop_column("heartbeats", "to_come")
'''
KNOW_HEAD = ("store.migrate", "store.backup.restore", "commands.migrate", "commands.doctor.database")
"""Modules that compare with the newest schema."""


def expand(scripts: Path) -> None:
    """Add the first of the migrations to a copy of this release's."""
    (scripts / "versions" / f"v{EXPANDED}_expand.py").write_text(EXPAND)


@contextmanager
def next_release(folder: Path) -> Iterator[Path]:
    """Within the block this process migrates as that release does. Yields its migration scripts."""
    scripts = folder / "migrations-to-come"
    shutil.copytree(str(migrate.SCRIPTS), scripts)
    expand(scripts)
    (scripts / "versions" / f"v{CONTRACTED}_contract.py").write_text(CONTRACT)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(migrate, "SCRIPTS", scripts)
        for module in KNOW_HEAD:
            patched.setattr(f"hub.{module}.HEAD", CONTRACTED)
        yield scripts
