"""The life of a hub, from outside: real processes, signals and sockets, and nothing that was begun is lost."""

import asyncio
import os
import signal
import socket
import sqlite3
import stat
from collections import Counter
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from hub.rpc.status import PUSHBACK
from machinery.identity import cluster_name
from machinery.wire.registration.v1 import registration_pb2 as registration
from machinery.wire.registration.v1.registration_pb2_grpc import RegistrationStub
from tests.e2e.joining import Entrance, entrance
from tests.e2e.processes import CLUSTERS, Bench, Program, free_port, until
from tests.e2e.stopping import Answer, admin_channel, asked_for_debug, cluster, held, lines, operator, prober, signaled, signals
from tests.fakes.postgres import postgres_server
from tests.trials import repeated, soaked, trials

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

STATUS = grpc.StatusCode
LAST = {
    "true": ["NotAcceptingNewRequest", "InFlightRequestsDrained", "HTTPServerStoppedListening"],
    "false": ["NotAcceptingNewRequest", "HTTPServerStoppedListening", "InFlightRequestsDrained"],
}
CALLS = trials(test=150, soak=1_000)
UNREADY_WITHIN = 3.0
"""Seconds after which a hub that has lost its database is promised to say so."""
SPARE = 5
"""Deadlines in tests are so many times what is promised."""


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


def channel_of(way: Entrance) -> aio.Channel:
    credentials = grpc.ssl_channel_credentials(way.address.ca, way.identity.key, way.identity.certificate)
    return aio.secure_channel(way.address.target, credentials, [("grpc.use_local_subchannel_pool", 1)])


def took(program: Program, first: str, second: str) -> timedelta:
    """By the times of its own log lines, which say nothing of how busy the machine of the test is."""
    moments = {line.get("signal", line["event"]): datetime.fromisoformat(line["time"]) for line in lines(program)}
    return moments[second] - moments[first]


def audited(bench: Bench) -> set[str]:
    """Whose names the records of requests have."""
    with closing(sqlite3.connect(f"file:{bench.data / 'hub.db'}?mode=ro", uri=True)) as connection:
        return {name for (name,) in connection.execute("SELECT name FROM audit").fetchall()}


def registered(bench: Bench) -> Counter[str]:
    """How many times each cluster's name was created, by the change log."""
    with closing(sqlite3.connect(f"file:{bench.data / 'hub.db'}?mode=ro", uri=True)) as connection:
        found = connection.execute(
            "SELECT name FROM changes WHERE kind = 'managedclusters.cluster' AND type = 'ADDED'"
        ).fetchall()
    return Counter(name for (name,) in found)


async def in_flight(debug: Path, *, calls: int = 0, requests: int = 1) -> None:
    """Returns when so much is in flight at the two doors of the hub behind the debug socket, whose database is held."""

    async def begun() -> bool:
        told = await asked_for_debug(debug)
        return f"calls in flight: {calls}\n" in told and f"requests\nin flight: {requests}\n" in told

    await until(begun, what="everything is in flight", within=4)


@soaked(CALLS)
async def test_what_is_in_flight_ends_well_and_once_while_everything_new_is_told_to_try_again(bench: Bench) -> None:
    debug = bench.folder / "debug"
    hub = await bench.hub(f"--debug-socket={debug}")
    names = [cluster_name(f"edge{number}") for number in range(CALLS)]
    way = await entrance(bench.admin, CALLS)
    async with operator(bench) as old, operator(bench, fresh=True) as fresh, channel_of(way) as channel:
        stub = RegistrationStub(channel)
        assert (await old.ask("GET", CLUSTERS)).code == 200
        async with held(bench.data / "hub.db", debug):
            calls = [
                stub.EnsureCluster(registration.EnsureClusterRequest(cluster_name=name, cluster_uid=name)) for name in names
            ]
            writing = asyncio.create_task(old.ask("POST", CLUSTERS, cluster("made-by-hand")))
            await in_flight(debug, calls=CALLS)
            hub.send(signal.SIGTERM)
            await signaled(hub, "NotAcceptingNewRequest", within=4)
            refused = [await old.ask("GET", CLUSTERS), await fresh.ask("GET", CLUSTERS)]
            probes = [await fresh.ask("GET", path) for path in ("/livez", "/readyz", "/healthz")]
            late = await outcome(stub.GetHub(registration.GetHubRequest()))
        codes = Counter([await call.code() for call in calls])
        written = await writing
    assert await hub.ended() == 0
    for answer in refused:
        assert (answer.code, answer.headers["retry-after"], answer.headers["connection"]) == (429, "5", "close")
    assert [answer.code for answer in probes] == [200, 500, 200]
    assert late[0] is STATUS.UNAVAILABLE
    assert int(late[1][PUSHBACK]) > 0
    assert codes == {STATUS.OK: CALLS}
    assert written.code == 201
    assert registered(bench) == Counter([*names, "made-by-hand"])
    assert {*names, "made-by-hand"} <= audited(bench), "what was answered while it stopped is on record"
    assert signals(hub)[-3:] == LAST["true"]


