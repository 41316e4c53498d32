"""The life of a hub, from outside: real processes, signals and sockets, and nothing that was begun is lost."""

import asyncio
import os
import re
import signal
import socket
import sqlite3
import stat
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from grpc import aio
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from hub.grpc_door.errors import PUSHBACK
from machinery.client.kubeconfig import read_kubeconfig
from machinery.identity import cluster_name
from machinery.runtime.tls import client_context
from machinery.wire.registration.v1 import registration_pb2 as registration
from machinery.wire.registration.v1.registration_pb2_grpc import RegistrationStub
from spoke.ports.hub import ClientIdentity, HubAddress
from tests.checks import check_refusal
from tests.e2e.crowd import entrance
from tests.e2e.processes import CLUSTERS, Bench, Program, asked_for_debug, free_port, new_cluster, until
from tests.fakes.postgres import postgres_path
from tests.trials import repeated, soaked, trials

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

STATUS = grpc.StatusCode
LAST = {
    "true": ["NotAcceptingNewRequest", "InFlightRequestsDrained", "HTTPServerStoppedListening"],
    "false": ["NotAcceptingNewRequest", "HTTPServerStoppedListening", "InFlightRequestsDrained"],
}
CALLS = trials(test=150, soak=1_000)


@asynccontextmanager
async def held(database: Path, debug: Path) -> AsyncIterator[None]:
    """Within the block nobody can write: writers wait, and are in flight.

    Begins once the hub behind the debug socket has nothing of its own to write: its controllers end the step that they are in
    before it stops, and one that waits for the database would hold up a stop by more than the test looks at.
    """
    connection = sqlite3.connect(database, isolation_level=None)

    async def held_at_rest() -> bool:
        connection.execute("BEGIN IMMEDIATE")
        if at_rest(await asked_for_debug(debug)):
            return True
        connection.execute("ROLLBACK")
        return False

    try:
        await until(held_at_rest, what="the hub has nothing of its own to write")
        yield
        connection.execute("ROLLBACK")
    finally:
        connection.close()


def at_rest(report: str) -> bool:
    """Whether no controller is in a step, and no write is on its way, by the report of a debug socket."""
    sections = re.split(r"^(?:==|--) ", report, flags=re.MULTILINE)
    steps = [section for section in sections if re.match(r"task .* step$", section, re.MULTILINE)]
    waits = [
        section
        for section in sections
        if re.match(r"thread store-writer\n(.*\n)*.* WriteQueue\._take\n.* Condition\.wait\s*\Z", section)
    ]
    return len(waits) == 1 and not steps


@dataclass(frozen=True, slots=True)
class Answer:
    """`code` 0: nobody answered."""

    code: int
    headers: Mapping[str, str]
    text: str = ""


@dataclass
class Operator:
    """An HTTP client, an administrator's or a probe's."""

    session: aiohttp.ClientSession

    async def ask(self, method: str, path: str, body: Any = None) -> Answer:
        try:
            async with self.session.request(method, path, json=body) as response:
                return Answer(response.status, response.headers, await response.text())
        except aiohttp.ClientError as error:
            return Answer(0, {}, repr(error))


@asynccontextmanager
async def operator(bench: Bench, *, fresh: bool = False, anonymous: bool = False) -> AsyncIterator[Operator]:
    """`fresh`: it opens a connection for each request. `anonymous`, as a kubelet: who somebody is shows in the database."""
    admin = read_kubeconfig(bench.admin)
    shown = admin.require_credential()
    context = client_context(admin.cluster.certificate_authority, *(() if anonymous else (shown.chain, shown.key)))
    connector = aiohttp.TCPConnector(ssl=context, force_close=fresh, limit=0)
    async with aiohttp.ClientSession(f"https://127.0.0.1:{bench.https_port}", connector=connector) as session:
        yield Operator(session)


def channel(address: HubAddress, identity: ClientIdentity) -> aio.Channel:
    """A connection of its own to the door for agents."""
    credentials = grpc.ssl_channel_credentials(address.ca, identity.key, identity.certificate)
    return aio.secure_channel(address.target, credentials, [("grpc.use_local_subchannel_pool", 1)])


def admin_channel(bench: Bench) -> aio.Channel:
    admin = read_kubeconfig(bench.admin)
    shown, address = admin.require_credential(), admin.require_endpoint().grpc_server
    return channel(HubAddress(address, admin.cluster.certificate_authority), ClientIdentity(shown.chain, shown.key))


