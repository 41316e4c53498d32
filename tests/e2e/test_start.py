"""A hub that cannot start says why in one sentence; one that can withstands made-up requests; `hub doctor` finds faults."""

import asyncio
import shutil
import signal
import socket
import sqlite3
import ssl
import stat
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from bench import wirefuzz
from bench.fuzz import fuzzed
from bench.stage import staged
from hub.api.certificates import Lifetimes
from hub.commands.doctor import DoctorFinding, DoctorState
from hub.commands.doctor.command import examined
from hub.extensions.settings import load
from hub.issuer.local import LocalIssuer, ServingNames
from hub.settings import HubSettings
from machinery.client.rest import KubeClient
from machinery.runtime.clock import Clock, ManualClock, SystemClock
from tests.e2e.processes import Bench, Program, free_port
from tests.fakes.forwarder import CHUNK, Forwarder, Streams
from tests.programs import run, unread

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]


async def refused(program: Program, *sentence: str) -> None:
    """The program ends by itself; these words are in its last line, and no stack trace stands before it."""
    await program.start()
    assert await program.ended() == 1, program.output
    assert ("Traceback" in program.output, "PRIVATE KEY" in program.output) == (False, False)
    last = program.output.rstrip().splitlines()[-1]
    assert [words for words in sentence if words not in last] == [], last


@contextmanager
def taken(port: int) -> Iterator[None]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", port))
        listener.listen()
        yield


async def test_hub_makes_its_files_once_uses_them_again_and_stops_on_signals(bench: Bench) -> None:
    hub = await bench.hub()
    logged = hub.lines
    assert (logged[0]["event"], bool(logged[0]["version"])) == ("hub starting", True)
    assert any(line.get("admin_kubeconfig") == str(bench.admin) for line in logged)
    assert stat.S_IMODE(bench.data.stat().st_mode) == 0o700
    files = {path.name: stat.S_IMODE(path.stat().st_mode) for path in bench.data.iterdir()}
    kept = ("ca.crt", "ca.key", "serving.crt", "serving.key", "admin.kubeconfig")
    assert {"hub.db", "hub.lock", *kept} <= set(files)
    assert set(files.values()) == {0o600}
    async with await KubeClient.from_file(bench.admin) as client:
        ready = (await client.raw("GET", "/readyz?verbose")).body.decode()
        live = (await client.raw("GET", "/livez?verbose")).body.decode()
    for name in ("ping", "shutdown", "database", "poststarthook/controllers"):
        assert f"[+]{name} ok" in ready
    assert ("database" in live, "shutdown" in live) == (False, False)
    before = {name: (bench.data / name).read_bytes() for name in kept}
    assert (await hub.stop(signal.SIGTERM), hub.lines[-1]["event"]) == (0, "hub stopped")

    await hub.start()
    await bench.ready(hub)
    assert {name: (bench.data / name).read_bytes() for name in kept} == before
    assert (await hub.stop(signal.SIGINT), hub.lines[-1]["event"]) == (0, "hub stopped")
    assert "Traceback" not in hub.output

    flags = (f"--https-advertised=localhost:{bench.https_port}", "--serving-names=hub.example.org", "--shutdown-delay=1h")
    renamed = await bench.hub(*flags, name="hub-2")
    after = {name: (bench.data / name).read_bytes() for name in kept}
    assert after["ca.crt"] == before["ca.crt"]
    assert after["serving.crt"] != before["serving.crt"]
    assert f"https://localhost:{bench.https_port}".encode() in after["admin.kubeconfig"]
    renamed.send(signal.SIGTERM)
    await renamed.says("ShutdownInitiated")
    assert await renamed.stop(signal.SIGTERM) == 1, "a second signal ends a stop that takes its time"


async def test_programs_on_a_terminal_show_where_things_are_and_what_to_type_next(bench: Bench) -> None:
    hub = await bench.hub_program(terminal=True).start()
    await hub.says("hubctl create bootstrap-kubeconfig --cluster cluster1 --allow-loopback -o cluster1.bootstrap")
    doors = (f"127.0.0.1:{bench.grpc_port} (gRPC)", f"https://127.0.0.1:{bench.https_port} (Kubernetes API)")
    spoke = await bench.prepared("c1")
    spoke.terminal = True
    await spoke.start()
    await spoke.says("hubctl certificate approve c1")
    await bench.hubctl("certificate", "approve", "c1")
    await bench.hubctl("accept", "c1")
    await spoke.says("state    connected")
    text = (
        (hub, (*doors, f"export HUBCTL_KUBECONFIG={bench.admin}\n")),
        (spoke, ("waiting for acceptance", doors[0].split()[0])),
    )
    assert [words for program, texts in text for words in texts if words not in program.output] == []
    assert (hub.lines, spoke.lines) == ([], [])


