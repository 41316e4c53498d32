"""A hub is upgraded and rolled back, replica by replica, under agents that live on: they notice that they are led elsewhere.

The release to come is this one with one more migration, in a folder of its own.
"""

import asyncio
import os
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from hub.store.migrate import HEAD
from tests.e2e.crowd import Crowd, crowd_of
from tests.e2e.databases import rows
from tests.e2e.processes import Bench
from tests.e2e.replicas import Replica, Replicas, replicas_of
from tests.e2e.test_replicas_agents import FAST
from tests.trials import soaked, trials

ROOT = Path(__file__).parents[2]
AGENTS = trials(test=10, soak=100)
NEXT = f"{int(HEAD) + 1:04}"
INTERVAL, WINDOW = 1.0, 0.2
FLAGS = ("--auto-approve=*", "--default-lease-duration=10s", "--shutdown-delay=500ms", "--shutdown-grace=1s", *FAST)
MIGRATION = f'''"""What the release to come adds."""

import sqlalchemy as sa
from alembic import op

revision = "{NEXT}"
down_revision = "{HEAD}"
usable_from = "{HEAD}"


def upgrade() -> None:
    op.add_column("heartbeats", sa.Column("to_come", sa.Text(), nullable=True))
'''


def release_to_come(folder: Path) -> dict[str, str]:
    """The environment in which its programs run."""
    shutil.copytree(ROOT / "hub", folder / "hub", ignore=shutil.ignore_patterns("__pycache__"))
    migrate = folder / "hub" / "store" / "migrate.py"
    migrate.write_text(migrate.read_text().replace(f'HEAD = "{HEAD}"', f'HEAD = "{NEXT}"'))
    (folder / "hub" / "store" / "migrations" / "versions" / f"v{NEXT}_to_come.py").write_text(MIGRATION)
    return {"PYTHONPATH": os.pathsep.join((str(folder), str(ROOT))), "PYTHONSAFEPATH": "1"}


async def exchanged(replicas: Replicas, replica: Replica, environment: dict[str, str]) -> None:
    """One replica ends as it is told to, and starts as another release."""
    assert replica.program is not None
    before = replica.program.output.count("ShutdownInitiated")
    replica.process.send(signal.SIGTERM)
    await told(replica, before)
    replicas.leave(replica)
    assert await replica.process.ended(within=60) == 0
    replica.program.environment = {"HUB_DATABASE_URL": replicas.database, **environment}
    await replicas.restart(replica)


async def told(replica: Replica, before: int) -> None:
    """Its readiness has fallen once more."""
    while replica.process.output.count("ShutdownInitiated") == before:  # noqa: ASYNC110 - a line in a file
        await asyncio.sleep(0.02)


async def all_exchanged(replicas: Replicas, crowd: Crowd, those: Sequence[Replica], environment: dict[str, str]) -> None:
    for replica in those:
        await exchanged(replicas, replica, environment)
        await crowd.all_heard(asyncio.get_running_loop().time(), within=30)


@soaked(AGENTS)
@pytest.mark.postgres
@pytest.mark.timeout(240 + AGENTS)
async def test_an_upgrade_and_a_rollback_lose_no_beat_beyond_a_window_and_need_no_bootstrap(
    bench: Bench, postgres_url: str, tmp_path: Path
) -> None:
    to_come = release_to_come(tmp_path / "to-come")
    async with replicas_of(bench, postgres_url, *FLAGS) as replicas:
        both = await replicas.start(2)
        crowd = await crowd_of(bench.admin, AGENTS)
        async with crowd.running():
            await crowd.all_heard(within=60 + AGENTS)
            lost = crowd.lost
            for tally in crowd.tallies.values():
                tally.widest = 0.0
            await all_exchanged(replicas, crowd, both, to_come)
            assert rows(postgres_url, "SELECT version_num FROM alembic_version") == [(NEXT,)]
            await all_exchanged(replicas, crowd, both, {})
            assert rows(postgres_url, "SELECT version_num FROM alembic_version") == [(NEXT,)], "the schema stays"
            assert "newer schema, on which this release can run" in replicas[0].process.output
            assert crowd.lost == lost, "every beat that was sent was acknowledged"
            widest = max(tally.widest for tally in crowd.tallies.values())
            assert 0 < widest < 5 * (INTERVAL + WINDOW), "seconds between two beats of one agent"
        issued = rows(postgres_url, "SELECT cluster FROM certificates WHERE purpose = 'agent'")
        assert len(issued) == AGENTS, "nobody has joined again"
        assert rows(postgres_url, "SELECT cluster FROM transitions WHERE status = 'Unknown'") == []