def hooked(bench: Bench, hooks: str, **settings: str) -> Program:
    """A hub with hooks of the test."""
    environment = {
        "HUB_DATA_DIR": str(bench.data),
        "HUB_GRPC_LISTEN": f"127.0.0.1:{bench.grpc_port}",
        "HUB_HTTPS_LISTEN": f"127.0.0.1:{bench.https_port}",
        "HOOKS": hooks,
        "HOOKS_FOLDER": str(bench.folder),
        **settings,
    }
    return bench.program("hub", "tests.fakes.hub_with_hooks", environment=environment)


def audited(bench: Bench) -> set[str]:
    """Whose names the records of requests have."""
    return {name for (name,) in bench.stored("SELECT name FROM audit")}


def registered(bench: Bench) -> Counter[str]:
    """How many times each cluster's name was created, by the change log."""
    query = "SELECT name FROM changes WHERE kind = 'managedclusters.cluster' AND type = 'ADDED'"
    return Counter(name for (name,) in bench.stored(query))


async def in_flight(debug: Path, *, calls: int = 0, requests: int = 1) -> None:
    """Returns when so much is in flight at the two doors of the hub behind the debug socket, whose database is held."""

    async def begun() -> bool:
        output = await asked_for_debug(debug)
        return f"calls in flight: {calls}\n" in output and f"requests\nin flight: {requests}\n" in output

    await until(begun, what="everything is in flight")


@soaked(CALLS)
async def test_what_is_in_flight_ends_well_and_once_while_everything_new_is_asked_to_try_again(bench: Bench) -> None:
    debug = bench.folder / "debug"
    hub = await hooked(bench, "patient", HUB_DEBUG_SOCKET=str(debug)).start()
    await bench.ready(hub)
    names = [cluster_name(f"edge{number}") for number in range(CALLS)]
    way = await entrance(bench.admin, CALLS)
    async with operator(bench) as old, operator(bench, fresh=True) as fresh, channel(way.address, way.identity) as agent:
        stub = RegistrationStub(agent)
        assert (await old.ask("GET", CLUSTERS)).code == 200
        async with held(bench.data / "hub.db", debug):
            calls = [stub.EnsureCluster(registration.EnsureClusterRequest(cluster_name=one, cluster_uid=one)) for one in names]
            writing = asyncio.create_task(old.ask("POST", CLUSTERS, new_cluster("made-by-hand")))
            await in_flight(debug, calls=CALLS)
            hub.send(signal.SIGTERM)
            await hub.signaled("NotAcceptingNewRequest")
            asked = ("/livez", "/readyz", "/healthz", CLUSTERS)
            *probes, newer = await asyncio.gather(*(fresh.ask("GET", path) for path in asked))
            refused = [await old.ask("GET", CLUSTERS), newer]
            late = await outcome(stub.GetHub(registration.GetHubRequest()))
        codes = Counter([await call.code() for call in calls])
        written = await writing
    assert await hub.ended() == 0
    for answer in refused:
        assert (answer.code, answer.headers["retry-after"], answer.headers["connection"]) == (429, "5", "close")
    assert [answer.code for answer in probes] == [200, 500, 200]
    assert late[0] is STATUS.UNAVAILABLE
    assert int(late[1][PUSHBACK]) > 0
    assert (codes, written.code) == ({STATUS.OK: CALLS}, 201)
    assert registered(bench) == Counter([*names, "made-by-hand"])
    assert {*names, "made-by-hand"} <= audited(bench), "what was answered while it stopped is on record"
    assert hub.signals[-3:] == LAST["true"]


async def outcome(call: Any) -> tuple[grpc.StatusCode, dict[str, str]]:
    """How a call ended, and what came with it."""
    try:
        await call
    except aio.AioRpcError as error:
        return error.code(), {key: str(value) for key, value in error.trailing_metadata()}
    return STATUS.OK, {}