async def outcome(call: Any) -> tuple[grpc.StatusCode, dict[str, str]]:
    """How a call ended, and what came with it."""
    try:
        await call
    except aio.AioRpcError as error:
        return error.code(), {key: str(value) for key, value in error.trailing_metadata()}
    return STATUS.OK, {}


@repeated(test=1, soak=10)
async def test_a_burst_that_races_the_signal_is_answered_or_told_to_try_again_and_never_cancelled(
    bench: Bench, trial: int
) -> None:
    del trial
    hub = await bench.hub()
    async with admin_channel(bench) as channel:
        stub = RegistrationStub(channel)
        await stub.GetHub(registration.GetHubRequest())
        calls = [stub.GetHub(registration.GetHubRequest()) for _ in range(trials(test=400, soak=1_000))]
        await calls[0].code()  # the hub is at it
        hub.send(signal.SIGTERM)
        codes = Counter([await call.code() for call in calls])
    assert await hub.ended() == 0
    assert set(codes) <= {STATUS.OK, STATUS.UNAVAILABLE}
    assert codes[STATUS.OK]


async def test_without_retry_after_the_listener_closes_first_and_what_is_in_flight_ends_well(bench: Bench) -> None:
    debug = bench.folder / "debug"
    hub = await bench.hub("--shutdown-send-retry-after=false", f"--debug-socket={debug}")
    way = await entrance(bench.admin, 1)
    async with (
        operator(bench) as old,
        operator(bench, fresh=True) as fresh,
        operator(bench) as idle,
        channel_of(way) as channel,
    ):
        assert (await idle.ask("GET", CLUSTERS)).code == 200
        await RegistrationStub(channel).GetHub(registration.GetHubRequest())
        async with held(bench.data / "hub.db", debug):
            request = registration.EnsureClusterRequest(cluster_name="edge1", cluster_uid="1")
            call = RegistrationStub(channel).EnsureCluster(request)
            writing = asyncio.create_task(old.ask("POST", CLUSTERS, cluster("made-by-hand")))
            await in_flight(debug, calls=1)
            hub.send(signal.SIGTERM)
            await signaled(hub, "HTTPServerStoppedListening", within=4)
            refused = await fresh.ask("GET", CLUSTERS)
            closed = await idle.ask("GET", CLUSTERS)
        assert (await writing).code == 201
        assert await call.code() is STATUS.OK
    assert await hub.ended() == 0
    assert (refused.code, closed.code) == (0, 0)
    assert "Connect call failed" in refused.text
    assert signals(hub)[-3:] == LAST["false"]


async def test_in_the_delay_readiness_is_down_and_every_request_is_answered(bench: Bench) -> None:
    program = await hooked(bench, "calls", HUB_SHUTDOWN_DELAY="1500ms").start()
    await bench.ready(program)
    async with operator(bench) as old, operator(bench, fresh=True) as fresh, admin_channel(bench) as channel:
        stub: Any = HealthStub(channel)  # type: ignore[no-untyped-call]
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
        assert (await asyncio.wait_for(fell, 5)).status == HealthCheckResponse.NOT_SERVING
        answers = [(fallen, path, await task) for fallen, path, task in asked]
        rpc = [await outcome(RegistrationStub(channel).GetHub(registration.GetHubRequest()))]
        (bench.folder / "go").touch()  # until then the hook holds the stop up, however long all that took
        assert await program.ended() == 0
    late = [answer.code for fallen, path, answer in answers if path == "/readyz" and fallen]
    assert late
    assert set(late) == {500}
    assert {answer.code for _, path, answer in answers if path != "/readyz"} == {200}
    assert rpc[0][0] is STATUS.OK
    called = [line for line in lines(program) if line["event"] == "hook called"]
    assert len(called) == 5, "the hook used the API after the delay, and was answered every time"
    order = [line.get("signal", line["event"]) for line in lines(program)]
    assert order.index("AfterShutdownDelayDuration") < order.index("hook called") < order.index("NotAcceptingNewRequest")


