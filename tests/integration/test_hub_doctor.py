"""What `hub doctor` makes of a database: schemas that are behind or too new, and everything that one look into it tells."""

import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from hub.api.hubreplicas import LOST_AFTER, Load, Replica
from hub.commands.doctor import database
from hub.commands.doctor.database import Seen
from hub.commands.doctor.findings import DoctorFinding, DoctorState, broken, looked
from hub.extensions.settings import load
from hub.registry.managedclusters.actions import HUB_ID
from hub.replica.installation import SUFFIX
from hub.replica.keys import AUTHORITY
from hub.store.engine.engine import parse_url
from hub.store.migrate import HEAD
from hub.store.migrate_url import migrate_database
from machinery.election.lock import LockRecord
from machinery.errors import InvalidError, UnavailableError
from machinery.runtime.clock import ManualClock
from tests.integration.test_store_upgrades import LEFT, left_behind

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ONE = Replica("hub-0", "here", "i1", "1.0", "g", "h", NOW, NOW, sessions=3, ready=True)
LEASE, SHIFT = timedelta(seconds=15), timedelta(seconds=3)
LEADER = LockRecord("hub-0", "i1", 4, 1, LEASE, NOW, NOW, "7")
FACTS = {AUTHORITY: None, SUFFIX: "open-cluster-management.io", HUB_ID: "b2f1"}
WELL = Seen(NOW, FACTS, [ONE], LEADER)


def judged(seen: Seen, folder: Path, *, now: datetime = NOW) -> dict[str, DoctorFinding]:
    """What is not well, by name; the last of a name."""
    settings = load({"data_dir": folder}, None, {})
    found = database.judged(seen, settings, ManualClock(now), timedelta(milliseconds=3))
    return {each.name: each for each in found if each.state is not DoctorState.WELL}


def test_findings_about_clocks_groups_replicas_and_leaders(tmp_path: Path) -> None:
    assert judged(WELL, tmp_path) == {}
    later = NOW + timedelta(days=1)
    alone = replace(WELL, now=later, replicas=[replace(ONE, seen=later)])
    assert judged(alone, tmp_path, now=later) == {}, "a leader without competitors need not renew"
    for apart, side in ((timedelta(seconds=3), "ahead of"), (-timedelta(seconds=3), "behind")):
        assert f"this machine's is 3s {side} the database's" in judged(WELL, tmp_path, now=NOW + apart)["clock"].said
    gone = replace(WELL, now=NOW + LOST_AFTER * 2)
    lost = replace(ONE, name="hub-1", seen=NOW - LOST_AFTER * 2)
    versions = replace(WELL, replicas=[ONE, replace(ONE, name="hub-1", version="1.1")])
    ahead, behind = (replace(WELL, replicas=[replace(ONE, load=Load(0, 0.1, 2**20, each))]) for each in (SHIFT, -SHIFT))
    rows = (
        (ahead, "clock", DoctorState.BROKEN, "the replica hub-0 is 3s ahead of"),
        (behind, "clock", DoctorState.BROKEN, "the replica hub-0 is 3s behind"),
        (
            replace(WELL, facts={**FACTS, SUFFIX: "example.org"}),
            "identity",
            DoctorState.BROKEN,
            "--api-group-suffix example.org",
        ),
        (replace(WELL, replicas=[], leader=None), "replicas", DoctorState.BROKEN, ""),
        (replace(WELL, replicas=[], leader=None), "leader", DoctorState.BROKEN, ""),
        (gone, "replicas", DoctorState.BROKEN, "none has told of itself for ten seconds"),
        (gone, "leader", DoctorState.BROKEN, "has not renewed its lease"),
        (replace(WELL, leader=replace(LEADER, holder="")), "leader", DoctorState.BROKEN, "no replica leads"),
        (versions, "replicas", DoctorState.WARNING, "hub-0 1.0, hub-1 1.1"),
        (replace(WELL, replicas=[ONE, lost]), "replicas", DoctorState.WARNING, "lost: hub-1"),
        (replace(WELL, replicas=[replace(ONE, drained=True)]), "replicas", DoctorState.BROKEN, "uncordon"),
    )
    for seen, name, state, words in rows:
        found = judged(seen, tmp_path, now=seen.now)[name]
        assert (found.state, words in f"{found.said} {found.advice}") == (state, True), found


def test_a_schema_that_is_behind_is_a_warning_and_an_empty_database_is_not_made(tmp_path: Path) -> None:
    left_behind(tmp_path / "old.db", LEFT[1])
    old = database.schema(f"sqlite:///{tmp_path / 'old.db'}")
    assert (old.state, old.said) == (DoctorState.WARNING, f'"0005", {int(HEAD) - 5} behind this release\'s "{HEAD}"')
    none = database.schema(f"sqlite:///{tmp_path / 'none.db'}")
    assert (none.state, (tmp_path / "none.db").exists()) == (DoctorState.BROKEN, False)
    migrate_database(parse_url(f"sqlite:///{tmp_path / 'new.db'}"))
    assert database.schema(f"sqlite:///{tmp_path / 'new.db'}").state is DoctorState.WELL
    with closing(sqlite3.connect(tmp_path / "new.db")) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
        connection.execute("UPDATE facts SET value = '9998' WHERE name = 'schema-usable-from'")
    with pytest.raises(InvalidError, match="newer than"):
        database.schema(f"sqlite:///{tmp_path / 'new.db'}")


async def test_a_look_that_fails_is_a_finding() -> None:
    for error, said in (
        (UnavailableError("the database does not answer"), "the database does not answer"),
        (PermissionError(13, "Permission denied", "/data"), "/data: Permission denied"),
    ):

        async def look(error: Exception = error) -> list[DoctorFinding]:
            raise error

        assert await looked("database", look, "advice") == [broken("database", said, "advice")]
