"""The fence around tests/unit: what a unit test may not open."""

import asyncio
import socket

import pytest


def test_unit_test_cannot_bind_a_socket() -> None:
    with socket.socket() as listener, pytest.raises(AssertionError, match="tests/integration"):
        listener.bind(("127.0.0.1", 0))


def test_unit_test_cannot_connect_a_socket() -> None:
    with socket.socket() as client, pytest.raises(AssertionError, match="tests/integration"):
        client.connect(("127.0.0.1", 9))


async def test_unit_test_cannot_open_an_asyncio_server() -> None:
    with pytest.raises(AssertionError, match="tests/integration"):
        await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0)


def test_socket_pair_is_fine_because_every_event_loop_makes_one() -> None:
    left, right = socket.socketpair()
    with left, right:
        left.sendall(b"beat")
        assert right.recv(4) == b"beat"