async def test_a_failing_pre_shutdown_hook_costs_no_request_and_is_the_exit_codes_reason(bench: Bench) -> None:
    debug = bench.folder / "debug"
    program = await hooked(bench, "fails", HUB_DEBUG_SOCKET=str(debug)).start()
    await bench.ready(program)
    async with operator(bench) as client:
        async with held(bench.data / "hub.db", debug):
            writing = asyncio.create_task(client.ask("POST", CLUSTERS, cluster("made-by-hand")))
            await in_flight(debug)
            program.send(signal.SIGTERM)
            await signaled(program, "NotAcceptingNewRequest", within=4)
        assert (await writing).code == 201
    assert await program.ended() == 1
    assert 'pre-shutdown hook "fails" failed: the lease cannot be released' in program.output.splitlines()[-1]
    assert signals(program)[-3:] == LAST["true"]


async def test_a_post_start_hook_is_unready_until_it_is_done_and_a_failing_one_ends_the_process_within_a_second(
    bench: Bench,
) -> None:
    program = await hooked(bench, "breaks", HUB_SHUTDOWN_DELAY="1h").start()

    async def listens() -> bool:
        return "HTTPS door open" in program.output and bench.admin.exists()

    await until(listens, what="the hub listens")
    async with operator(bench) as client, admin_channel(bench) as channel:
        own = await client.ask("GET", "/readyz/poststarthook/breaks")
        whole = [await client.ask("GET", path) for path in ("/readyz", "/livez", "/healthz")]
        stub: Any = HealthStub(channel)  # type: ignore[no-untyped-call]
        health = (await stub.Check(HealthCheckRequest())).status
    (bench.folder / "go").touch()
    assert await program.ended() == 1
    assert took(program, "post-start hook failed", "hub failed") < SPARE * timedelta(seconds=1)
    assert (own.code, own.text) == (500, "internal server error: not finished\n")
    assert [answer.code for answer in whole] == [500, 500, 500]
    assert "[-]poststarthook/breaks failed: reason withheld" in whole[0].text
    assert health == HealthCheckResponse.NOT_SERVING
    assert ("critical", "breaks") in [(line["level"], line.get("hook")) for line in lines(program)]
    assert 'post-start hook "breaks" failed: the cache is broken' in program.output.splitlines()[-1]
    assert lines(program)[-2]["event"] == "hub closed"


async def test_a_hub_that_hangs_tells_what_it_does(bench: Bench) -> None:
    debug = bench.folder / "debug"
    program = await hooked(bench, "sticks", HUB_DEBUG_SOCKET=str(debug)).start()
    await bench.ready(program)
    assert stat.S_IMODE(debug.stat().st_mode) == 0o600
    (bench.folder / "stick").touch()

    async def stuck() -> bool:
        return "blocked_in_this_function" in await asked_for_debug(debug)

    await until(stuck, what="the loop stands still and tells where")
    told = await asked_for_debug(debug)
    program.send(signal.SIGUSR1)

    async def logged() -> bool:
        return any("blocked_in_this_function" in line.get("report", "") for line in lines(program))

    await until(logged, what="the signal is answered in the log")
    (bench.folder / "unstick").touch()
    await bench.ready(program)
    assert await program.stop() == 0
    assert not debug.exists()
    for section in ("== sessions", "== requests", "== heartbeats", "== controller queues", "== thread MainThread"):
        assert section in told
    assert "PRIVATE KEY" not in told


async def test_systemd_is_told_once(bench: Bench) -> None:
    address = bench.folder / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(address))
        systemd.settimeout(0)
        hub = await bench.hub(environment={"NOTIFY_SOCKET": str(address)})
        assert systemd.recv(100) == b"READY=1"
        assert await hub.stop() == 0
        with pytest.raises(BlockingIOError):
            systemd.recv(100)


