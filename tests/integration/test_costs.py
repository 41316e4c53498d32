"""What operations cost: statements, transactions, messages and bytes; and the plans of queries on PostgreSQL."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Pool, event, text
from yarl import URL

from bench.queries import QUESTIONS, fill
from hub.api.managedclusters.cluster import StatusReport
from hub.ports import Transaction
from hub.registry.certificatesigningrequests import service as requests
from hub.registry.managedclusters import service as clusters
from hub.store.engine.engine import parse_url, writing_engine
from hub.store.tables import certificates
from machinery.client.kubeconfig import Credential
from machinery.identity import AgentId, ClusterName, agent_subject
from machinery.meta.conditions import AVAILABLE, TRUE, Condition
from machinery.pki import build_request, generate_key
from machinery.runtime.scheduler import SystemScheduler
from spoke.domain.names import AgentIdentity, AgentNames
from spoke.domain.report import ClusterReport, ReportedClaim
from spoke.domain.schedule import Detection
from spoke.ports.hub import ClientIdentity, HubAddress, HubSession, SessionHello
from tests.fakes.forwarder import Forwarder
from tests.fakes.rpc_stage import ADMIN, RpcStage, rpc_stage
from tests.fakes.stage import until
from tests.fakes.tape import RecordedClient, Tape
from tests.fixtures.postgres import Databases
from tests.integration.https_door.conftest import CLUSTERS as MANAGED_CLUSTERS, admin_of, hub_with
from tests.unit.hub.test_query_plans import statement_of

AGENTS = 20
NEVER = timedelta(days=1)
QUIET_CONNECTION = Detection(keepalive=NEVER)
"""Without the keepalive pings of an idle connection: on a busy machine one falls into what is measured."""
TURN, QUIET_TURNS = 0.01, 40
"""Seconds of a turn, and turns without a statement after which nothing more follows from a call: twice as long as anything is
gathered. Turns, as a process that a busy machine has stopped for as long would find the database quiet."""
AGENT, UID = AgentId("agent"), "uid-1"
NAMES = [f"edge{number}" for number in range(20)]
ROWS = str(URL(MANAGED_CLUSTERS) % {"includeObject": "None", "where": f"name in {json.dumps(NAMES)}"})
OWN = "/apis/hub.open-cluster-management.io/v1alpha1"
CLUSTER = ClusterName("edge1")
PERIODIC = (
    *("hub.access.revocation_poller", "hub.access.rbac_cache", "hub.heartbeat.coverage", "hub.composition.resources"),
    *("hub.metrics.replica", "hub.replica.heartbeat", "hub.replica.serving_certificate"),
    *("hub.grpc_door.session.trust_bundle_push", "hub.store.changelog.tail", "machinery.lifecycle.server"),
)


@pytest.fixture(autouse=True)
def _still(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in PERIODIC:
        monkeypatch.setattr(f"{module}.until_tick", lambda _period: NEVER.total_seconds())
    monkeypatch.setattr(SystemScheduler, "every", lambda *_arguments, **_named: None)
    for module in ("clusters.cluster_sets", "event_recorder", "certificates.approval"):
        monkeypatch.setattr(f"hub.controllers.{module}.GATHER", timedelta(milliseconds=100))


@dataclass
class Meter:
    """What SQLite runs, by its own trace: also what SQLAlchemy does not know of. It sees connections that are made later.

    A statement that fires triggers is traced once more for each. Savepoints are not counted: they depend on which writes meet
    in one transaction. SQLite syncs its log once for each transaction that wrote (`synchronous=FULL`, WAL), so `commits` are
    also the fsyncs.
    """

    statements: int = 0
    commits: int = 0

    def connected(self, connection: Any, _record: Any) -> None:
        connection.set_trace_callback(self._ran)

    def _ran(self, statement: str) -> None:
        word = statement.partition(" ")[0]
        self.commits += statement == "BEGIN IMMEDIATE"
        self.statements += word not in ("BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE")

    async def settled(self) -> None:
        """Returns when nothing has been asked of the database for a while."""
        seen, quiet = self.statements, 0
        while quiet < QUIET_TURNS:
            await asyncio.sleep(TURN)
            seen, quiet = self.statements, quiet + 1 if seen == self.statements else 0


@pytest.fixture
def meter() -> Iterator[Meter]:
    made = Meter()
    event.listen(Pool, "connect", made.connected)
    yield made
    event.remove(Pool, "connect", made.connected)


@dataclass
class Costs:
    """What a block costs; known after it."""

    statements: int = 0
    commits: int = 0
    messages: int = 0
    bytes: int = 0  # on the connection, in both directions, with the TLS that is around them


@dataclass
class Line:
    """An agent's client behind a relay."""

    client: RecordedClient
    tape: Tape
    relay: Forwarder

    @property
    def traffic(self) -> tuple[int, int]:
        return len(self.tape.said), self.relay.up + self.relay.down


