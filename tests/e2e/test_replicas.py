"""Several replicas of one hub: how agents live on them, how they are upgraded, and what their database may do."""

import asyncio
import os
import shutil
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hub.api.liveness import GRACE_FACTOR
from hub.api.managedclusters.cluster import SILENT
from hub.store.migrate import HEAD
from machinery.client.kubeconfig import read_kubeconfig
from machinery.client.rest import KubeClient
from machinery.errors import MusterError
from machinery.identity import ClusterName
from machinery.runtime.clock import SystemClock
from spoke.ports.hub import ClientIdentity, HubAddress
from spoke.transports.grpc.client import GrpcHubClient
from tests.e2e.crowd import Crowd, Joiner, crowd_of, entrance
from tests.e2e.processes import AVAILABLE, CLUSTERS, Bench, status_of, until, until_all
from tests.e2e.replicas import Election, Replica, Replicas, replicas_of, rows
from tests.fakes.next_release import EXPANDED, expand
from tests.fakes.postgres import Way, postgres_path
from tests.trials import SOAKING, soaked, trials

if TYPE_CHECKING:
    from tests.fakes.postgres import PostgresServer  # only where the package is installed

pytestmark = [pytest.mark.e2e, pytest.mark.postgres, pytest.mark.timeout(240)]
AGENTS, JOINERS, CROWD = trials(test=10, soak=1000), trials(test=6, soak=500), trials(test=5, soak=100)
GRACE = 15  # seconds: shorter than what a replica's death may cost an agent, so that some may read Unknown, and be right
ELECTION = (
    *("--leader-elect-lease-duration=3s", "--leader-elect-renew-deadline=2s"),
    *("--leader-elect-retry-period=500ms", "--leader-elect-poll-period=250ms"),
)
FAST = ("--beat-interval=1s", "--flush-window=200ms", *ELECTION)


