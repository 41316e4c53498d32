"""The release after this one: two migrations on top of this release's schema, which replace a column by a table."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hub.store import migrate
from hub.store.migrate import HEAD

TEMPLATES = Path(__file__).parents[1] / "fixtures" / "next_release"
EXPANDED, CONTRACTED = (f"{int(HEAD) + step:04}" for step in (1, 2))
KNOW_HEAD = ("store.migrate", "store.backup.restore", "commands.migrate", "commands.doctor.database")
"""Modules that compare with the newest schema."""


def expand(scripts: Path) -> None:
    """Add the first of the migrations to a copy of this release's."""
    (scripts / "versions" / f"v{EXPANDED}_expand.py").write_text(_migration("expand"))


@contextmanager
def next_release(folder: Path) -> Iterator[Path]:
    """Within the block this process migrates as that release does. Yields its migration scripts."""
    scripts = folder / "migrations-to-come"
    shutil.copytree(str(migrate.SCRIPTS), scripts)
    expand(scripts)
    (scripts / "versions" / f"v{CONTRACTED}_contract.py").write_text(_migration("contract"))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(migrate, "SCRIPTS", scripts)
        for module in KNOW_HEAD:
            patched.setattr(f"hub.{module}.HEAD", CONTRACTED)
        yield scripts


def _migration(name: str) -> str:
    text = (TEMPLATES / f"{name}.txt").read_text()
    for word, revision in {"EXPANDED": EXPANDED, "CONTRACTED": CONTRACTED, "HEAD": HEAD}.items():
        text = text.replace(word, revision)
    return text
