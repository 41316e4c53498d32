"""A hub that cannot start says why in one sentence and ends with a code; one that can says where its things are."""

import json
import signal
import socket
import sqlite3
import stat
from pathlib import Path

import grpc
import pytest
from grpc import aio
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from machinery.kube.client import KubeClient
from machinery.kubeconfig import read_kubeconfig
from tests.e2e.processes import CLUSTERS, Bench, Program, until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]


async def refused(bench: Bench, program: Program, code: int = 1) -> str:
    """The sentence of a hub that ended by itself; it is the last line, and no stack trace stands before it."""
    await program.start()
    assert await program.ended() == code
    output = program.output
    assert "Traceback" not in output
    assert "PRIVATE KEY" not in bench.logs
    return output.rstrip().splitlines()[-1]


async def test_the_first_start_makes_everything_private_and_says_where_it_is(bench: Bench) -> None:
    hub = await bench.hub()
    lines = [json.loads(line) for line in hub.output.splitlines()]
    assert lines[0]["event"] == "hub starting"
    assert lines[0]["version"]
    assert any(line.get("admin_kubeconfig") == str(bench.admin) for line in lines)
    assert stat.S_IMODE(bench.data.stat().st_mode) == 0o700
    files = {path.name: stat.S_IMODE(path.stat().st_mode) for path in bench.data.iterdir()}
    assert {"hub.db", "ca.crt", "ca.key", "serving.crt", "serving.key", "admin.kubeconfig", "hub.lock"} <= set(files)
    assert set(files.values()) == {0o600}


async def test_a_second_start_uses_everything_again(bench: Bench) -> None:
    hub = await bench.hub()
    kept = ("ca.crt", "ca.key", "serving.crt", "serving.key", "admin.kubeconfig")
    before = {name: (bench.data / name).read_bytes() for name in kept}
    assert await hub.stop() == 0
    await hub.start()
    await bench.ready(hub)
    assert {name: (bench.data / name).read_bytes() for name in kept} == before