@soaked(AGENTS + JOINERS)
@pytest.mark.timeout(240 + AGENTS)
async def test_a_replica_that_is_killed_under_load_loses_doubles_and_silences_nobody(bench: Bench, postgres_url: str) -> None:
    flags = ("--auto-approve=*", f"--default-lease-duration={GRACE // GRACE_FACTOR}s", *FAST)
    async with replicas_of(bench, postgres_url, *flags) as replicas:
        victim, _ = await replicas.start(2)
        crowd = await crowd_of(bench.admin, AGENTS)
        async with crowd.running():
            await crowd.all_heard()
            let_in = await entrance(bench.admin, JOINERS)
            joiners = [Joiner(ClusterName(f"late-{number}"), let_in) for number in range(JOINERS)]
            joining = [asyncio.create_task(joiner.join()) for joiner in joiners]
            await until_all(lambda: sum(task.done() for task in joining), JOINERS // 3, what="a third has joined")
            victim.process.send(signal.SIGKILL)
            await crowd.all_heard(asyncio.get_running_loop().time() + 1.0)
            await asyncio.gather(*joining)
            await victim.process.ended()
            names = Counter(cluster["metadata"]["name"] for cluster in (await bench.get(CLUSTERS))["items"])
            everybody = {*crowd.use_counts, *(joiner.name for joiner in joiners)}
            assert names == Counter(everybody), "every cluster is there once"
            agents = rows(postgres_url, "SELECT cluster FROM certificates WHERE purpose = 'agent'")
            issued = Counter(cluster for (cluster,) in agents)
            assert set(issued) == everybody
            assert max(issued[joiner.name] for joiner in joiners) == 1, "one approval is one certificate"
            unknown = rows(
                postgres_url, "SELECT cluster, reason FROM transitions WHERE status = 'Unknown' AND cluster LIKE 'edge%'"
            )
            silenced = [str(name) for name, reason in unknown if reason == SILENT.reason]  # another one: before the first beat
            gaps = {name: crowd.use_counts[name].widest for name in silenced}
            falsely = {name: gap for name, gap in gaps.items() if gap < GRACE}
            assert falsely == {}, "nobody reads Unknown whose beats were acknowledged within a grace"
            await until(
                lambda: (victim.name,) not in rows(postgres_url, "SELECT DISTINCT replica FROM sessions"),
                what="the dead replica has no sessions",
            )
            assert rows(postgres_url, "SELECT cluster FROM heartbeats WHERE session IS NULL AND cluster LIKE 'edge%'") == []


@asynccontextmanager
async def asking(bench: Bench) -> AsyncIterator[list[str]]:
    """Short requests at both doors, each over a connection of its own, until the block ends; what became of them."""
    answers: list[str] = []
    admin = read_kubeconfig(bench.admin)
    shown = admin.require_credential()
    address = HubAddress(admin.require_endpoint().grpc_server, admin.cluster.certificate_authority)
    ended = asyncio.Event()

    async def ask(door: str) -> None:
        while not ended.is_set():
            try:
                if door == "https":
                    await bench.get(CLUSTERS)
                else:
                    client = GrpcHubClient(address, ClientIdentity(shown.chain, shown.key), SystemClock())
                    try:
                        await client.info()
                    finally:
                        await client.close()
            except MusterError as error:
                answers.append(f"{door}: {error.reason} {error.message}")
            else:
                answers.append("OK")

    async with asyncio.TaskGroup() as tasks:
        for door in ("https", "grpc"):
            tasks.create_task(ask(door))
        try:
            yield answers
        finally:
            ended.set()


async def test_the_end_of_one_replica_of_two_loses_no_beat_and_no_short_request(bench: Bench, postgres_url: str) -> None:
    flags = ("--auto-approve=*", "--shutdown-delay=1s", "--shutdown-grace=3s", *FAST)
    async with replicas_of(bench, postgres_url, *flags) as replicas:
        leaving, staying = await replicas.start(2)
        crowd = await crowd_of(bench.admin, CROWD)
        async with crowd.running(), asking(bench) as answers:
            await crowd.all_heard()
            assert min(replicas.grpc.taken.values()) > 0
            lost_before = crowd.lost
            leaving.process.send(signal.SIGTERM)
            await leaving.process.signaled("ShutdownInitiated")
            replicas.leave(leaving)
            assert await leaving.process.ended() == 0
            await crowd.all_heard(asyncio.get_running_loop().time())
            assert crowd.lost == lost_before, "every beat that was sent was acknowledged"
            asked = len(answers)
            await until(lambda: len(answers) > asked + 3, what="the other answers")
        assert set(answers) == {"OK"}
        assert staying.process.running
        assert rows(postgres_url, "SELECT name FROM replicas") == [(staying.name,)]


async def test_agents_spread_over_a_later_replica_and_leave_a_drained_one_and_lose_no_beat(
    bench: Bench, postgres_url: str
) -> None:
    flags = ("--auto-approve=*", "--connection-age=2s", "--connection-age-grace=10s", *FAST)
    async with replicas_of(bench, postgres_url, *flags) as replicas:
        await replicas.start(1)
        crowd = await crowd_of(bench.admin, CROWD)
        async with crowd.running():
            await crowd.all_heard()
            await replicas.start(1)
            opened = {name: tally.opened for name, tally in crowd.use_counts.items()}

            async def spread() -> bool:
                used = rows(postgres_url, "SELECT DISTINCT replica FROM sessions")
                return len(used) == 2 and all(tally.opened > opened[name] for name, tally in crowd.use_counts.items())

            await until(spread, what="both replicas have sessions, and every agent has moved")
            assert crowd.lost == 0
            await bench.hubctl("drain", "replica", "hub-0", "--timeout", "60s")
            async with await replicas[0].client() as client:
                answer = await client.raw("GET", "/readyz")
            assert (answer.status != 200, b"drained" in answer.body) == (True, True)
            assert rows(postgres_url, "SELECT DISTINCT replica FROM sessions") == [("hub-1",)]
            await crowd.all_heard(asyncio.get_running_loop().time())
            assert crowd.lost == 0, "a draining session beats until the next session carries a beat"


ROOT = Path(__file__).parents[2]
UPGRADED = ("--auto-approve=*", "--default-lease-duration=10s", "--shutdown-delay=500ms", "--shutdown-grace=1s", *FAST)


def release_to_come(folder: Path) -> dict[str, str]:
    """The environment in which its programs run."""
    shutil.copytree(ROOT / "hub", folder / "hub")
    migrate = folder / "hub" / "store" / "migrate.py"
    migrate.write_text(migrate.read_text().replace(f'HEAD = "{HEAD}"', f'HEAD = "{EXPANDED}"'))
    expand(migrate.parent / "migrations")
    return {"PYTHONPATH": os.pathsep.join((str(folder), str(ROOT))), "PYTHONSAFEPATH": "1"}


async def all_exchanged(replicas: Replicas, crowd: Crowd, those: Sequence[Replica], environment: dict[str, str]) -> None:
    """Each replica ends on SIGTERM, and starts as another release."""
    for replica in those:
        before = replica.process.output.count("ShutdownInitiated")
        replica.process.send(signal.SIGTERM)
        await replica.process.says("ShutdownInitiated", before + 1)
        replicas.leave(replica)
        assert await replica.process.ended() == 0
        replica.process.environment = {"HUB_DATABASE_URL": replicas.database, **environment}
        await replicas.restart(replica)
        await crowd.all_heard(asyncio.get_running_loop().time())


@soaked(CROWD)
@pytest.mark.timeout(240 + CROWD)
async def test_upgrade_and_rollback_lose_no_beat_and_need_no_bootstrap(bench: Bench, postgres_url: str, tmp_path: Path) -> None:
    to_come = release_to_come(tmp_path / "to-come")
    async with replicas_of(bench, postgres_url, *UPGRADED) as replicas:
        both, crowd = await replicas.start(2), await crowd_of(bench.admin, CROWD)
        async with crowd.running():
            await crowd.all_heard()
            lost = crowd.lost
            await all_exchanged(replicas, crowd, both, to_come)
            assert rows(postgres_url, "SELECT version_num FROM alembic_version") == [(EXPANDED,)]
            await all_exchanged(replicas, crowd, both if SOAKING else both[:1], {})
            assert rows(postgres_url, "SELECT version_num FROM alembic_version") == [(EXPANDED,)], "the schema stays"
            assert "newer schema, on which this release can run" in replicas[0].process.output
            assert crowd.lost == lost, "every beat that was sent was acknowledged"
        issued = rows(postgres_url, "SELECT cluster FROM certificates WHERE purpose = 'agent'")
        assert len(issued) == CROWD, "nobody has joined again"
        assert rows(postgres_url, "SELECT cluster FROM transitions WHERE status = 'Unknown'") == []


BEATING = trials(test=4, soak=1000)
REPLICAS = trials(test=2, soak=3)
LEASE = 10  # of the clusters, in seconds: a cluster reads Unknown after five of them, which is longer than any of the faults
ROUNDS = trials(test=1, soak=10)
FLAGS = ("--auto-approve=*", f"--default-lease-duration={LEASE}s", "--beat-interval=1s", "--flush-window=200ms")


@dataclass(frozen=True, slots=True)
class Databases:
    """A server, its synchronous standby, and the one address that leads to either."""

    primary: "PostgresServer"
    standby: "PostgresServer"
    way: Way
    url: str

    async def restart(self, mode: str, meanwhile: Callable[[], Awaitable[None]]) -> None:
        await asyncio.to_thread(self.primary.stop, mode)
        await meanwhile()
        await asyncio.to_thread(self.primary.start)

    async def lose_standby(self, meanwhile: Callable[[], Awaitable[None]]) -> None:
        await asyncio.to_thread(self.standby.stop)
        await meanwhile()
        await asyncio.to_thread(self.standby.start)

    async def take_no_writes(self, meanwhile: Callable[[], Awaitable[None]]) -> None:
        """As providers do it to a server whose disk is nearly full."""
        for setting, then in (("on", meanwhile), ("off", None)):
            self.primary.configure(f"default_transaction_read_only = {setting}")
            await asyncio.to_thread(self.primary.reload)
            if then is not None:
                await then()

    async def fail_over(self, meanwhile: Callable[[], Awaitable[None]]) -> None:
        """The address leads to the standby before that is promoted."""
        await asyncio.to_thread(self.primary.stop, "immediate")
        self.way.lead_to(self.standby.folder)
        await meanwhile()
        await asyncio.to_thread(self.standby.promote)


@pytest.fixture
async def databases(replicated_servers: tuple["PostgresServer", "PostgresServer"]) -> AsyncIterator[Databases]:
    primary, standby = replicated_servers
    primary.configure("max_connections = 100")
    async with postgres_path(primary.url) as (way, url):
        yield Databases(primary, standby, way, url)


async def all_are(replicas: list[Replica], *, ready: bool) -> None:
    async def probed() -> bool:
        return {await replica.probed() for replica in replicas} == {200 if ready else 500}

    await until(probed, what="every replica is ready" if ready else "no replica is ready")


@asynccontextmanager
async def working(election: Election, crowd: Crowd) -> AsyncIterator[list[str]]:
    """Agents beat and an operator writes within the block; after it all that was acknowledged is there, and answered.

    Gives the names of what was acknowledged, as they come.
    """
    async with crowd.running(), election.worked(election.replicas.all) as accepted:
        await crowd.all_heard()
        yield accepted
        sofar = len(accepted)
        await until(lambda: len(accepted) > sofar, what="the operator's writes are taken")
        assert (SILENT.reason,) not in await election.ask("SELECT reason FROM transitions")
        await crowd.all_heard(asyncio.get_running_loop().time())
    await election.answered(*accepted, at=await election.leader())
    await election.check()


async def silent_is_noticed(election: Election, crowd: Crowd) -> None:
    """Of agents that come back one does not, whose lease is short."""
    name = f"{crowd.prefix}-{BEATING - 1}"
    async with await KubeClient.from_file(election.replicas.bench.admin) as client:
        await client.patch(f"{CLUSTERS}/{name}", {"spec": {"leaseDurationSeconds": 1}})
    async with crowd.running(range(BEATING - 1)):
        await crowd.all_heard_of(range(BEATING - 1))
        silent = partial(election.replicas.bench.cluster_when, name, what="reads Unknown")
        await silent(lambda one: status_of(one, AVAILABLE) == "Unknown")


@pytest.mark.timeout(240 + BEATING * ROUNDS)
@soaked(ROUNDS)
async def test_replicas_bear_whatever_happens_to_their_database(bench: Bench, databases: Databases) -> None:
    async with replicas_of(bench, databases.url) as replicas:
        election = Election(replicas)
        await election.start(REPLICAS, *FLAGS)
        crowd = await crowd_of(bench.admin, BEATING)

        async def meanwhile() -> None:
            await all_are(replicas.all, ready=False)

        crash, refusal = partial(databases.restart, "immediate", meanwhile), partial(databases.take_no_writes, meanwhile)
        rest = [partial(databases.restart, "fast", meanwhile), partial(databases.lose_standby, meanwhile)]
        faults = [*([crash, refusal, *rest] * ROUNDS if SOAKING else [crash, refusal]), partial(databases.fail_over, meanwhile)]
        async with working(election, crowd):
            for fault in faults:
                await fault()
                await all_are(replicas.all, ready=True)
                await crowd.all_heard(asyncio.get_running_loop().time())
                await election.leader()
        await silent_is_noticed(election, crowd)
