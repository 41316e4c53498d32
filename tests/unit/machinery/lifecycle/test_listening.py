"""An address that cannot be listened on is explained with the setting that chose it."""

import errno
import os

import pytest

from machinery.lifecycle.listening import listening_failed


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.EADDRINUSE, "is in use, perhaps by another hub"),
        (errno.EADDRNOTAVAIL, "is no address of this machine"),
        (errno.EACCES, "take a port above 1023"),
        (errno.ENETDOWN, "Network is down"),
    ],
)
def test_each_reason_has_its_words(number: int, said: str) -> None:
    error = listening_failed("grpc_listen", "10.0.0.7", 443, OSError(number, os.strerror(number)))
    assert said in str(error)
    assert "10.0.0.7 port 443 (grpc_listen)" in str(error)
    assert "--grpc-listen" in str(error)


def test_no_reason_is_said_without_one() -> None:
    assert "cannot be listened on: choose another" in str(listening_failed("grpc_listen", "h", 1, None))