async def test_new_names_give_a_new_serving_certificate_and_a_new_admin_kubeconfig_under_the_same_ca(bench: Bench) -> None:
    hub = await bench.hub()
    before = {name: (bench.data / name).read_bytes() for name in ("ca.crt", "serving.crt", "admin.kubeconfig")}
    await hub.stop()
    await bench.hub(f"--https-advertised=localhost:{bench.https_port}", "--serving-names=hub.example.org", name="hub-2")
    after = {name: (bench.data / name).read_bytes() for name in before}
    assert after["ca.crt"] == before["ca.crt"]
    assert after["serving.crt"] != before["serving.crt"]
    assert f"https://localhost:{bench.https_port}".encode() in after["admin.kubeconfig"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_stops_it_cleanly(bench: Bench, number: signal.Signals) -> None:
    hub = await bench.hub()
    assert await hub.stop(number) == 0
    assert '"event": "hub stopped"' in hub.output
    assert "Traceback" not in hub.output


@pytest.mark.parametrize("door", ["grpc", "https"])
async def test_a_port_in_use_is_named_with_its_setting(bench: Bench, door: str) -> None:
    port = bench.grpc_port if door == "grpc" else bench.https_port
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        program = bench.hub_program()
        sentence = await refused(bench, program)
    assert program.output.count('"event": "hub closed"') == 1, "what was opened is closed, once"
    assert f"{door}_listen" in sentence
    assert str(port) in sentence
    assert "in use" in sentence


async def test_a_second_hub_on_the_same_ports_is_refused(bench: Bench) -> None:
    first = await bench.hub()
    second = bench.hub_program(f"--data-dir={bench.folder / 'other'}", name="second")
    assert "in use" in await refused(bench, second)
    assert first.running
    await bench.ready(first)


async def test_a_second_hub_on_the_same_data_is_refused(bench: Bench) -> None:
    first = await bench.hub()
    second = bench.program("second", "hub", "serve", f"--data-dir={bench.data}")
    sentence = await refused(bench, second)
    assert f"in use by another hub (process {first.pid})" in sentence


async def test_a_second_hub_on_the_same_database_file_is_refused_whatever_its_data_directory_and_its_name_for_the_file(
    bench: Bench,
) -> None:
    first = await bench.hub()
    (bench.folder / "elsewhere.db").symlink_to(bench.data / "hub.db")
    place = {"HUB_DATABASE_URL": f"sqlite:///{bench.folder / 'elsewhere.db'}"}
    second = bench.program("second", "hub", "serve", f"--data-dir={bench.folder / 'other'}", environment=place)
    sentence = await refused(bench, second)
    assert f"in use by another hub (process {first.pid}), and SQLite is for one" in sentence
    assert "give all replicas one PostgreSQL database" in sentence


async def test_a_file_in_place_of_the_data_directory_is_named(bench: Bench) -> None:
    bench.data.write_text("")
    assert f"the data directory {bench.data} is a file" in await refused(bench, bench.hub_program())


async def test_a_data_directory_that_cannot_be_written_is_named(bench: Bench) -> None:
    bench.data.mkdir(mode=0o500)
    assert "cannot be written (Permission denied)" in await refused(bench, bench.hub_program(mode_bound=True))


async def test_a_data_directory_on_a_read_only_file_system_is_named(bench: Bench) -> None:
    program = bench.program("hub", "hub", "serve", "--data-dir=/proc/muster")
    assert "the data directory /proc/muster cannot be made" in await refused(bench, program)


async def test_half_a_ca_is_not_replaced(bench: Bench) -> None:
    hub = await bench.hub()
    await hub.stop()
    (bench.data / "ca.key").unlink()
    sentence = await refused(bench, bench.hub_program(name="again"))
    assert "ca.key is missing: restore it from a backup" in sentence
    assert (bench.data / "ca.crt").exists()


async def test_a_locked_database_is_named(bench: Bench) -> None:
    hub = await bench.hub()
    await hub.stop()
    other = sqlite3.connect(bench.data / "hub.db", isolation_level=None)
    try:
        other.execute("BEGIN EXCLUSIVE")
        sentence = await refused(bench, bench.hub_program(name="again"))
    finally:
        other.close()
    assert "the database is locked by another process" in sentence


async def test_a_damaged_database_is_named(bench: Bench) -> None:
    bench.data.mkdir()
    (bench.data / "hub.db").write_bytes(b"this is no database at all" * 100)
    assert "not a SQLite database" in await refused(bench, bench.hub_program())


@pytest.mark.parametrize("limit", [0, 512, 20_000, 60_000])
async def test_a_full_disk_at_the_first_start_is_named(bench: Bench, limit: int) -> None:
    program = await bench.hub_program(file_limit=limit).start()
    said = await program.piped()
    assert await program.ended() == 1
    assert "Traceback" not in said
    sentence = said.rstrip().splitlines()[-1]
    assert any(words in sentence for words in ("cannot be written", "disk", "full", "cannot be made")), sentence


async def test_wrong_settings_are_told_at_once_before_anything_is_made(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "hub.yaml"
    file.write_text("agent_lifetime: soon\nno_such: 1\n")
    program = bench.hub_program("--log-level=loud", f"--config={file}")
    await program.start()
    assert await program.ended() == 2
    assert "the settings have 3 problems" in program.output
    assert not bench.data.exists()


async def test_a_second_signal_ends_a_stop_that_takes_its_time(bench: Bench) -> None:
    hub = await bench.hub("--shutdown-delay=1h")
    hub.send(signal.SIGTERM)

    async def stopping() -> bool:
        return "ShutdownInitiated" in hub.output

    await until(stopping, what="the stop has begun")
    assert await hub.stop(signal.SIGTERM) == 1


async def test_health_names_its_parts_and_withholds_nothing_that_is_well(bench: Bench) -> None:
    await bench.hub()
    async with await KubeClient.from_file(bench.admin) as client:
        ready = await client.raw("GET", "/readyz?verbose")
        live = await client.raw("GET", "/livez?verbose")
    for name in ("ping", "shutdown", "database", "poststarthook/controllers"):
        assert f"[+]{name} ok" in ready.body.decode()
    assert "database" not in live.body.decode()
    assert "shutdown" not in live.body.decode()


async def grpc_health(bench: Bench) -> str:
    admin = read_kubeconfig(bench.admin)
    shown = admin.require_credential()
    credentials = grpc.ssl_channel_credentials(admin.cluster.certificate_authority, shown.key, shown.chain)
    async with aio.secure_channel(admin.require_endpoint().grpc_server, credentials) as channel:
        answer = await HealthStub(channel).Check(HealthCheckRequest(), timeout=10)  # type: ignore[no-untyped-call]
    return str(HealthCheckResponse.ServingStatus.Name(answer.status))


async def test_while_it_stops_readiness_falls_first_and_everything_is_still_served(bench: Bench) -> None:
    hub = await bench.hub("--shutdown-delay=4s")
    async with await KubeClient.from_file(bench.admin) as client:
        assert await grpc_health(bench) == "SERVING"
        hub.send(signal.SIGTERM)

        async def fallen() -> bool:
            return (await client.raw("GET", "/readyz")).status == 500

        await until(fallen, what="readiness has fallen", within=2)
        assert (await client.raw("GET", "/livez")).status == 200
        assert (await client.get(CLUSTERS))["items"] == []
        assert await grpc_health(bench) == "NOT_SERVING"
    assert await hub.ended() == 0
    lines = [json.loads(line) for line in hub.output.splitlines()]
    told = [line["signal"] for line in lines if line["event"] == "lifecycle signal"]
    assert told == [
        "MuxAndDiscoveryComplete",
        "HasBeenReady",
        "ShutdownInitiated",
        "PreShutdownHooksStopped",
        "AfterShutdownDelayDuration",
        "NotAcceptingNewRequest",
        "InFlightRequestsDrained",
        "HTTPServerStoppedListening",
    ]


async def test_a_database_of_another_hub_is_refused_and_its_agents_are_not_locked_out(bench: Bench) -> None:
    hub = await bench.hub()
    await hub.stop()
    database = {"HUB_DATABASE_URL": f"sqlite:///{bench.data / 'hub.db'}"}
    other = bench.hub_program(f"--data-dir={bench.folder / 'other'}", name="other", environment=database)
    assert "whose CA is not in the data directory" in await refused(bench, other)
    assert not (bench.folder / "other" / "ca.crt").exists()
