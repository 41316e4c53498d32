"""The fence around tests/unit: a unit test opens no socket except a socket pair, which every event loop has."""

import asyncio
import socket

import pytest


async def test_unit_test_cannot_open_a_socket() -> None:
    refused = pytest.raises(AssertionError, match="tests/integration")
    with socket.socket() as listener, refused:
        listener.bind(("127.0.0.1", 0))
    with socket.socket() as client, refused:
        client.connect(("127.0.0.1", 9))
    with refused:
        await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0)
    left, right = socket.socketpair()
    with left, right:
        left.sendall(b"beat")
        assert right.recv(4) == b"beat"
