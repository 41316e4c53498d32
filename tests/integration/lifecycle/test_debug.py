"""What a process reports about itself, and its metrics listener."""

import asyncio
import os
import secrets
import signal
import socket
import stat
import sys
import threading
import time
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest
import structlog.testing
from prometheus_client.parser import text_string_to_metric_families

from hub.extensions.settings import load
from hub.metrics.replica import open_metrics
from machinery.lifecycle.debug import Inspection, debug_signal, debug_socket
from machinery.lifecycle.startup import SOCKET, StartError, notify_ready
from machinery.observability.metrics import gauge
from tests.checks import check_refusal, check_refusal_of
from tests.e2e.processes import free_port


def asked(path: Path) -> str:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(5)
        client.connect(str(path))
        parts = []
        while part := client.recv(65536):
            parts.append(part)
    return b"".join(parts).decode()


def inspection() -> Inspection:
    found = Inspection(asyncio.get_running_loop())
    found.add("queues", lambda: {"acceptance": 3})
    return found


async def waits_for_something(_secret: str) -> None:
    await asyncio.Event().wait()


async def test_report_shows_threads_tasks_and_sections_but_no_values(tmp_path: Path) -> None:
    task = asyncio.create_task(waits_for_something("the-password"), name="the waiting one")
    await asyncio.sleep(0)
    with debug_socket(tmp_path / "debug", inspection()):
        output = await asyncio.to_thread(asked, tmp_path / "debug")
    task.cancel()
    assert "== queues\nacceptance: 3" in output
    assert "== thread MainThread" in output
    stack = output.partition("-- task the waiting one")[2].partition("--")[0]
    assert "waits_for_something" in stack
    assert "Event.wait" in stack, "the innermost frame too"
    assert "the-password" not in output

    subject = inspection()

    def broken() -> dict[str, str]:
        raise RuntimeError("the-password")

    subject.add("broken", broken)
    check_refusal(ValueError, subject.add, "broken", broken, match="there already")
    with debug_socket(tmp_path / "debug", subject):
        output = await asyncio.to_thread(asked, tmp_path / "debug")
    assert "== broken\ncannot be read: RuntimeError" in output
    assert "the-password" not in output
    assert "acceptance: 3" in output


def stuck_in_this_function(stuck: threading.Event, until: threading.Thread) -> None:
    stuck.set()
    until.join(10)


async def test_socket_is_private_removed_and_never_taken_from_others(tmp_path: Path) -> None:
    answers: list[str] = []
    stuck = threading.Event()

    def ask_meanwhile() -> None:
        stuck.wait(5)
        answers.append(asked(tmp_path / "debug"))

    with debug_socket(tmp_path / "debug", inspection()):
        asking = threading.Thread(target=ask_meanwhile)
        asking.start()
        stuck_in_this_function(stuck, asking)
    assert "stuck_in_this_function" in answers[0]

    path = tmp_path / "debug"
    with debug_socket(path, inspection()):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert asked(path)
        assert asked(path), "more than once"
    assert not path.exists()

    left = tmp_path / "debug"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(str(left))
    with (
        debug_socket(left, inspection()),
        pytest.raises(StartError, match="another process listens there"),
        debug_socket(left, inspection()),
    ):
        pass
    left.write_text("precious")
    with pytest.raises(StartError, match="there is a file of this name"), debug_socket(left, inspection()):
        pass
    assert left.read_text() == "precious"
    with pytest.raises(StartError, match="choose a short path"), debug_socket(tmp_path / ("x" * 200), inspection()):
        pass


async def test_a_reader_that_does_not_read_holds_up_nobody_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("machinery.lifecycle.debug.READ_TIMEOUT", 0.2)
    subject = inspection()
    subject.add("large", lambda: {"text": "x" * 5_000_000})
    with debug_socket(tmp_path / "debug", subject), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as idle:
        idle.connect(str(tmp_path / "debug"))
        assert "acceptance" in await asyncio.to_thread(asked, tmp_path / "debug")


async def test_a_signal_writes_the_report_into_the_log_while_the_loop_stands_still() -> None:
    before = signal.getsignal(signal.SIGUSR1)
    with structlog.testing.capture_logs() as logs, debug_signal(inspection()):
        os.kill(os.getpid(), signal.SIGUSR1)
        deadline = time.monotonic() + 5
        while not logs and time.monotonic() < deadline:
            time.sleep(0.01)  # noqa: ASYNC251 - the loop must stand still
    assert [line["event"] for line in logs] == ["debug report requested"]
    assert "acceptance: 3" in logs[0]["report"]
    assert signal.getsignal(signal.SIGUSR1) is before


def test_it_is_reported_once_and_the_socket_leaves_the_environment(tmp_path: Path) -> None:
    for name in (str(tmp_path / "notify"), f"@muster-{secrets.token_hex(8)}"):
        environment = {SOCKET: name}
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
            systemd.bind(name.replace("@", "\0"))
            systemd.settimeout(5)
            notify_ready(environment)
            assert (systemd.recv(100), environment) == (b"READY=1", {})
            notify_ready(environment)
            systemd.settimeout(0)
            check_refusal(BlockingIOError, systemd.recv, 100)


async def test_notify_socket_that_is_gone_is_logged_and_not_inherited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {SOCKET: str(tmp_path / "nowhere")}
    with structlog.testing.capture_logs() as logs:
        notify_ready(environment)
    assert (len(logs), environment) == (1, {})

    monkeypatch.setenv(SOCKET, str(tmp_path / "nowhere"))
    notify_ready()
    assert SOCKET not in os.environ
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", f"import os; print({SOCKET!r} in os.environ)", stdout=asyncio.subprocess.PIPE
    )
    out, _ = await child.communicate()
    assert out.strip() == b"False"


async def scraped(url: str, path: str = "/metrics") -> tuple[int, str, str]:
    async with aiohttp.ClientSession() as session, session.get(url + path) as response:
        return response.status, response.headers["Content-Type"], await response.text()


async def test_metrics_listener_serves_prometheus_text_and_nothing_else() -> None:
    port = free_port()
    async with AsyncExitStack() as stack:
        registry = await open_metrics(load({"metrics_listen": f"127.0.0.1:{port}"}), stack)
        registry.bind(gauge("hub_answer", "An answer."), lambda: 42)
        url = f"http://127.0.0.1:{port}"
        status, kind, text = await scraped(url)
        assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
        read = {family.name: family.samples[0].value for family in text_string_to_metric_families(text)}
        assert read["muster_hub_answer"] == 42
        assert read["process_resident_memory_bytes"] > 10_000_000
        assert read["process_cpu_seconds"] > 0
        assert (await scraped(url, "/api"))[0] == 404
    await check_refusal_of(aiohttp.ClientConnectorError, scraped(url))

    async with AsyncExitStack() as stack:
        registry = await open_metrics(load({}), stack)
        assert "muster_hub_build_info" in registry.text()

    port = free_port()
    async with AsyncExitStack() as stack:
        settings = load({"metrics_listen": f"127.0.0.1:{port}"})
        await open_metrics(settings, stack)
        await check_refusal_of(StartError, open_metrics(settings, stack), match="--metrics-listen")