async def test_hub_that_finds_another_hub_or_an_incomplete_one_is_refused(bench: Bench) -> None:
    first = await bench.hub()
    (bench.folder / "elsewhere.db").symlink_to(bench.data / "hub.db")
    other, foreign = f"--data-dir={bench.folder / 'other'}", bench.folder / "foreign"
    database = {"HUB_DATABASE_URL": f"sqlite:///{bench.data / 'hub.db'}"}
    linked = {"HUB_DATABASE_URL": f"sqlite:///{bench.folder / 'elsewhere.db'}"}
    owner = f"in use by another hub (process {first.pid})"
    third, advice = f"--data-dir={bench.folder / 'third'}", "give all replicas one PostgreSQL database"
    by_link = bench.program("database", "hub", "serve", third, environment=linked)
    await asyncio.gather(
        refused(bench.hub_program(other, name="ports"), "in use"),
        refused(bench.program("data", "hub", "serve", f"--data-dir={bench.data}"), owner),
        refused(by_link, f"{owner}, and only one hub can use an SQLite database", advice),
    )
    assert first.running
    await bench.ready(first)
    assert await first.stop() == 0

    await refused(
        bench.hub_program(f"--data-dir={foreign}", name="another-ca", environment=database),
        "whose CA is not in the data directory",
    )
    assert not (foreign / "ca.crt").exists(), "agents of that hub would be locked out"
    with closing(sqlite3.connect(bench.data / "hub.db", isolation_level=None)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        await refused(bench.hub_program(name="locked"), "the database is locked by another process")
    (bench.data / "ca.key").unlink()
    await refused(bench.hub_program(name="half"), "ca.key is missing: restore it from a backup")
    assert (bench.data / "ca.crt").exists()


async def test_first_start_that_cannot_succeed_names_the_reason(bench: Bench, tmp_path: Path) -> None:
    for door, port in (("grpc", bench.grpc_port), ("https", bench.https_port)):
        with taken(port):
            program = bench.hub_program(f"--data-dir={tmp_path / door}", name=door)
            await refused(program, f"{door}_listen", str(port), "in use")
        assert program.output.count('"event": "hub closed"') == 1, "what was opened is closed, once"

    file, damaged, closed = tmp_path / "file", tmp_path / "damaged", tmp_path / "closed"
    file.write_text("")
    damaged.mkdir()
    (damaged / "hub.db").write_bytes(b"this is no database at all" * 100)
    closed.mkdir(mode=0o500)
    table = {
        file: f"the data directory {file} is a file",
        closed: "cannot be written (Permission denied)",
        damaged: "not a SQLite database",
        Path("/proc/muster"): "the data directory /proc/muster cannot be made",
    }
    await asyncio.gather(
        *(
            refused(bench.hub_program(f"--data-dir={folder}", name=folder.name, mode_bound=folder == closed), sentence)
            for folder, sentence in table.items()
        )
    )

    settings = tmp_path / "hub.yaml"
    settings.write_text("agent_lifetime: soon\nno_such: 1\n")
    wrong = await bench.hub_program("--log-level=loud", f"--config={settings}", name="wrong").start()
    assert await wrong.ended() == 2
    assert "the settings have 3 problems" in wrong.output
    assert not bench.data.exists()
    policy = tmp_path / "policy.yaml"
    policy.write_text("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- level: All\n- level: Metadata\n  color: red\n")
    audited = await bench.hub_program(f"--audit-policy-file={policy}", name="audited").start()
    assert await audited.ended() == 1
    assert "has 2 problems" in audited.output
    assert "rules[0].level: must be 'None', 'Metadata', 'Request' or 'RequestResponse'" in audited.output


async def test_full_disk_at_the_first_start_is_named(bench: Bench) -> None:
    for limit in (0, 512, 20_000, 60_000):
        data = f"--data-dir={bench.folder / str(limit)}"
        program = await bench.hub_program(data, name=f"hub-{limit}", file_limit=limit).start()
        answer = await program.piped()
        assert await program.ended() == 1
        assert "Traceback" not in answer
        sentence = answer.rstrip().splitlines()[-1]
        assert any(words in sentence for words in ("cannot be written", "disk", "full", "cannot be made")), (limit, sentence)


BOTH = ("h2", "http/1.1")


def settings_of(bench: Bench, **more: Any) -> HubSettings:
    doors = {"grpc_listen": f"127.0.0.1:{bench.grpc_port}", "https_listen": f"127.0.0.1:{bench.https_port}"}
    return load({"data_dir": bench.data, **doors, **more}, None, {})


async def ill(settings: HubSettings, clock: Clock | None = None) -> dict[str, DoctorFinding]:
    """What is broken, by name."""
    found = [finding async for finding in examined(settings, clock or SystemClock())]
    assert all(finding.advice for finding in found if finding.state is not DoctorState.WELL)
    return {finding.name: finding for finding in found if finding.state is DoctorState.BROKEN}


@asynccontextmanager
async def behind_proxy(
    bench: Bench, port: int, folder: Path | None = None, *, alpn: Sequence[str] = BOTH
) -> AsyncIterator[int]:
    """The port of a proxy that ends TLS before a door of the hub, by default with the hub's own certificate."""
    shown = folder or bench.data
    async with TlsTerminator(shown / "serving.crt", shown / "serving.key", port, alpn).serving() as proxy:
        yield proxy.port


async def test_the_doctor_finds_what_stands_between_a_hub_and_those_who_come(bench: Bench, tmp_path: Path) -> None:
    hub = await bench.hub()
    doors = (f"--grpc-listen=127.0.0.1:{bench.grpc_port}", f"--https-listen=127.0.0.1:{bench.https_port}")
    ended = await run("hub", "doctor", f"--data-dir={bench.data}", *doors)
    assert (ended.returncode, "broken" in ended.stdout) == (0, False), ended.stdout
    with unread() as output:
        assert (await run("hub", "doctor", f"--data-dir={bench.data}", *doors, stdout=output)).returncode == 0
    assert "cannot be reached from another machine" in ended.stdout, "a loopback address that is advertised is a warning"
    for name in ("disk", "schema", "clock", "replicas", "leader", "operators", "readiness"):
        assert f"ok       {name}" in ended.stdout, name

    async with behind_proxy(bench, bench.grpc_port) as port:  # with the hub's own key: only what it asks for gives it away
        found = await ill(settings_of(bench, grpc_advertised=f"127.0.0.1:{port}"))
        assert list(found) == ["gRPC door"]
        assert "requests no client certificate: TLS ends before the hub" in found["gRPC door"].message
        assert f"the hub itself answers at 127.0.0.1:{bench.grpc_port}" in found["gRPC door"].message
    async with behind_proxy(bench, bench.grpc_port, alpn=("http/1.1",)) as port:
        assert (
            "does not support HTTP/2"
            in (await ill(settings_of(bench, grpc_advertised=f"127.0.0.1:{port}")))["gRPC door"].message
        )
    strange = LocalIssuer.open(tmp_path, Lifetimes(), SystemClock().now())
    strange.serving(tmp_path, ServingNames(("proxy.example.org",), ()), Lifetimes(), SystemClock().now())
    async with behind_proxy(bench, bench.https_port, tmp_path) as port:
        for door in ("grpc", "https"):
            found = await ill(settings_of(bench, **{f"{door}_advertised": f"127.0.0.1:{port}"}))
            [finding] = found.values()
            assert "a certificate that is not the hub's (it presents one for proxy.example.org" in finding.message
            assert "ssl-passthrough" in finding.advice
    await behind_a_proxy_with_the_hubs_certificate(bench)

    found = await ill(settings_of(bench, grpc_advertised="localhost:1", https_advertised="127.0.0.2"))
    assert "no server answers at localhost:1" in found["gRPC door"].message
    assert "check firewall, load balancer and Service" in found["gRPC door"].advice
    found = await ill(settings_of(bench, grpc_advertised="nowhere.invalid:8443"))
    assert "cannot be resolved" in found["gRPC door"].message
    found = await ill(settings_of(bench), ManualClock(SystemClock().now() + timedelta(minutes=1)))
    assert "ahead of the database's" in found["clock"].message or "behind this machine's" in found["clock"].message

    assert await hub.stop() == 0
    found = await ill(settings_of(bench))
    assert {"replicas", "gRPC door", "HTTPS door", "operators"} <= found.keys()
    assert "check that `hub serve` runs" in found["gRPC door"].advice
    await with_other_files(bench)


async def behind_a_proxy_with_the_hubs_certificate(bench: Bench) -> None:
    """At the HTTPS door nothing shows on the way: the administrator is anonymous, and the message says so."""
    admin = bench.data / "admin.kubeconfig"
    kept = admin.read_text()
    async with behind_proxy(bench, bench.https_port) as port:
        document = yaml.safe_load(kept)
        document["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{port}"
        admin.write_text(yaml.safe_dump(document))
        try:
            found = await ill(settings_of(bench, https_advertised=f"127.0.0.1:{port}"))
        finally:
            admin.write_text(kept)
    assert "is not accepted" in found["operators"].message
    assert "TLS must end at the hub" in found["operators"].advice


async def with_other_files(bench: Bench) -> None:
    """Keys that are another hub's, that are gone, that others can read; a database that is not there."""
    (bench.data / "ca.key").chmod(0o644)
    bench.data.chmod(0o755)
    assert "other users can read ca.key" in (await ill(settings_of(bench)))["data directory"].message
    other = bench.folder / "other"
    other.mkdir()
    LocalIssuer.open(other, Lifetimes(), SystemClock().now())
    shutil.copy(bench.data / "secrets.key", other)
    assert "is not that of the hub in the database" in (await ill(settings_of(bench, keys_dir=other)))["identity"].message
    (bench.data / "ca.key").unlink()
    assert "the CA (ca*.crt, ca*.key) is not in" in (await ill(settings_of(bench)))["keys"].message
    assert (await ill(settings_of(bench, disk_reserve="8Ei")))["disk"].message.endswith("history is removed early")
    assert "database" in await ill(settings_of(bench, database_url=f"postgresql://nobody@127.0.0.1:{free_port()}/none"))
    assert "no hub was ever started" in (await ill(settings_of(bench, data_dir=bench.folder / "new")))["data directory"].message


class TlsTerminator(Forwarder):
    """`chain`, `key`: what it shows; `alpn`: what it speaks; `backend`: the hub's port on the loopback address."""

    def __init__(self, chain: Path, key: Path, backend: int, alpn: Sequence[str]) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(chain, key)
        context.set_alpn_protocols(list(alpn))
        super().__init__(tls=context)
        self._onward = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._onward.check_hostname, self._onward.verify_mode = False, ssl.CERT_NONE
        self._backend = backend

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Streams | None:
        if writer.get_extra_info("ssl_object").selected_alpn_protocol() != "h2":
            return await asyncio.open_connection("127.0.0.1", self._backend, ssl=self._onward)
        with suppress(OSError):
            if (await reader.read(CHUNK)).startswith(b"PRI * HTTP/2.0"):  # answered by settings of its own, and by nothing else
                writer.write(bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)))
                await reader.read(CHUNK)
        return None


OPERATIONS, FEWEST = 10, 2
SEED = 20_261_121


async def test_no_request_is_answered_by_500_or_by_what_is_not_documented(bench: Bench) -> None:
    await bench.hub()
    findings = await asyncio.to_thread(fuzzed, bench.admin, examples=2, number=SEED, most=OPERATIONS)
    assert findings.failures == {}
    assert sum(count for status, count in findings.outcomes.items() if status < "300") > FEWEST, findings.outcomes
    assert sum(count for status, count in findings.outcomes.items() if status >= "400") > FEWEST, findings.outcomes
    assert '"level": "error"' not in bench.logs


async def test_no_mutated_body_token_or_message_is_an_internal_error_or_answered_in_the_terms_of_python() -> None:
    async with staged() as stage:
        await stage.start_hub("--auto-approve=fuzz-*")
        parts = await wirefuzz.fuzzed(stage, Random(SEED), cases=200, seconds=20)
    assert {name: sent for part in parts for name, sent in part.failures.items()} == {}
    assert all(len(part.outcomes) > FEWEST for part in parts), parts
