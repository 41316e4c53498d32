"""Readiness notification to systemd by sd_notify(3): one datagram to the socket that systemd names."""

import os
import socket
from collections.abc import MutableMapping

import structlog

SOCKET = "NOTIFY_SOCKET"

log = structlog.get_logger(__name__)


def notify_ready(environment: MutableMapping[str, str] | None = None) -> None:
    """Send READY=1 once. The socket's name is removed from the environment, so that no child process can notify.

    Without such a socket this does nothing; a failure is only logged.
    """
    address = (os.environ if environment is None else environment).pop(SOCKET, "")
    if not address:
        return
    path = f"\0{address[1:]}" if address.startswith("@") else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notifying:
            notifying.connect(path)
            notifying.send(b"READY=1")
    except OSError as error:
        log.warning("systemd could not be told that the service is up", error=error.strerror or str(error))