async def test_without_retry_after_the_listener_closes_first_and_what_is_in_flight_ends_well(bench: Bench) -> None:
    debug = bench.folder / "debug"
    hub = await bench.hub("--shutdown-send-retry-after=false", f"--debug-socket={debug}")
    way = await entrance(bench.admin, 1)
    async with (
        operator(bench) as old,
        operator(bench, fresh=True) as fresh,
        operator(bench) as idle,
        channel(way.address, way.identity) as agent,
    ):
        assert (await idle.ask("GET", CLUSTERS)).code == 200
        await RegistrationStub(agent).GetHub(registration.GetHubRequest())
        async with held(bench.data / "hub.db", debug):
            request = registration.EnsureClusterRequest(cluster_name="edge1", cluster_uid="1")
            call = RegistrationStub(agent).EnsureCluster(request)
            await in_flight(debug, calls=1, requests=0)  # while a write waits, a hub that is busy lets no call begin
            writing = asyncio.create_task(old.ask("POST", CLUSTERS, new_cluster("made-by-hand")))
            await in_flight(debug, calls=1)
            hub.send(signal.SIGTERM)
            await hub.signaled("HTTPServerStoppedListening")
            refused, closed = await fresh.ask("GET", CLUSTERS), await idle.ask("GET", CLUSTERS)
        assert (await writing).code == 201
        assert await call.code() is STATUS.OK
    assert (await hub.ended(), refused.code, closed.code) == (0, 0, 0)
    assert "Connect call failed" in refused.text
    assert hub.signals[-3:] == LAST["false"]


async def test_in_the_delay_readiness_is_down_and_every_request_is_answered(bench: Bench) -> None:
    program = await hooked(bench, "calls", HUB_SHUTDOWN_DELAY="1500ms").start()
    await bench.ready(program)
    async with operator(bench) as old, operator(bench, fresh=True) as fresh, admin_channel(bench) as to_hub:
        stub: Any = HealthStub(to_hub)  # type: ignore[no-untyped-call]
        watch = stub.Watch(HealthCheckRequest())
        assert (await watch.read()).status == HealthCheckResponse.SERVING
        loop, started = asyncio.get_running_loop(), asyncio.get_running_loop().time()
        program.send(signal.SIGTERM)
        fell = asyncio.create_task(watch.read())
        asked: list[tuple[bool, str, asyncio.Task[Answer]]] = []

        async def ask(client: Any, path: str) -> Answer:
            return await client.ask("GET", path)  # type: ignore[no-any-return]

        while loop.time() - started < 1.2:
            for client, path in ((old, "/readyz"), (old, CLUSTERS), (fresh, "/livez"), (old, "/livez")):
                asked.append((fell.done(), path, asyncio.create_task(ask(client, path))))
            await asyncio.sleep(0.02)
        assert (await fell).status == HealthCheckResponse.NOT_SERVING
        answers = [(fallen, path, await task) for fallen, path, task in asked]
        rpc = [await outcome(RegistrationStub(to_hub).GetHub(registration.GetHubRequest()))]
        (bench.folder / "go").touch()  # until then the hook holds the stop up, however long all that took
        assert await program.ended() == 0
    late = [answer.code for fallen, path, answer in answers if path == "/readyz" and fallen]
    assert late
    assert (set(late), {answer.code for _, path, answer in answers if path != "/readyz"}) == ({500}, {200})
    assert rpc[0][0] is STATUS.OK
    called = [line for line in program.lines if line["event"] == "hook called"]
    assert len(called) == 5, "the hook used the API after the delay, and was answered every time"
    assert program.signals == [
        *("MuxAndDiscoveryComplete", "HasBeenReady", "ShutdownInitiated", "AfterShutdownDelayDuration"),
        *("PreShutdownHooksStopped", *LAST["true"]),
    ]
    order = [line.get("signal", line["event"]) for line in program.lines]
    assert order.index("AfterShutdownDelayDuration") < order.index("hook called") < order.index("NotAcceptingNewRequest")


