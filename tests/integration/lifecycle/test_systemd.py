"""systemd is told once that the service is up, and no child can tell it in our name."""

import asyncio
import os
import secrets
import socket
import sys
from pathlib import Path

import pytest
import structlog.testing

from machinery.lifecycle.systemd import SOCKET, notify_ready


@pytest.mark.parametrize("abstract", [False, True])
def test_it_is_told_once_and_the_socket_leaves_the_environment(tmp_path: Path, *, abstract: bool) -> None:
    name = f"@muster-{secrets.token_hex(8)}" if abstract else str(tmp_path / "notify")
    environment = {SOCKET: name}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(f"\0{name[1:]}" if abstract else name)
        systemd.settimeout(5)
        notify_ready(environment)
        assert systemd.recv(100) == b"READY=1"
        assert environment == {}
        notify_ready(environment)
        systemd.settimeout(0)
        with pytest.raises(BlockingIOError):
            systemd.recv(100)


def test_a_socket_that_is_not_there_is_only_logged(tmp_path: Path) -> None:
    environment = {SOCKET: str(tmp_path / "nowhere")}
    with structlog.testing.capture_logs() as logs:
        notify_ready(environment)
    assert len(logs) == 1
    assert environment == {}


async def test_a_child_does_not_inherit_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SOCKET, str(tmp_path / "nowhere"))
    notify_ready()
    assert SOCKET not in os.environ
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", f"import os; print({SOCKET!r} in os.environ)", stdout=asyncio.subprocess.PIPE
    )
    out, _ = await child.communicate()
    assert out.strip() == b"False"
