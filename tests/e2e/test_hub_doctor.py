"""`hub doctor` beside a real hub: well, behind a proxy that ends TLS, with wrong addresses or clock, and with the hub away."""

import asyncio
import shutil
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import yaml

from hub.doctor.command import examined
from hub.doctor.findings import Finding, State
from hub.domain.certificate import Lifetimes
from hub.issuer import LocalIssuer, ServingNames
from hub.settings import Settings, load
from machinery.clock import Clock, ManualClock, SystemClock
from tests.e2e.processes import Bench, free_port
from tests.fakes.tls_terminator import TlsTerminator

BOTH = ("h2", "http/1.1")


def settings_of(bench: Bench, **more: Any) -> Settings:
    doors = {"grpc_listen": f"127.0.0.1:{bench.grpc_port}", "https_listen": f"127.0.0.1:{bench.https_port}"}
    return load({"data_dir": bench.data, **doors, **more}, None, {})


async def ill(settings: Settings, clock: Clock | None = None) -> dict[str, Finding]:
    """What is broken, by name."""
    found = [finding async for finding in examined(settings, clock or SystemClock())]
    assert all(finding.advice for finding in found if finding.state is not State.WELL)
    return {finding.name: finding for finding in found if finding.state is State.BROKEN}


@asynccontextmanager
async def before(bench: Bench, port: int, folder: Path | None = None, *, alpn: Sequence[str] = BOTH) -> AsyncIterator[int]:
    """The port of a proxy that ends TLS before a door of the hub, with the hub's own certificate unless told."""
    shown = folder or bench.data
    async with TlsTerminator(shown / "serving.crt", shown / "serving.key", port, alpn).serving() as proxy:
        yield proxy.port


async def test_the_doctor_finds_what_stands_between_a_hub_and_those_who_come(bench: Bench, tmp_path: Path) -> None:
    hub = await bench.hub()
    command = ("-m", "hub", "doctor", f"--data-dir={bench.data}", f"--grpc-listen=127.0.0.1:{bench.grpc_port}")
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, f"--https-listen=127.0.0.1:{bench.https_port}", stdout=asyncio.subprocess.PIPE
    )
    out, _ = await asyncio.wait_for(process.communicate(), 60)
    assert (process.returncode, b"broken" in out) == (0, False), out.decode()
    assert b"leads nowhere from another machine" in out, "a loopback address that is advertised is a warning"
    for name in ("disk", "schema", "clock", "replicas", "leader", "operators", "readiness"):
        assert f"ok       {name}".encode() in out, name

    async with before(bench, bench.grpc_port) as port:  # with the hub's own key: only what it asks for gives it away
        found = await ill(settings_of(bench, grpc_advertised=f"127.0.0.1:{port}"))
        assert list(found) == ["gRPC door"]
        assert "asks for no client certificate: TLS ends before the hub" in found["gRPC door"].said
        assert f"the hub itself answers at 127.0.0.1:{bench.grpc_port}" in found["gRPC door"].said
    async with before(bench, bench.grpc_port, alpn=("http/1.1",)) as port:
        assert "speaks no HTTP/2" in (await ill(settings_of(bench, grpc_advertised=f"127.0.0.1:{port}")))["gRPC door"].said
    strange = LocalIssuer.open(tmp_path, Lifetimes(), SystemClock().now())
    strange.serving(tmp_path, ServingNames(("proxy.example.org",), ()), Lifetimes(), SystemClock().now())
    async with before(bench, bench.https_port, tmp_path) as port:
        for door in ("grpc", "https"):
            found = await ill(settings_of(bench, **{f"{door}_advertised": f"127.0.0.1:{port}"}))
            [finding] = found.values()
            assert "a certificate that is not the hub's (it shows one for proxy.example.org" in finding.said
            assert "ssl-passthrough" in finding.advice
    await behind_a_proxy_with_the_hubs_certificate(bench)

    found = await ill(settings_of(bench, grpc_advertised="localhost:1", https_advertised="127.0.0.2"))
    assert "nobody answers at localhost:1" in found["gRPC door"].said
    assert "what is between is at fault" in found["gRPC door"].advice
    found = await ill(settings_of(bench, grpc_advertised="nowhere.invalid:8443"))
    assert "cannot be resolved" in found["gRPC door"].said
    found = await ill(settings_of(bench), ManualClock(SystemClock().now() + timedelta(minutes=1)))
    assert "ahead of the database's" in found["clock"].said or "behind this machine's" in found["clock"].said

    assert await hub.stop() == 0
    found = await ill(settings_of(bench))
    assert {"replicas", "gRPC door", "HTTPS door", "operators"} <= found.keys()
    assert "does `hub serve` run" in found["gRPC door"].advice
    await with_other_files(bench)


async def behind_a_proxy_with_the_hubs_certificate(bench: Bench) -> None:
    """At the HTTPS door nothing shows on the way: the administrator is nobody, and that is told."""
    admin = bench.data / "admin.kubeconfig"
    kept = admin.read_text()
    async with before(bench, bench.https_port) as port:
        document = yaml.safe_load(kept)
        document["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{port}"
        admin.write_text(yaml.safe_dump(document))
        try:
            found = await ill(settings_of(bench, https_advertised=f"127.0.0.1:{port}"))
        finally:
            admin.write_text(kept)
    assert "does not arrive" in found["operators"].said
    assert "TLS must end at the hub" in found["operators"].advice


async def with_other_files(bench: Bench) -> None:
    """Keys that are another hub's, that are gone, that others can read; a database that is not there."""
    (bench.data / "ca.key").chmod(0o644)
    bench.data.chmod(0o755)
    assert "others than its user can read ca.key" in (await ill(settings_of(bench)))["data directory"].said
    other = bench.folder / "other"
    other.mkdir()
    LocalIssuer.open(other, Lifetimes(), SystemClock().now())
    shutil.copy(bench.data / "secrets.key", other)
    assert "is not the database's hub's" in (await ill(settings_of(bench, keys_dir=other)))["identity"].said
    (bench.data / "ca.key").unlink()
    assert "the CA (ca.crt, ca.key) is not in" in (await ill(settings_of(bench)))["keys"].said
    assert (await ill(settings_of(bench, disk_reserve="8Ei")))["disk"].said.endswith("history goes before its time")
    away = settings_of(bench, database_url=f"postgresql://nobody@127.0.0.1:{free_port()}/none")
    assert "database" in await ill(away)
    assert "no hub was ever started" in (await ill(settings_of(bench, data_dir=bench.folder / "none")))["data directory"].said