@repeated(test=1, soak=50)
async def test_a_stop_ends_well_in_time_whenever_it_comes(bench: Bench, trial: int) -> None:
    hub = bench.hub_program()
    await hub.start()
    if trial % 2:
        await bench.ready(hub)
    else:

        async def begun() -> bool:
            return "hub is set up" in hub.output

        await until(begun, what="the hub has begun")
    assert await hub.stop() == 0
    assert took(hub, "ShutdownInitiated", "hub stopped") < SPARE * timedelta(seconds=2)
    assert lines(hub)[-1]["event"] == "hub stopped"


async def test_a_database_that_hangs_at_the_start_is_named_in_time(bench: Bench) -> None:
    port = free_port()
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", port))
        silent.listen()
        environment = {"HUB_DATABASE_URL": f"postgresql://muster:canary@127.0.0.1:{port}/hub"}
        program = await bench.hub_program("--start-timeout=1s", environment=environment).start()
        assert await program.ended(within=20) == 1
    assert "opening the database and bringing its schema up to date did not finish within 1 s" in program.output
    assert "canary" not in program.output


async def test_a_start_that_hangs_anywhere_is_ended_in_time(bench: Bench) -> None:
    program = await hooked(bench, "hangs", HUB_START_TIMEOUT="1s").start()
    assert await program.ended(within=20) == 1
    assert lines(program)[-1]["event"].startswith("the start hangs")


class Proxy:
    """Stands between the hub and its database, and lets nothing through while it is cut."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._writers: set[asyncio.StreamWriter] = set()
        self.cut = False

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.cut:
            writer.transport.abort()
            return
        to_read, to_write = await asyncio.open_unix_connection(str(self._target))
        self._writers |= {writer, to_write}
        await asyncio.gather(self._pump(reader, to_write), self._pump(to_read, writer))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
        except ConnectionError:
            pass
        finally:
            writer.transport.abort()

    def sever(self) -> None:
        self.cut = True
        for writer in self._writers:
            writer.transport.abort()


@pytest.mark.postgres
async def test_a_database_that_is_lost_makes_the_hub_unready_and_never_dead(bench: Bench) -> None:
    with postgres_server() as url:
        folder = Path(url.partition("host=")[2])
        proxy = Proxy(folder / ".s.PGSQL.5432")
        between = bench.folder / "db"
        between.mkdir()
        serving = await asyncio.start_unix_server(proxy.answer, str(between / ".s.PGSQL.5432"))
        through = url.replace(str(folder), str(between))
        hub = await bench.hub(environment={"HUB_DATABASE_URL": through})
        async with operator(bench) as admin:
            assert (await admin.ask("GET", "/livez/database")).code == 404
        async with prober(bench) as client, admin_channel(bench) as channel:
            stub: Any = HealthStub(channel)  # type: ignore[no-untyped-call]
            assert (await stub.Check(HealthCheckRequest())).status == HealthCheckResponse.SERVING
            proxy.sever()

            async def red() -> bool:
                return (await client.ask("GET", "/readyz")).code == 500

            await until(red, what="readiness falls", within=SPARE * UNREADY_WITHIN)

            async def fallen() -> bool:
                return bool((await stub.Check(HealthCheckRequest())).status == HealthCheckResponse.NOT_SERVING)

            await until(fallen, what="gRPC tells the same", within=SPARE * UNREADY_WITHIN)
            assert (await client.ask("GET", "/livez")).code == 200
            withheld = await client.ask("GET", "/readyz")
            assert "[-]database failed: reason withheld" in withheld.text
            proxy.cut = False

            async def green() -> bool:
                return (await client.ask("GET", "/readyz")).code == 200

            await until(green, what="readiness rises again", within=20)
        assert hub.running
        assert await hub.stop() == 0
        serving.close()


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
            assert (await client.ask("POST", CLUSTERS, cluster("edge1"))).code == 201
            await until(lambda: seen("edge1"), what="kubectl has listed")
            assert (await client.ask("POST", CLUSTERS, cluster("edge2"))).code == 201
            await until(lambda: seen("edge2"), what="kubectl watches")
            assert (await client.ask("POST", CLUSTERS, cluster("edge3"))).code == 201
            assert await hub.stop() == 0
        assert await asyncio.wait_for(kubectl.wait(), 10) == 0
    told = watching.read_text()
    assert "edge3" in told, "what was written before the end was told"
    assert "rror" not in told