@asynccontextmanager
async def measured(meter: Meter, stage: RpcStage, line: Line) -> AsyncIterator[Costs]:
    """What the block costs, with all that follows from it."""
    await meter.settled()
    found, meter.statements, meter.commits = Costs(), 0, 0
    messages, size = line.traffic
    yield found
    await stage.parts.auditor.flush()
    await meter.settled()
    now, total = line.traffic
    found.statements, found.commits, found.messages, found.bytes = meter.statements, meter.commits, now - messages, total - size


@asynccontextmanager
async def dialled(stage: RpcStage, credential: Credential) -> AsyncIterator[Line]:
    async with Forwarder(stage.door.port).serving() as relay:
        tape, address = Tape(), HubAddress(f"127.0.0.1:{relay.port}", stage.issuer.trust_bundle)
        client = RecordedClient(address, ClientIdentity(credential.chain, credential.key), tape, QUIET_CONNECTION)
        try:
            yield Line(client, tape, relay)
        finally:
            await client.close()


@asynccontextmanager
async def connected(stage: RpcStage, cluster: str) -> AsyncIterator[tuple[Line, HubSession]]:
    """A session that has begun: its first beat, which is stored at once, is acknowledged."""
    async with dialled(stage, await stage.enrol(cluster)) as line, line.client.session(SessionHello(UID)) as session:
        beat = asyncio.create_task(session.beat(available=True))
        while not beat.done():
            await stage.parts.beats.flush()
            await asyncio.sleep(0.01)
        yield line, session


@pytest.fixture
async def stage(tmp_path: Path, meter: Meter) -> AsyncIterator[RpcStage]:
    """Beats are stored when a test says so."""
    del meter  # it has to be there first
    async with rpc_stage(tmp_path, flush_window=NEVER) as running:
        yield running


async def test_beats_of_one_window_cost_one_transaction_and_a_row_each(stage: RpcStage, meter: Meter) -> None:
    async with AsyncExitStack() as stack:
        agents = [await stack.enter_async_context(connected(stage, f"edge{number}")) for number in range(AGENTS)]
        (line, _), beats = agents[0], stage.parts.beats
        async with measured(meter, stage, line) as found:
            sent = [asyncio.create_task(session.beat(available=True)) for _, session in agents]
            await until(lambda: len(beats) == AGENTS)
            await beats.flush()
            await asyncio.gather(*sent)
    assert (found.statements, found.commits) == (AGENTS, 1)
    assert found.messages == 2, "of one agent: its beat, and the acknowledgement"
    assert found.bytes <= 190  # 134


async def test_a_status_report_costs_one_transaction_and_writes_only_changes(stage: RpcStage, meter: Meter) -> None:
    def report(cpu: str) -> ClusterReport:
        conditions, claims = (Condition(AVAILABLE, TRUE, "r", "m"),), (ReportedClaim("a", "b"),)
        return ClusterReport(conditions, complete=True, capacity={"cpu": cpu}, claims=claims)

    async with connected(stage, CLUSTER) as (line, session):
        await session.report(report("4"))
        async with measured(meter, stage, line) as changed:
            await session.report(report("8"))
        async with measured(meter, stage, line) as same:
            await session.report(report("8"))
        async with measured(meter, stage, line) as again:
            await session.report(report("8"))

        def cpu(tx: Transaction) -> str:
            return str(clusters.find(tx, CLUSTER).document["status"]["capacity"]["cpu"])

        undoing = StatusReport(conditions=(), complete=True, capacity={"cpu": "1"})
        await stage.parts.store.run(clusters.report_status, CLUSTER, undoing, ADMIN)
        assert await stage.parts.store.read(cpu) == "1"
        async with asyncio.timeout(10):
            while await stage.parts.store.read(cpu) == "1":
                await session.report(report("8"))
    assert changed.statements <= 15  # 13
    assert same.statements <= 3  # 2: nothing is written
    assert (again.statements, again.commits) == (0, 0), "the session knows that nothing has changed"
    for costs in (changed, same):
        assert costs.commits == 1
    for costs in (changed, same, again):
        assert costs.messages == 2, "the report, and its acknowledgement"
        assert costs.bytes <= 300  # 216


async def test_a_session_start_has_its_cost_on_a_new_connection(stage: RpcStage, meter: Meter) -> None:
    credential = await stage.enrol(CLUSTER)
    async with dialled(stage, credential) as line, AsyncExitStack() as stack, measured(meter, stage, line) as found:
        await anext((await stack.enter_async_context(line.client.session(SessionHello(UID)))).desired())
    assert found.statements <= 31  # 27
    assert found.commits <= 4  # 3, where two of four writes meet
    assert found.messages == 3, "hello, welcome, and what the hub wants"
    assert found.bytes <= 8_000  # 6,490 with the handshake of TLS


