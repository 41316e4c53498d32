"""Addresses to listen on: error messages for those that cannot be used, and free ports."""

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from machinery.lifecycle.server import StartError


def listening_failed(setting: str, host: str, port: int, error: OSError | None) -> StartError:
    """StartError of a door. `setting`: option that chose the address; `error` None: the library gave no reason."""
    where = f"the address {host} port {port} ({setting})"
    choose = f"choose another with --{setting.replace('_', '-')}"
    if error is None:
        return StartError(f"{where} cannot be listened on: {choose}")
    match error.errno:
        case errno.EADDRINUSE:
            return StartError(f"{where} is in use, perhaps by another hub: stop that program, or {choose}")
        case errno.EADDRNOTAVAIL:
            return StartError(f"{where} is no address of this machine: {choose}")
        case errno.EACCES:
            return StartError(f"{where} may not be listened on by this user: take a port above 1023, or {choose}")
    return StartError(f"{where} cannot be listened on: {error.strerror or error}; {choose}")


def bind_error(host: str, port: int) -> OSError | None:
    """OSError of a trial bind to the address; None: it succeeds. For libraries that do not report the reason."""
    try:
        family, kind, protocol, _name, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen()
    except OSError as error:
        return error
    return None


@contextmanager
def reserved_port(host: str) -> Iterator[int]:
    """Reserve a free port for the block; a server in this process may listen on it by its number.

    A bound socket that does not listen holds the port, so a listener with SO_REUSEADDR can share it. Raises StartError.
    """
    try:
        family, kind, protocol, _name, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        held = socket.socket(family, kind, protocol)
    except OSError as error:
        raise StartError(f"no port of {host} can be reserved: {error.strerror or error}") from error
    with held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            held.bind(address)
        except OSError as error:
            raise StartError(f"no port of {host} can be reserved: {error.strerror or error}") from error
        yield int(held.getsockname()[1])
