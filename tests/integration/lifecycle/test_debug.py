"""What a process does is told to its owner, also while its event loop stands still."""

import asyncio
import os
import signal
import socket
import stat
import threading
import time
from pathlib import Path

import pytest
import structlog.testing

from machinery.lifecycle.debug import DebugSignal, DebugSocket, Inspection
from machinery.lifecycle.server import StartError


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


async def test_the_report_has_every_thread_every_task_down_to_where_it_waits_and_no_value(tmp_path: Path) -> None:
    task = asyncio.create_task(waits_for_something("the-password"), name="the waiting one")
    await asyncio.sleep(0)
    with DebugSocket(tmp_path / "debug", inspection()):
        told = await asyncio.to_thread(asked, tmp_path / "debug")
    task.cancel()
    assert "== queues\nacceptance: 3" in told
    assert "== thread MainThread" in told
    stack = told.partition("-- task the waiting one")[2].partition("--")[0]
    assert "waits_for_something" in stack
    assert "Event.wait" in stack, "the innermost frame too"
    assert "the-password" not in told


async def test_it_answers_while_the_event_loop_stands_still(tmp_path: Path) -> None:
    answers: list[str] = []
    stuck = threading.Event()

    def ask_meanwhile() -> None:
        stuck.wait(5)
        answers.append(asked(tmp_path / "debug"))

    with DebugSocket(tmp_path / "debug", inspection()):
        asking = threading.Thread(target=ask_meanwhile)
        asking.start()
        stuck_in_this_function(stuck, asking)
    assert "stuck_in_this_function" in answers[0]


def stuck_in_this_function(stuck: threading.Event, until: threading.Thread) -> None:
    stuck.set()
    until.join(10)


async def test_a_section_that_fails_is_named_and_costs_only_itself(tmp_path: Path) -> None:
    subject = inspection()

    def broken() -> dict[str, str]:
        raise RuntimeError("the-password")

    subject.add("broken", broken)
    with pytest.raises(ValueError, match="there already"):
        subject.add("broken", broken)
    with DebugSocket(tmp_path / "debug", subject):
        told = await asyncio.to_thread(asked, tmp_path / "debug")
    assert "== broken\ncannot be told: RuntimeError" in told
    assert "the-password" not in told
    assert "acceptance: 3" in told


async def test_only_its_owner_can_open_it_and_it_is_gone_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "debug"
    with DebugSocket(path, inspection()):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert asked(path)
        assert asked(path), "more than once"
    assert not path.exists()


async def test_what_a_killed_process_left_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    left = tmp_path / "debug"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(str(left))
    with (
        DebugSocket(left, inspection()),
        pytest.raises(StartError, match="another process listens there"),
        DebugSocket(left, inspection()),
    ):
        pass
    left.write_text("precious")
    with pytest.raises(StartError, match="there is a file of this name"), DebugSocket(left, inspection()):
        pass
    assert left.read_text() == "precious"
    with pytest.raises(StartError, match="choose a short path"), DebugSocket(tmp_path / ("x" * 200), inspection()):
        pass


async def test_a_reader_that_does_not_read_holds_up_nobody_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("machinery.lifecycle.debug.PATIENCE", 0.2)
    subject = inspection()
    subject.add("large", lambda: {"text": "x" * 5_000_000})
    with DebugSocket(tmp_path / "debug", subject), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as idle:
        idle.connect(str(tmp_path / "debug"))
        assert "acceptance" in await asyncio.to_thread(asked, tmp_path / "debug")


async def test_a_signal_writes_the_report_into_the_log_while_the_loop_stands_still() -> None:
    before = signal.getsignal(signal.SIGUSR1)
    with structlog.testing.capture_logs() as logs, DebugSignal(inspection()):
        os.kill(os.getpid(), signal.SIGUSR1)
        deadline = time.monotonic() + 5
        while not logs and time.monotonic() < deadline:
            time.sleep(0.01)  # noqa: ASYNC251 - the loop must stand still
    assert [line["event"] for line in logs] == ["asked what it does"]
    assert "acceptance: 3" in logs[0]["report"]
    assert signal.getsignal(signal.SIGUSR1) is before