async def test_a_certificate_request_has_its_cost_from_submission_to_certificate(tmp_path: Path, meter: Meter) -> None:
    """Approved by an operator, or by a rule, which also signs, with the Event and the audit records of it."""
    agent = AgentIdentity(AgentNames(CLUSTER, AGENT), UID)
    for rules, most in (((), (72, 7, 7, 3_000)), (("*",), (66, 5, 6, 3_000))):  # 67, 5, 6, 2,725; 62, 3, 5, 2,703
        async with (
            rpc_stage(tmp_path / str(len(rules)), leads=True, auto_approve=rules) as stage,
            dialled(stage, await stage.bootstrap(CLUSTER)) as line,
        ):
            await line.client.ensure_cluster(agent, endpoints=(), annotations={})
            await stage.accept(CLUSTER)
            request = build_request(agent_subject(CLUSTER, AGENT), generate_key())
            async with measured(meter, stage, line) as found:
                name = await line.client.submit_request(agent, request, duration=None)
                async for state in line.client.follow_request(name):
                    if state.state == "pending" and not rules:
                        await stage.store.run(requests.decide, name, approve=True, reason="Test", message="", actor=ADMIN)
        costs = (found.statements, found.commits, found.messages, found.bytes)
        assert all(cost <= limit for cost, limit in zip(costs, most, strict=True)), (rules, costs)


async def test_what_an_idle_page_of_the_console_reads_has_its_cost(tmp_path: Path, meter: Meter) -> None:
    """ROWS every 10 s (tests/browser), the strip of the hub every two minutes."""
    spent = []
    async with hub_with(tmp_path) as hub:
        admin = await admin_of(hub)
        for name in NAMES:
            await hub.join(name)
        for path, rows in ((ROWS, len(NAMES)), (f"{OWN}/hubreplicas", 1), (f"{OWN}/clustersummaries/fleet", 1)):
            await meter.settled()
            meter.statements = 0
            _, table = await admin.ask("GET", path, accept="application/json;as=Table;g=meta.k8s.io;v=v1")
            await meter.settled()
            assert len(table["rows"]) == rows, table
            spent.append(meter.statements)
    assert spent == [6, 3, 7]


CLUSTERS = 300
NARROW = frozenset(("inventory", "heartbeats", "labels"))
"""Tables with few narrow rows per cluster: reading them whole may cost less than an index, and at this size does. The `fields`
and documents are never read whole to choose."""


@pytest.fixture(scope="module")
def database(postgres_databases: Databases) -> Iterator[Connection]:
    with postgres_databases.migrated() as url:
        asyncio.run(fill(url, CLUSTERS))
        engine = writing_engine(parse_url(url), patient=True)
        with engine.connect() as connection:
            connection.execute(text("ANALYZE"))
            yield connection
        engine.dispose()


def nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for inner in node.get("Plans", ()):
        yield from nodes(inner)


def plan(database: Connection, question: Any) -> dict[str, Any]:
    compiled = statement_of(question, "postgresql").compile(database.engine, compile_kwargs={"literal_binds": True})
    found = database.exec_driver_sql(f"EXPLAIN (VERBOSE, FORMAT JSON) {str(compiled).replace('%', '%%')}").scalar_one()
    whole: dict[str, Any] = (json.loads(found) if isinstance(found, str) else found)[0]["Plan"]
    return whole


@pytest.mark.postgres
def test_only_narrow_tables_are_read_whole_and_no_document_is_read_to_choose(database: Connection) -> None:
    for question in (each for each in QUESTIONS if not each.is_plain):
        found = plan(database, question)
        whole = {node["Relation Name"] for node in nodes(found) if node["Node Type"] == "Seq Scan"}
        assert whole - {"objects"} <= NARROW, (question.name, found)
        choosing = [found] if question.group_by else [node for node in nodes(found) if node["Node Type"] == "Limit"]
        assert choosing, question.name
        for node in nodes(choosing[-1]):
            assert node.get("Relation Name") != "objects", (question.name, node)
            assert not any("document" in column for column in node.get("Output", ())), (question.name, node)


@pytest.mark.postgres
def test_what_is_looked_for_among_all_certificates_scans_none(database: Connection) -> None:
    """A table without rows is scanned whatever indexes it has, unless that is made dear: then only where none fits."""
    values = {"value": "a", "moment": 1, "ended_before": 1, "purpose": "agent", "limit": 9}
    for statement in certificates.LOOKED_FOR:
        chosen = statement.params({name: values[name] for name in statement.compile(dialect=database.dialect).params})
        compiled = chosen.compile(database.engine, compile_kwargs={"literal_binds": True})
        with database.begin_nested():
            database.execute(text("SET LOCAL enable_seqscan = off"))
            found = database.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {compiled}").scalar_one()
        whole = (json.loads(found) if isinstance(found, str) else found)[0]["Plan"]
        assert not [node for node in nodes(whole) if node["Node Type"] == "Seq Scan"], (str(statement), whole)
