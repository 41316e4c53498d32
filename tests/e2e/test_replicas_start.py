"""Several replicas of one hub: what they share, what each has for itself, and who is refused."""

import asyncio
import shutil
from pathlib import Path

import pytest
from sqlalchemy import text

from hub.store.engine import parse_url, writing_engine
from hub.store.migrating import migrate_database
from machinery.kube.client import KubeClient
from tests.e2e.processes import Bench, until
from tests.e2e.replicas import Replica, replicas_of
from tests.fakes.postgres_path import postgres_path

pytestmark = pytest.mark.postgres
NAMESPACE = "/api/v1/namespaces/default"


async def token_of(replica: Replica) -> str:
    async with await replica.client() as client:
        await client.create(f"{NAMESPACE}/serviceaccounts", {"metadata": {"name": "reader", "namespace": "default"}})
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        return str((await client.create(f"{NAMESPACE}/serviceaccounts/reader/token", body))["status"]["token"])


async def user_of(replica: Replica, token: str) -> str:
    """Whom this replica takes the bearer of a token for; "" when it does not take it."""
    async with await replica.client() as client:
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
        reviewed = await client.create("/apis/authentication.k8s.io/v1/tokenreviews", body)
        return str(reviewed["status"].get("user", {}).get("username", ""))


async def test_two_that_start_at_once_on_a_new_database_are_one_hub(bench: Bench, postgres_url: str) -> None:
    async with replicas_of(bench, postgres_url) as replicas:
        one, other = await replicas.start(2)
        keys = [(replica.data / "serving.key").read_bytes() for replica in (one, other)]
        assert keys[0] != keys[1]
        assert not (one.data / "ca.key").exists()
        token = await token_of(one)
        assert await user_of(other, token) == "system:serviceaccount:default:reader"
        async with await other.client() as client:
            await client.create(
                f"{NAMESPACE}/secrets", {"metadata": {"name": "s", "namespace": "default"}, "stringData": {"a": "b"}}
            )
        async with await one.client() as client:
            assert (await client.get(f"{NAMESPACE}/secrets/s"))["data"] == {"a": "Yg=="}

        async def led_to_both() -> bool:
            async with await KubeClient.from_file(bench.admin) as client:
                await client.raw("GET", "/readyz")
            return len(replicas.https.taken) == 2

        await until(led_to_both, what="the balancer has led to both")
        table = [line.split() for line in (await bench.hubctl("get", "replicas")).splitlines()[1:]]
        assert [row[:2] for row in table] == [["hub-0", "Ready"], ["hub-1", "Ready"]]
        assert [row[2] for row in table].count("*") == 1, "one of them leads"
        assert await other.process.stop() == 0
        assert len((await bench.hubctl("get", "replicas")).splitlines()) == 2, "one that ended in good order is gone"


async def test_a_replica_that_starts_while_the_database_is_away_waits_and_says_so(bench: Bench, postgres_url: str) -> None:
    async with (
        postgres_path(postgres_url) as (way, url),
        replicas_of(bench, url, "--leader-elect-lease-duration=11s") as replicas,
    ):
        way.swallow()
        waiting = replicas.prepared()
        await waiting.process.start()

        async def told() -> bool:
            return '"event": "the start waits"' in waiting.process.output

        await until(told, what="it says that it waits", within=60)
        assert '"for_what": "opening the database and bringing its schema up to date"' in waiting.process.output
        assert waiting.process.running
        way.cut_all()
        way.pass_on()
        await replicas.ready(waiting)


async def test_a_replica_that_waits_for_the_database_ends_when_it_is_told_to(bench: Bench, tmp_path: Path) -> None:
    async with replicas_of(bench, f"postgresql://muster@/hub?host={tmp_path}") as replicas:
        waiting = replicas.prepared()
        await waiting.process.start()

        async def told() -> bool:
            return "the start waits" in waiting.process.output

        await until(told, what="it says that it waits", within=60)
        assert await waiting.process.stop() == 1
        assert "told to stop while it waited for opening the database" in waiting.process.output
        assert "the database does not answer" in waiting.process.output


async def test_a_replica_without_the_keys_of_the_databases_hub_is_refused(bench: Bench, postgres_url: str) -> None:
    async with replicas_of(bench, postgres_url) as replicas:
        await replicas.start(1)
        environment = {"HUB_DATABASE_URL": postgres_url}
        lost = bench.program("lost", "hub", "serve", f"--data-dir={bench.folder / 'lost'}", environment=environment)
        other = bench.folder / "other-keys"
        shutil.copytree(bench.folder / "keys", other)
        (other / "ca.crt").unlink()
        (other / "ca.key").unlink()
        half = bench.program(
            "half", "hub", "serve", f"--data-dir={bench.folder / 'half'}", f"--keys-dir={other}", environment=environment
        )
        await asyncio.gather(lost.start(), half.start())
        assert (await lost.ended(), await half.ended()) == (1, 1)
        assert "copy of its ca.crt, ca.key, secrets.key and token-*.key" in lost.output
        assert "all replicas of a hub are given the same keys" in half.output
        assert not list((bench.folder / "lost").glob("*.key"))


async def test_a_schema_that_is_newer_than_what_it_can_run_on_is_named_and_nothing_starts(
    bench: Bench, postgres_url: str
) -> None:
    """And the look at it before tells the same, and what is to be migrated where it is older."""
    environment = {"HUB_DATABASE_URL": postgres_url}

    async def said(*command: str) -> tuple[int, str]:
        program = bench.program(f"said-{len(bench.programs)}", "hub", *command, environment=environment)
        await program.start()
        return await program.ended(within=60), program.output

    code, output = await said("migrate", "--check")
    assert (code, "the database was empty; to run, in this order:" in output) == (1, True), output
    await asyncio.to_thread(migrate_database, parse_url(postgres_url))
    engine = writing_engine(parse_url(postgres_url))
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
        connection.execute(text("UPDATE facts SET value = '9999' WHERE name = 'schema-usable-from'"))
    engine.dispose()
    looked = await said("migrate", "--check")
    started = await said("serve", f"--data-dir={bench.data}")
    for code, output in (looked, started):
        assert 'the database has schema "9999", which is newer than' in output
        assert "this release cannot run on it" in output
        assert code
    assert "door open" not in started[1]
    assert "Traceback" not in started[1]
