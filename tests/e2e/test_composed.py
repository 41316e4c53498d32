"""The topology of docker-compose.yml, as plain processes: two clusters join by the proxy, and stay when a replica is killed."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.composed import Composed
from tests.e2e.processes import is_available, until
from tests.e2e.reading import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.postgres, pytest.mark.timeout(180)]


async def test_what_compose_starts_is_a_fleet_that_outlives_a_replica(tmp_path: Path, postgres_url: str) -> None:
    composed = Composed.read(ROOT / "docker-compose.yml", tmp_path, postgres_url)
    try:
        await composed.up()

        async def asked(replica: str, *words: str) -> list[dict[str, Any]]:
            return list(json.loads(await composed.run(replica, "hubctl", "get", *words, "-o", "json"))["items"])

        async def all_available() -> bool:
            found = await asked("hub-0", "clusters")
            return len(found) == 2 and all(map(is_available, found))

        await until(all_available, what="both clusters are Available", within=60)
        assert {each["metadata"]["name"] for each in await asked("hub-1", "replicas")} == {"hub-0", "hub-1"}

        await composed.kill("hub-0")

        async def all_on_the_other() -> bool:
            (left,) = [each for each in await asked("hub-1", "replicas") if each["metadata"]["name"] == "hub-1"]
            return bool(left["status"]["sessions"] == 2)

        await until(all_on_the_other, what="the agents of the killed replica are on the other", within=30)
        assert all(map(is_available, await asked("hub-1", "clusters")))
    finally:
        await composed.down()
        for name in composed.running:
            print(f"----- {name}\n{composed.log(name)[-2000:]}")  # noqa: T201 - shown when the test fails
    assert all(process.returncode in (0, -9, 143) for process in composed.running.values())