async def test_a_hub_that_hangs_tells_what_it_does_and_systemd_is_notified_once_that_it_is_ready(bench: Bench) -> None:
    debug, address = bench.folder / "debug", bench.folder / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(address))
        systemd.settimeout(0)
        program = await hooked(bench, "sticks", HUB_DEBUG_SOCKET=str(debug), NOTIFY_SOCKET=str(address)).start()
        await bench.ready(program)
        assert systemd.recv(100) == b"READY=1"
        assert stat.S_IMODE(debug.stat().st_mode) == 0o600
        (bench.folder / "stick").touch()

        async def stuck() -> bool:
            return "blocked_in_this_function" in await asked_for_debug(debug)

        await until(stuck, what="the loop is blocked and logs where")
        output = await asked_for_debug(debug)
        program.send(signal.SIGUSR1)
        await until(
            lambda: any("blocked_in_this_function" in line.get("report", "") for line in program.lines),
            what="the signal is answered in the log",
        )
        (bench.folder / "unstick").touch()
        await bench.ready(program)
        assert await program.stop() == 0
        assert not debug.exists()
        for section in ("== sessions", "== requests", "== heartbeats", "== controller queues", "== thread MainThread"):
            assert section in output
        assert "PRIVATE KEY" not in output
        check_refusal(BlockingIOError, systemd.recv, 100)


@repeated(test=1, soak=50)
async def test_a_stop_ends_well_whenever_it_comes(bench: Bench, trial: int) -> None:
    hub = bench.hub_program()
    await hub.start()
    if trial % 2:
        await bench.ready(hub)
    else:
        await until(lambda: "hub is set up" in hub.output, what="the hub has begun")
    assert (await hub.stop(), hub.lines[-1]["event"]) == (0, "hub stopped")


async def test_a_start_that_hangs_is_ended_and_says_where(bench: Bench) -> None:
    port = free_port()
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", port))
        silent.listen()
        environment = {"HUB_DATABASE_URL": f"postgresql://muster:canary@127.0.0.1:{port}/hub"}
        program = await bench.hub_program("--start-timeout=5s", name="waits", environment=environment).start()
        assert await program.ended() == 1
    assert "opening and migrating the database did not finish within 5 s" in program.output
    assert "canary" not in program.output
    program = await hooked(bench, "hangs", HUB_START_TIMEOUT="2s").start()
    assert await program.ended() == 1
    assert program.lines[-1]["event"].startswith("the start hangs")


@pytest.mark.postgres
async def test_a_database_that_is_lost_makes_the_hub_unready_and_never_dead(bench: Bench, postgres_url: str) -> None:
    async with postgres_path(postgres_url) as (way, url):
        hub = await bench.hub(environment={"HUB_DATABASE_URL": url})
        async with operator(bench) as admin:
            assert (await admin.ask("GET", "/livez/database")).code == 404
        async with operator(bench, anonymous=True) as client, admin_channel(bench) as to_hub:
            stub: Any = HealthStub(to_hub)  # type: ignore[no-untyped-call]

            async def shows(*, ready: bool) -> bool:
                health = (await stub.Check(HealthCheckRequest())).status
                well = (await client.ask("GET", "/readyz")).code == 200, health == HealthCheckResponse.SERVING
                return well == (ready, ready)

            assert await shows(ready=True)
            way.silence()
            way.cut()
            await until(lambda: shows(ready=False), what="both doors show that the hub is not ready")
            assert (await client.ask("GET", "/livez")).code == 200
            assert "[-]database failed: reason withheld" in (await client.ask("GET", "/readyz")).text
            way.cut()
            way.resume()
            await until(lambda: shows(ready=True), what="the hub is ready again")
        assert hub.running
        assert await hub.stop() == 0


@pytest.mark.kubectl
async def test_a_kubectl_watch_ends_in_order_with_the_hub(bench: Bench) -> None:
    hub = await bench.hub()
    watching = bench.folder / "watch.log"
    with watching.open("wb") as output:
        kubectl = await asyncio.create_subprocess_exec(
            "kubectl",
            *("--kubeconfig", str(bench.admin), "get", "managedclusters", "-w", "-o", "name"),
            stdout=output,
            stderr=output,
            env={**os.environ, "HOME": str(bench.folder)},
        )

        async def seen(name: str) -> bool:
            return name in watching.read_text()

        async with operator(bench) as client:
            assert (await client.ask("POST", CLUSTERS, new_cluster("edge1"))).code == 201
            await until(lambda: seen("edge1"), what="kubectl has listed")
            assert (await client.ask("POST", CLUSTERS, new_cluster("edge2"))).code == 201
            await until(lambda: seen("edge2"), what="kubectl watches")
            assert (await client.ask("POST", CLUSTERS, new_cluster("edge3"))).code == 201
            assert await hub.stop() == 0
        assert await kubectl.wait() == 0
    printed = watching.read_text()
    assert "edge3" in printed, "lines before the end were printed"
    assert "rror" not in printed
